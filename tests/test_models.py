"""Loading and scoring: vocabularies, folders, GGUF files; rows against the module's plain forward, in every way."""

import importlib.util
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers
from torch import nn
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import cactus_decoding as cactus
from cactus_decoding.errors import BrokenLogits, InvalidParameter, MissingExtra, ModelRefused, PairMismatch
from cactus_decoding.models.base import Vocabulary
from cactus_decoding.models.cache import RaggedCache
from cactus_decoding.models.llama import LlamaForward, product
from cactus_decoding.models.rows import RaggedRows
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
    assert pair.generate("ab", m=5, max_new_tokens=5, seed=1).text


@pytest.mark.parametrize(
    ("dtype", "expected"), [(None, torch.float32), ("bfloat16", torch.bfloat16), (torch.float16, torch.float16)]
)
def test_dtype_of_loaded_models(tmp_path, dtype, expected):
    folder = saved(tmp_path, byte_tokenizer())
    pair = cactus.load_pair(folder, folder, dtype=dtype)
    assert next(pair.verifier.module.parameters()).dtype == expected
    assert pair.generate("ab", m=5, max_new_tokens=5, seed=1).ids


def test_padded_heads_are_the_same_vocabulary(tmp_path):
    """More rows than tokens on one side: accepted, and a row without a token is never emitted."""
    tokenizer = byte_tokenizer()
    verifier = saved(tmp_path / "a", tokenizer, vocabulary=320)
    drafter = saved(tmp_path / "b", tokenizer, seed=1, vocabulary=288)
    pair = cactus.load_pair(verifier, drafter)
    assert pair.verifier.vocabulary.size == 256
    for out in pair.generate(["ab"] * 20, rows=20, rule=cactus.Cactus(1.0), m=5, seed=0, max_new_tokens=40):
        assert max(out.ids) < 256


def test_a_drafter_that_lacks_the_last_tokens_is_padded_with_probability_zero(tmp_path):
    """And where the text holds one of them, it has nothing to propose any more."""
    whole, short = byte_tokenizer(extra=["<|user|>", "<|end|>"]), byte_tokenizer()
    pair = cactus.load_pair(saved(tmp_path / "a", whole), saved(tmp_path / "b", short, seed=1))
    assert pair.drafter.model.vocabulary.strangers([256, 257]) == [256, 257]
    met = 0
    for out in pair.generate(["ab"] * 20, rows=20, m=5, seed=0, max_new_tokens=60, chat=False):
        assert all(token < 256 for event in out.events for token in event.draft)
        met += any(token >= 256 for token in out.ids)
    assert met > 0
    prompted = pair.generate([1, 256], m=5, seed=1, max_new_tokens=10)
    assert prompted.stats.drafted == 0
    assert len(prompted.ids) == 10


def test_modules_with_different_numbers_of_rows_load():
    pair = cactus.load_pair(tiny_model(0, vocabulary=20), tiny_model(1, vocabulary=16))
    assert len(pair.generate([1, 2], m=5, max_new_tokens=30, seed=1).ids) == 30


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
    assert cactus.load_pair(module, folder, tokenizer=tokenizer).generate("ab", m=5, max_new_tokens=3, seed=1).ids


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
    out = pair.generate([1, 2, 1, 2], m=5, temperature=0, max_new_tokens=27)
    expected = module.generate(torch.tensor([[1, 2, 1, 2]]), do_sample=False, max_new_tokens=27)[0, 4:].tolist()
    assert list(out.ids) == expected


@pytest.mark.parametrize("way", ["lean", "module", "alone"])
def test_a_cache_that_only_pretends_to_rewind_is_found(monkeypatch, way):
    model = model_that_goes(way)
    real = model.new_cache

    def forgetful():
        cache = real()
        cache.crop = lambda tokens: None
        return cache

    monkeypatch.setattr(model, "new_cache", forgetful)
    monkeypatch.setattr(RaggedRows, "rewind", lambda rows, row, length: None)
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
    out = pair.generate("abba", rule=cactus.Cactus(0.5), m=5, seed=1, max_new_tokens=20)
    assert out.prompt_ids == (256, alphabet.index("b"), alphabet.index("a"))
    assert out.stats.verifier_calls <= len(out.ids)


