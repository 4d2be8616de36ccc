"""Loading: the same-tokenizer check, padded vocabularies, the rewind self-test, folders and GGUF files."""

import importlib.util

import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import (
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import cactus_decoding as cactus
from cactus_decoding.errors import BrokenLogits, InvalidParameter, MissingExtra, ModelRefused, PairMismatch
from cactus_decoding.models.base import Vocabulary
from cactus_decoding.models.selftest import require_rewind
from cactus_decoding.models.transformers import TransformersModel
from tests.gguf_file import write_gguf
from tests.tiny import byte_tokenizer, tiny_model


def saved(folder, tokenizer, seed=0, vocabulary=None, **config):
    tiny_model(seed, vocabulary=vocabulary or len(tokenizer), **config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_local_folders_load_and_generate(tmp_path):
    tokenizer = byte_tokenizer()
    pair = cactus.load_pair(saved(tmp_path / "a", tokenizer), saved(tmp_path / "b", tokenizer, seed=1))
    assert pair.generate("ab", max_new_tokens=5, seed=1).text


@pytest.mark.parametrize(
    ("dtype", "expected"), [(None, torch.float32), ("bfloat16", torch.bfloat16), (torch.float16, torch.float16)]
)
def test_dtype_of_loaded_models(tmp_path, dtype, expected):
    folder = saved(tmp_path, byte_tokenizer())
    pair = cactus.load_pair(folder, folder, dtype=dtype)
    assert next(pair.verifier.module.parameters()).dtype == expected
    assert pair.generate("ab", max_new_tokens=5, seed=1).ids


def test_padded_heads_are_the_same_vocabulary(tmp_path):
    """More rows than tokens on one side: accepted, and a row without a token is never emitted."""
    tokenizer = byte_tokenizer()
    verifier = saved(tmp_path / "a", tokenizer, vocabulary=320)
    drafter = saved(tmp_path / "b", tokenizer, seed=1, vocabulary=288)
    pair = cactus.load_pair(verifier, drafter)
    assert pair.verifier.vocabulary.size == 256
    for seed in range(20):
        out = pair.generate("ab", rule=cactus.Cactus(1.0), seed=seed, max_new_tokens=40)
        assert max(out.ids) < 256


def test_a_drafter_that_lacks_the_last_tokens_is_padded_with_probability_zero(tmp_path):
    """And where the text holds one of them, it has nothing to propose any more."""
    whole, short = byte_tokenizer(extra=["<|user|>", "<|end|>"]), byte_tokenizer()
    pair = cactus.load_pair(saved(tmp_path / "a", whole), saved(tmp_path / "b", short, seed=1))
    assert pair.drafter.model.vocabulary.strangers([256, 257]) == [256, 257]
    met = 0
    for seed in range(20):
        out = pair.generate("ab", seed=seed, max_new_tokens=60, chat=False)
        assert all(token < 256 for event in out.events for token in event.draft)
        met += any(token >= 256 for token in out.ids)
    assert met > 0
    prompted = pair.generate([1, 256], seed=1, max_new_tokens=10)
    assert prompted.stats.drafted == 0
    assert len(prompted.ids) == 10


def test_modules_with_different_numbers_of_rows_load():
    pair = cactus.load_pair(tiny_model(0, vocabulary=20), tiny_model(1, vocabulary=16))
    assert len(pair.generate([1, 2], max_new_tokens=30, seed=1).ids) == 30


def test_ids_without_a_token_or_a_row_are_never_possible():
    vocabulary = Vocabulary(6, missing=(2, 4))
    for rows in (9, 6, 5):
        model = TransformersModel(tiny_model(0, vocabulary=rows), "the verifier", vocabulary)
        law = model.fit(torch.zeros(1, rows)).softmax(-1)
        assert law.shape == (1, 6)
        assert law[0, [2, 4]].tolist() == [0, 0]
        assert (law[0, 5] == 0) == (rows == 5)
    assert vocabulary.strangers([0, 2, 5, 6, -1]) == [2, 6, -1]


def test_different_tokenizers_are_refused_with_the_first_difference(tmp_path):
    ours, theirs = byte_tokenizer(extra=["<|user|>"]), byte_tokenizer(extra=["<|end|>"])
    with pytest.raises(
        PairMismatch, match=r"1 ids.*id 256 \('<\|user\|>' for the verifier, '<\|end\|>' for the drafter\)"
    ):
        cactus.load_pair(saved(tmp_path / "a", ours), saved(tmp_path / "b", theirs))


@pytest.mark.parametrize(
    ("source", "message"), [("no/such/folder", "cannot load 'no/such/folder'"), ("no.gguf", "no file")]
)
def test_what_cannot_be_loaded_is_named(source, message):
    with pytest.raises(ModelRefused, match=message):
        cactus.load_pair(source, "prompt-lookup")


def test_settings_of_load_pair_are_checked(tmp_path):
    with pytest.raises(InvalidParameter, match="draft is missing.*prompt-lookup"):
        cactus.load_pair("some/model")
    with pytest.raises(InvalidParameter, match="'int8'.*float32"):
        cactus.load_pair(saved(tmp_path, byte_tokenizer()), "prompt-lookup", dtype="int8")


def test_options_that_would_be_ignored_are_refused(tmp_path):
    module, tokenizer = tiny_model(0, vocabulary=256), byte_tokenizer()
    folder = saved(tmp_path, tokenizer)
    with pytest.raises(InvalidParameter, match="dtype is 'bfloat16', but the modules are in memory"):
        cactus.load_pair(module, "prompt-lookup", dtype="bfloat16")
    with pytest.raises(InvalidParameter, match="device is 'cpu'"):
        cactus.load_pair(module, module, device="cpu")
    with pytest.raises(InvalidParameter, match="brings its own"):
        cactus.load_pair(folder, folder, tokenizer=tokenizer)
    with pytest.raises(InvalidParameter, match="cannot be compared"):
        cactus.load_pair(module, folder)
    assert cactus.load_pair(module, folder, tokenizer=tokenizer).generate("ab", max_new_tokens=3, seed=1).ids


def test_recurrent_models_are_refused_at_load():
    module = MambaForCausalLM(MambaConfig(vocab_size=8, hidden_size=16, num_hidden_layers=1, state_size=4)).eval()
    with pytest.raises(ModelRefused, match="MambaForCausalLM"):
        cactus.load_pair(module, "prompt-lookup")


def test_encoder_decoder_models_are_refused_at_load():
    config = T5Config(vocab_size=8, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    with pytest.raises(ModelRefused, match="T5ForConditionalGeneration.*needs a decoder-only one"):
        cactus.load_pair(T5ForConditionalGeneration(config), "prompt-lookup")


def test_a_sliding_window_limits_the_context_to_what_can_be_rewound():
    module = MistralForCausalLM(
        MistralConfig(
            vocab_size=8, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, sliding_window=32, max_position_embeddings=128, eos_token_id=None,
        )
    ).eval()  # fmt: skip
    pair = cactus.load_pair(module, "prompt-lookup")
    assert pair.verifier.context == 31
    out = pair.generate([1, 2, 1, 2], temperature=0, max_new_tokens=27)
    expected = module.generate(torch.tensor([[1, 2, 1, 2]]), do_sample=False, max_new_tokens=27)[0, 4:].tolist()
    assert list(out.ids) == expected


def test_a_cache_that_only_pretends_to_rewind_is_found():
    model = TransformersModel(tiny_model(0), "the verifier", Vocabulary(8))
    real = model.new_cache

    def forgetful():
        cache = real()
        cache.crop = lambda tokens: None
        return cache

    model.new_cache = forgetful
    with pytest.raises(ModelRefused, match="does not come back to the same logits"):
        require_rewind(model)


def test_a_model_that_gives_nan_from_the_start_is_refused():
    module = tiny_model(0)
    module.lm_head.weight.data.fill_(float("nan"))
    with pytest.raises(BrokenLogits, match="NaN logits for its first few tokens.*float32"):
        cactus.load_pair(module, "prompt-lookup")


def test_gguf_files_load_through_transformers(tmp_path):
    """A real file, written here: same logits as the module it was made from, and a text from two such files."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens, merges = [*alphabet, "ab", "<end>"], ["a b"]
    modules = [tiny_model(seed, vocabulary=len(tokens), hidden=32, layers=1) for seed in (0, 1)]
    for name, module in zip("vd", modules):
        write_gguf(tmp_path / f"{name}.gguf", module, tokens, merges, eos=len(tokens) - 1)
    pair = cactus.load_pair(str(tmp_path / "v.gguf"), str(tmp_path / "d.gguf"))
    ids = torch.tensor([[1, 2, 3, 256]])
    assert torch.allclose(pair.verifier.module(ids).logits, modules[0](ids).logits, atol=1e-4)
    out = pair.generate("abba", rule=cactus.Cactus(0.5), seed=1, max_new_tokens=20)
    assert out.prompt_ids == (256, alphabet.index("b"), alphabet.index("a"))
    assert out.stats.verifier_calls <= len(out.ids)


def test_a_missing_extra_names_the_command_that_brings_it(tmp_path, monkeypatch):
    (tmp_path / "x.gguf").touch()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r'pip install "cactus-decoding\[gguf\]"'):
        cactus.load_pair(str(tmp_path / "x.gguf"), "prompt-lookup")