def test_a_missing_extra_names_the_command_that_brings_it(tmp_path, monkeypatch):
    (tmp_path / "x.gguf").touch()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r'pip install "cactus-decoding\[gguf\]"'):
        cactus.load_pair(str(tmp_path / "x.gguf"), "prompt-lookup")


# --- the lean forward ---------------------------------------------------------------------------------------------

V = 12
LEAN, MODULE = "together, lean forward", "together, the module's forward"
NO_TOKENS = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
SIZES = {
    "vocab_size": V, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, **NO_TOKENS,
}  # fmt: skip
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
LLAMA, QWEN3 = (LlamaConfig, LlamaForCausalLM), (Qwen3Config, Qwen3ForCausalLM)
FAMILY = {
    "llama, grouped heads": (*LLAMA, {}),
    "llama, a key head per query head": (*LLAMA, {"num_key_value_heads": 4}),
    "llama, tied head": (*LLAMA, {"tie_word_embeddings": True}),
    "llama, biases everywhere": (*LLAMA, {"attention_bias": True, "mlp_bias": True}),
    "llama, llama3 rope": (*LLAMA, {"rope_parameters": LLAMA3_ROPE}),
    "llama, linear rope": (*LLAMA, {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}}),
    "mistral": (MistralConfig, MistralForCausalLM, {}),
    "qwen2, with biases": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3, normed heads wider than the model": (*QWEN3, {"head_dim": 8}),
}


def randomised(config, module, seed=0, **options):
    """No parameter keeps the 0 or 1 it begins with, so that none of them can be left out unnoticed."""
    torch.manual_seed(seed)
    built = module(config(**{**SIZES, **options})).eval()
    for name, parameter in built.named_parameters():
        noise = 0.3 * torch.randn_like(parameter)
        parameter.data = noise + 1.0 if "norm" in name else noise
    return built


def loaded(module):
    return TransformersModel(module, "the verifier", Vocabulary(V))


def some_ids(count, seed=0):
    return torch.randint(V, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def require_close(found, expected, tolerance):
    gap = float((found - expected).abs().max())
    assert gap <= tolerance * float(expected.abs().max()), f"off by {gap}"


@torch.inference_mode()
def require_plain_logits(model, tolerance=1e-4):
    """Two rows of 31 and 9 ids, fed on together, against the module's plain forward."""
    texts = some_ids(36, 1), some_ids(12, 2)
    rows = model.open()
    for row, (text, length) in enumerate(zip(texts, (31, 9))):
        rows.add()
        found = rows.extend(torch.tensor([text[:length]]), [length], [length], row)[0]
        require_close(found, model.plain(torch.tensor(text))[:length], tolerance)
    block = torch.tensor([texts[0][31:], [*texts[1][9:], 0, 0]])
    found = rows.extend(block, [5, 3], [5, 2])
    require_close(found[0], model.plain(torch.tensor(texts[0]))[31:], tolerance)
    require_close(found[1, :2], model.plain(torch.tensor(texts[1]))[10:], tolerance)


@pytest.mark.parametrize("name", FAMILY)
def test_the_lean_forward_is_the_modules_own(name):
    config, module, options = FAMILY[name]
    model = loaded(randomised(config, module, **options))
    assert model.way == LEAN
    require_plain_logits(model, 1e-5)


@pytest.mark.parametrize("name", FAMILY)
@torch.inference_mode()
def test_in_bfloat16_the_lean_forward_rounds_as_the_module_does(name):
    """Both are compared with the module's float32: the lean one may be off twice as far as the module's own."""
    config, module, options = FAMILY[name]
    built, ids = randomised(config, module, **options), torch.tensor(some_ids(36))
    exact = loaded(built).plain(ids)
    model = loaded(built.to(torch.bfloat16))
    assert model.way == LEAN
    rows = model.open()
    rows.add()
    found = torch.cat([rows.extend(ids[None, :20], [20], [20])[0], rows.extend(ids[None, 20:], [16], [16])[0]])
    assert found.dtype == torch.bfloat16
    require_close(found, exact, 2 * float((model.plain(ids) - exact).abs().max() / exact.abs().max()))


def test_the_lean_forward_sees_later_changes_of_the_weights():
    model = loaded(randomised(*LLAMA))
    before = model.plain(torch.tensor(some_ids(4)))
    for parameter in model.module.parameters():
        parameter.data.mul_(1.1)
    assert not torch.allclose(model.plain(torch.tensor(some_ids(4))), before, atol=0.1)
    require_plain_logits(model)


class Adapted(nn.Linear):
    """As adapter libraries do it: still a Linear, with something more beside it."""

    def __init__(self, base):
        super().__init__(base.in_features, base.out_features, bias=False)
        self.weight = base.weight
        self.extra = nn.Parameter(torch.randn(base.out_features, base.in_features) / 4)

    def forward(self, x):
        return super().forward(x) + nn.functional.linear(x, self.extra)


class Capped(LlamaForCausalLM):
    """A model of the family with a forward of its own."""

    def forward(self, *args, **options):
        output = super().forward(*args, **options)
        output.logits = 3 * torch.tanh(output.logits / 3)
        return output


def hooked(module):
    module.model.layers[0].register_forward_hook(lambda part, args, output: 1.2 * output)


def prehooked(module):
    module.model.norm.register_forward_pre_hook(lambda part, args: (args[0].abs(),))


def wrapped(module):
    part = module.model.layers[1].mlp
    part.forward = lambda x, forward=part.forward: -forward(x)


def adapted(module):
    attention = module.model.layers[0].self_attn
    attention.v_proj = Adapted(attention.v_proj)


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated")  # what a forward of any arguments is called with
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("change", [hooked, prehooked, wrapped, adapted, None])
def test_what_the_lean_forward_would_pass_over_goes_through_the_module(change, attention):
    module = randomised(LlamaConfig, LlamaForCausalLM if change else Capped, attn_implementation=attention)
    if change:
        change(module)
    model = loaded(module)
    assert model.way == MODULE
    require_plain_logits(model)
    model._ragged = LlamaForward(module)
    with pytest.raises(AssertionError, match="off by"):
        require_plain_logits(model)


# no trial at load can tell these two from nothing


@pytest.mark.parametrize("name", ["model.layers.1.self_attn.q_proj", "model.embed_tokens", "model", "lm_head", ""])
def test_a_hook_that_only_looks_is_called(name):
    module, calls = randomised(*LLAMA), []
    module.get_submodule(name).register_forward_hook(lambda part, args, output: calls.append(part))
    model = loaded(module)
    calls.clear()
    require_plain_logits(model)
    assert (model.way, len(calls)) == (MODULE, 7)  # three times the rows, four times the plain forward


def test_an_adapter_that_does_nothing_yet_is_not_passed_over():
    module = randomised(*LLAMA)
    adapted(module)
    extra = module.model.layers[0].self_attn.v_proj.extra
    extra.data.zero_()
    model = loaded(module)
    assert model.way == MODULE
    extra.data.normal_()
    require_plain_logits(model)


@pytest.mark.parametrize(
    "options",
    [
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}},
        {"hidden_act": "gelu"},
    ],
)
def test_settings_that_the_lean_forward_does_not_know_go_through_the_module(options):
    model = loaded(randomised(*LLAMA, **options))
    assert model.way == MODULE
    require_plain_logits(model)


def test_a_lean_forward_that_differs_is_not_used(monkeypatch):
    real = LlamaForward.__call__
    monkeypatch.setattr(LlamaForward, "__call__", lambda *args: 1.01 * real(*args))
    model = loaded(randomised(*LLAMA))
    assert model.way == MODULE
    require_plain_logits(model)


# --- rows of different lengths ------------------------------------------------------------------------------------


def bloom():
    torch.manual_seed(0)
    return BloomForCausalLM(BloomConfig(vocab_size=V, hidden_size=16, n_layer=2, n_head=2, **NO_TOKENS)).eval()


def gpt2(positions=20):
    torch.manual_seed(0)
    sizes = {"vocab_size": V, "n_positions": positions, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(initializer_range=0.5, **sizes, **NO_TOKENS)).eval()


def model_that_goes(way):
    module = bloom() if way == "alone" else randomised(*LLAMA)
    if way == "module":
        hooked(module)
    return loaded(module)


@pytest.mark.parametrize(("way", "told"), [("lean", LEAN), ("module", MODULE), ("alone", "one at a time (")])
def test_a_model_tells_how_its_rows_are_computed(way, told):
    assert model_that_goes(way).way.startswith(told)


class Ragged:
    """Rows of a model beside the ids they should hold; every logit is compared with the plain forward of its row."""

    def __init__(self, model, data):
        self.model, self.data = model, data
        self.rows, self.texts = model.open(), []
        self.most = min(model.context, 60)

    def pick(self, least, most):
        return self.data.draw(st.integers(least, most))

    def run(self):
        self.add()
        for _ in range(self.pick(1, 12)):
            self.data.draw(st.sampled_from([self.add, self.drop, self.rewind, *[self.extend] * 4]))()
            assert self.rows.lengths == [len(text) for text in self.texts]
        self.rows.close()

    def add(self):
        self.rows.add()
        self.texts.append([])

    def drop(self):
        if self.texts:
            row = self.pick(0, len(self.texts) - 1)
            self.rows.drop(row)
            self.texts[row] = self.texts[-1]
            self.texts.pop()

    def rewind(self):
        if self.texts:
            row = self.pick(0, len(self.texts) - 1)
            length = self.pick(0, len(self.texts[row]))
            self.rows.rewind(row, length)
            del self.texts[row][length:]

    def extend(self):
        first = self.pick(0, max(0, len(self.texts) - 1))
        texts = self.texts[first : first + self.pick(1, 4)]
        counts = [self.pick(0, min(5, self.most - len(text))) for text in texts]
        if not any(counts):
            return
        keep = [self.pick(0, count) for count in counts]
        w = max(counts) + self.pick(0, 2)
        ids = torch.randint(V, (len(texts), w), generator=torch.Generator().manual_seed(self.pick(0, 99)))
        logits = self.rows.extend(ids, counts, keep, first)
        assert logits.shape == (len(texts), max(keep), V)
        for text, new, count, kept, found in zip(texts, ids.tolist(), counts, keep, logits):
            text.extend(new[:count])
            if kept:
                require_close(found[:kept], self.model.plain(torch.tensor(text))[-kept:], 1e-4)


@pytest.mark.parametrize("way", ["lean", "module", "alone", "gpt2, to the end of its positions"])
def test_every_row_has_the_logits_of_its_own_ids(way):
    model = loaded(gpt2()) if way.startswith("gpt2") else model_that_goes(way)

    @settings(max_examples=80)
    @given(data=st.data())
    @torch.inference_mode()
    def run(data):
        Ragged(model, data).run()

    run()


def test_learned_positions_are_used_to_the_last_one():
    """Rows side by side: the padding of a short row's block lies beyond the last position there is."""
    module = gpt2(positions=24)
    pair = cactus.load_pair(module, tiny_model(1, vocabulary=V))
    assert (pair.verifier.way, pair.verifier.context) == (MODULE, 24)
    prompts = [some_ids(length, length) for length in (3, 20, 9, 23)]
    outputs = pair.generate([cactus.Request(p, {"max_new_tokens": 24 - len(p)}) for p in prompts], m=5, temperature=0)
    for prompt, out in zip(prompts, outputs):
        new = 24 - len(prompt)
        expected = module.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=new)[0, len(prompt) :]
        assert list(out.ids) == expected.tolist()


@pytest.mark.parametrize("way", ["lean", "module", "alone"])
def test_prompts_longer_than_a_chunk_are_fed_in_parts(way):
    """512 ids go in at a time: alone and beside others, just below, at and above the border, and twice."""
    module = bloom() if way == "alone" else randomised(*LLAMA, max_position_embeddings=2048)
    if way == "module":
        hooked(module)
    pair = cactus.load_pair(module, "prompt-lookup")
    prompts = [some_ids(length, length) for length in (1, 511, 512, 513, 514, 1030)]
    together = pair.generate(prompts, m=3, temperature=0, max_new_tokens=6)
    for prompt, out in zip(prompts, together):
        ids = list(prompt)
        for _ in range(6):
            ids.append(int(pair.verifier.plain(torch.tensor(ids))[-1].argmax()))
        assert list(out.ids) == ids[len(prompt) :]
        assert pair.generate(prompt, m=3, temperature=0, max_new_tokens=6).ids == out.ids


# --- the cache ----------------------------------------------------------------------------------------------------


class CacheOfNumbers:
    """A `RaggedCache` whose keys are single numbers, beside the lists that it should hold. A row may turn to NaN."""

    def __init__(self, data):
        self.data = data
        self.cache, self.held, self.count = RaggedCache(torch.float32, torch.device("cpu")), [], 0

    def pick(self, least, most):
        return self.data.draw(st.integers(least, most))

    def run(self):
        for _ in range(self.pick(1, 25)):
            self.data.draw(st.sampled_from([self.add, self.drop, self.rewind, *[self.write] * 3]))()
            assert self.cache.lengths == [len(row) for row in self.held]

    def add(self):
        self.cache.add()
        self.held.append([])

    def drop(self, row=None):
        if self.held:
            row = self.pick(0, len(self.held) - 1) if row is None else row
            self.cache.drop(row)
            self.held[row] = self.held[-1]
            self.held.pop()
            assert not any(bool(tensor.isnan().any()) for tensor in self.cache._tensors())

    def rewind(self):
        if self.held:
            row = self.pick(0, len(self.held) - 1)
            del self.held[row][self.pick(0, len(self.held[row])) :]
            self.cache.lengths[row] = len(self.held[row])

    def write(self):
        if not self.held:
            return
        first = self.pick(0, len(self.held) - 1)
        n, w = self.pick(1, len(self.held) - first), self.pick(1, 40)
        before = self.held[first : first + n]
        window = self.cache.window(first, n, w)
        new = torch.arange(self.count, self.count + n * w, dtype=torch.float32).view(n, w, 1, 1)
        self.count += n * w
        keys, values = self.cache.write(0, window, new, -new)
        assert torch.equal(keys, -values)
        self.require_window(window, before, w)
        for row, seen, added in zip(before, keys.flatten(1).tolist(), new.flatten(1).tolist()):
            assert seen[: len(row) + w] == row + added
            assert seen[: len(row)] == row
        counts = [self.pick(0, w) for _ in before]
        self.cache.advance(first, counts)
        for row, added, count in zip(before, new.flatten(1).tolist(), counts):
            row.extend(added[:count])
        if self.pick(0, 5) == 0:
            self.spoil(first + self.pick(0, n - 1))

    def require_window(self, window, before, w):
        longest = max(map(len, before))
        assert window.reach == longest + w
        positions = [[len(row) + j for j in range(w)] for row in before]
        if window.positions is not None:
            assert window.positions.tolist() == positions
        else:
            assert window.begin == longest
        for row, mask in zip(positions, self.cache.nothing_hidden(window) if window.mask is None else window.mask):
            for position, hidden in zip(row, mask[0].tolist()):
                assert hidden == [0.0 if slot <= position else -math.inf for slot in range(window.reach)]

    def spoil(self, row):
        """A model gives NaN for one row, which is dropped then."""
        window = self.cache.window(row, 1, 3)
        nan = torch.full((1, 3, 1, 1), math.nan)
        self.cache.write(0, window, nan, nan)
        self.drop(row)


@given(data=st.data())
def test_a_cache_holds_what_was_written_and_not_taken_back(data):
    CacheOfNumbers(data).run()


def filled(lengths):
    """A cache whose row i holds i + 1 everywhere."""
    cache = RaggedCache(torch.float32, torch.device("cpu"))
    for row, length in enumerate(lengths):
        cache.add()
        if length:
            new = torch.full((1, length, 1, 1), row + 1.0)
            cache.write(0, cache.window(row, 1, length), new, new)
            cache.advance(row, [length])
    return cache


def test_a_dropped_row_is_replaced_by_the_last_one_and_leaves_zeros():
    cache = filled([3, 5, 4])
    cache.drop(0)
    assert cache.lengths == [4, 5]
    keys, _ = cache._layers[0]
    assert keys[:, :6, 0, 0].tolist() == [[3, 3, 3, 3, 0, 0], [2, 2, 2, 2, 2, 0], [0] * 6]


def test_rows_that_were_never_fed_can_be_dropped():
    cache = filled([3, 5])
    cache.add()
    cache.add()
    cache.drop(0)  # an empty row without a place of its own moves to where a full one was
    cache.drop(2)
    assert cache.lengths == [0, 5]
    keys, _ = cache._layers[0]
    assert keys[:2, :5, 0, 0].tolist() == [[0] * 5, [2] * 5]


def test_a_long_row_gives_its_memory_back_when_it_leaves():
    cache = filled([10, 2000, 20])
    held = cache.bytes
    assert held >= 2 * 3 * 2000 * 4
    cache.drop(1)
    assert cache.bytes < held / 10
    keys, _ = cache.write(0, cache.window(0, 2, 1), torch.zeros(2, 1, 1, 1), torch.zeros(2, 1, 1, 1))
    assert keys[0, :10].unique().tolist() == [1]
    assert keys[1, :20].unique().tolist() == [3]
    cache.lengths[0] = 0
    cache.drop(1)
    assert cache.lengths == [0]
    cache.drop(0)
    assert cache.bytes == 0


@pytest.mark.parametrize("way", ["lean", "module", "alone"])
@torch.inference_mode()
def test_a_broken_row_does_not_spoil_the_next_one_in_its_place(way):
    model, text = model_that_goes(way), torch.tensor(some_ids(8))
    rows, weight = model.open(), model.module.get_input_embeddings().weight
    spared = weight.detach().clone()
    for row in range(2):
        rows.add()
        weight.data.copy_(spared * (math.nan if row else 1.0))
        assert bool(rows.extend(text[None], [8], [1], row).isnan().all()) == bool(row)
    weight.data.copy_(spared)
    rows.drop(1)
    rows.add()
    found = rows.extend(text[None, :5], [5], [5], 1)
    require_close(found[0], model.plain(text[:5]), 1e-4)
    both = rows.extend(text[5:].expand(2, -1), [3, 2], [3, 2])
    require_close(both[1, :2], model.plain(text[:7])[5:], 1e-4)
    assert bool(both.isfinite().all())


@settings(max_examples=30)
@given(
    w=st.integers(1, 12),
    n=st.integers(1, 3),
    wide=st.integers(1, 6),
    d=st.sampled_from([8, 512]),
    seed=st.integers(0, 9),
)
def test_a_product_turned_round_is_the_same_product(w, n, wide, d, seed):
    generator = torch.Generator().manual_seed(seed)
    x, weight = torch.randn(n, w, d, generator=generator), torch.randn(wide * d, d, generator=generator)
    found = product(x, weight)
    assert found.is_contiguous()
    assert torch.allclose(found, torch.nn.functional.linear(x, weight), atol=1e-4 * d**0.5)


def test_a_model_without_a_head_is_refused():
    with pytest.raises(ModelRefused, match="has no head.*AutoModelForCausalLM"):
        cactus.load_pair(tiny_model(0).model, "prompt-lookup")


@pytest.mark.parametrize("device", ["gpu", *([] if torch.cuda.is_available() else ["cuda"])])
def test_a_device_that_is_not_there_is_refused(tmp_path, device):
    with pytest.raises(InvalidParameter, match=f"device is '{device}', which cannot be used here"):
        cactus.load_pair(saved(tmp_path, byte_tokenizer()), "prompt-lookup", device=device)
