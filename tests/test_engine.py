"""What a user meets: seeds, stops, caps, greedy decoding, streams, counts, and clear errors."""

import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from cactus_decoding.errors import BrokenLogits, InvalidParameter, InvalidPrompt
from cactus_decoding.generation.events import Mark
from cactus_decoding.generation.loading import load_pair
from cactus_decoding.generation.stops import Stops
from cactus_decoding.generation.text import Detokenizer
from cactus_decoding.rules import BoundedRatio, Cactus, Lossless
from cactus_decoding.verify import Verdict
from tests.tiny import byte_tokenizer, tiny_model

PROMPT = [3, 1, 4]
RULES = [Lossless(), Cactus(0.5), BoundedRatio(2.0), BoundedRatio(2.0, "shift")]


@pytest.fixture(scope="module")
def text_pair():
    """Random models over bytes: any character may come, in any order, and half characters too."""
    tokenizer = byte_tokenizer()
    verifier = tiny_model(0, layers=1, vocabulary=len(tokenizer))
    return load_pair(verifier, tiny_model(1, hidden=8, layers=1, vocabulary=len(tokenizer)), tokenizer=tokenizer)


@pytest.mark.parametrize("m", range(1, 9))
def test_greedy_equals_transformers_own_greedy(m):
    verifier, drafter = tiny_model(0, vocabulary=64), tiny_model(1, hidden=8, layers=1, vocabulary=64)
    expected = verifier.generate(torch.tensor([PROMPT]), do_sample=False, max_new_tokens=60)[0, len(PROMPT) :].tolist()
    for draft in (drafter, "prompt-lookup"):
        out = load_pair(verifier, draft).generate(PROMPT, m=m, max_new_tokens=60, temperature=0)
        assert list(out.ids) == expected


def test_greedy_abacus_equals_transformers_own_greedy(abacus):
    question = "Tom has 5 apples. He buys 7 more apples. He gives 4 apples to Mia. How many apples does Tom have now?"
    for m in (1, 4, 8):
        out = abacus.generate(question, m=m, temperature=0)
        ids = torch.tensor([out.prompt_ids])
        expected = abacus.verifier.module.generate(ids, do_sample=False, max_new_tokens=256)[0, ids.shape[1] :].tolist()
        assert list(out.ids) == expected


def test_a_budget_at_temperature_zero_warns_once_that_it_does_nothing(tiny_pair):
    with pytest.warns(UserWarning, match="does nothing at temperature 0") as caught:
        out = tiny_pair.generate(PROMPT, rule=Cactus(0.5), temperature=0, m=4, max_new_tokens=30)
    assert len(caught) == 1
    assert caught[0].filename == __file__  # points to the caller, not into the package
    assert out.ids == tiny_pair.generate(PROMPT, temperature=0, m=4, max_new_tokens=30).ids


def test_lossless_settings_do_not_warn(tiny_pair):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny_pair.generate(PROMPT, rule=Cactus(0.0), temperature=0, max_new_tokens=5)
        tiny_pair.generate(PROMPT, rule=Cactus(0.5), temperature=0, max_new_tokens=5, m=0)


@pytest.mark.parametrize("rule", RULES)
def test_same_seed_same_text_and_other_seed_other_text(tiny_pair, rule):
    options = {"rule": rule, "m": 5, "max_new_tokens": 20}
    texts = [tiny_pair.generate(PROMPT, seed=seed, **options).ids for seed in range(20)]
    again = [tiny_pair.generate(PROMPT, seed=seed, **options).ids for seed in range(4)]
    together = [out.ids for out in tiny_pair.generate([PROMPT] * 20, rows=20, seed=0, **options)]
    assert texts[:4] == again
    assert texts == together
    assert len(set(texts)) == 20


@pytest.mark.parametrize("rule", [Lossless(), Cactus(0.5)])
def test_an_adapted_draft_length_repeats_itself_within_a_process(tiny_pair, rule):
    texts, again = (
        [tiny_pair.generate(PROMPT, rule=rule, seed=seed, max_new_tokens=40).events for seed in range(8)]
        for _ in range(2)
    )
    assert texts == again


def test_without_a_seed_a_fresh_one_is_drawn_and_reported(tiny_pair):
    first, second = (tiny_pair.generate(PROMPT, max_new_tokens=20) for _ in range(2))
    assert first.seed != second.seed
    assert tiny_pair.generate(PROMPT, max_new_tokens=20, seed=first.seed).ids == first.ids


def test_two_streams_at_a_time_do_not_disturb_each_other(text_pair):
    alone = [text_pair.generate("ab", seed=seed, m=5, max_new_tokens=30).text for seed in (1, 2)]
    streams = [text_pair.stream("ab", seed=seed, m=5, max_new_tokens=30) for seed in (1, 2)]
    for _ in zip(*streams):  # leaves the longer one paused
        pass
    for stream in streams:
        for _ in stream:
            pass
    assert [stream.output.text for stream in streams] == alone


@given(
    m=st.integers(1, 12),
    cap=st.integers(1, 25),
    seed=st.integers(0, 10**6),
    rule=st.sampled_from(RULES),
    eos=st.sets(st.integers(0, 7), max_size=2),
)
def test_every_draft_has_one_verdict_and_every_token_one_mark(tiny_pair, m, cap, seed, rule, eos):
    tiny_pair.eos, before = frozenset(eos), tiny_pair.eos
    try:
        out = tiny_pair.generate(PROMPT, rule=rule, m=m, max_new_tokens=cap, seed=seed)
    finally:
        tiny_pair.eos = before
    stats = out.stats
    assert stats.drafted == stats.kept + stats.relaxed + stats.refused + stats.unexamined + stats.ignored
    assert stats.tokens == len(out.ids) == stats.accepted + stats.recovered + stats.bonus <= cap
    assert [token for event in out.events for token, _ in event.tokens()] == list(out.ids)
    assert all(token not in eos for token in out.ids[:-1])
    assert out.finish_reason == ("eos" if out.ids[-1] in eos else "length")
    assert stats.verifier_calls == len(out.events)
    for event in out.events:
        assert out.ids[event.position] == event.tokens()[0][0]
        assert len(event.draft) <= m
        for verdict, p, q, h, u in zip(event.verdicts, event.p, event.q, event.h, event.u):
            if verdict in (Verdict.KEPT, Verdict.RELAXED):
                assert u * p < h
                assert (u * p >= q) == (verdict is Verdict.RELAXED)


@pytest.mark.parametrize("rule", RULES)
def test_an_end_inside_an_accepted_block_cuts_everything_behind_it(rule):
    """Drafter = verifier: every draft is kept, so an end in the middle of a block is certain to occur."""
    pair = load_pair(tiny_model(0), tiny_model(0))
    middle = 0
    for seed in range(40):
        pair.eos = frozenset()
        free = pair.generate(PROMPT, rule=rule, m=6, max_new_tokens=20, seed=seed)
        pair.eos = frozenset({free.ids[9]})
        end = free.ids.index(free.ids[9])
        out = pair.generate(PROMPT, rule=rule, m=6, max_new_tokens=20, seed=seed)
        assert out.ids == free.ids[: end + 1]
        assert out.finish_reason == "eos"
        assert out.stats.tokens == end + 1
        if end % 7 != 6:
            middle += 1
            assert out.stats.ignored == 5 - end % 7
            assert out.events[-1].emitted is None
    assert middle > 10


def test_a_stop_string_inside_an_accepted_block_cuts_everything_behind_it():
    tokenizer = byte_tokenizer()
    pair = load_pair(*(tiny_model(0, layers=1, vocabulary=256) for _ in range(2)), tokenizer=tokenizer)
    free = pair.generate("ab", m=6, max_new_tokens=40, seed=3)
    assert free.stats.acceptance == 1.0
    cut = 0
    for end in range(8, 35):
        stop = tokenizer.decode(free.ids[end - 1 : end + 1])
        first = free.text.find(stop)
        if "\ufffd" in stop or len(stop) < 2 or first < 0:
            continue
        out = pair.generate("ab", m=6, max_new_tokens=40, seed=3, stop=stop)
        assert out.text == free.text[:first]
        assert out.finish_reason == "stop"
        assert out.ids == free.ids[: len(out.ids)]
        place = (len(out.ids) - 1) % 7
        assert out.stats.ignored == max(0, 5 - place)
        assert (out.events[-1].emitted is None) == (place < 6)
        cut += place < 5
    assert cut > 0


def test_a_special_token_can_be_a_stop(text_pair):
    tokenizer = byte_tokenizer(extra=["<|end|>"])
    modules = [tiny_model(seed, layers=1, vocabulary=257) for seed in (0, 1)]
    pair = load_pair(*modules, tokenizer=tokenizer)
    options = {"m": 5, "max_new_tokens": 60}
    outputs = (pair.generate("ab", seed=seed, **options) for seed in range(50))
    free = next(out for out in outputs if 256 in out.ids[5:])
    out = pair.generate("ab", seed=free.seed, stop="<|end|>", **options)
    assert out.ids == free.ids[: free.ids.index(256) + 1]
    assert out.finish_reason == "stop"
    assert "<|end|>" not in out.text


def test_a_stop_string_before_half_a_character_is_found_at_once():
    """The token b"STOP\xc3" holds back its last byte, not its text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = ["ST", "OP", "STOP", "STOPÃ"]
    merges = [("S", "T"), ("O", "P"), ("ST", "OP"), ("STOP", "Ã")]
    core = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate([*alphabet, *pieces])}, merges=merges))
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    stops = Stops(frozenset({0}), frozenset(), ["STOP"], 10, Detokenizer(tokenizer))
    assert stops.push(alphabet.index("a")) is None
    assert stops.push(259) == "stop"
    assert stops.text == "a"


@pytest.mark.parametrize("cap", range(1, 16))
@pytest.mark.parametrize("m", [1, 4, 20])
def test_never_more_than_the_cap_and_never_fewer(tiny_pair, m, cap):
    out = tiny_pair.generate(PROMPT, m=m, max_new_tokens=cap, seed=cap)
    assert len(out.ids) == cap
    assert out.finish_reason == "length"


def test_end_of_text_at_the_cap_is_reported_as_such(tiny_pair):
    last = tiny_pair.generate(PROMPT, seed=1, m=5, max_new_tokens=9).ids[-1]
    tiny_pair.eos = frozenset({last})
    try:
        out = tiny_pair.generate(PROMPT, seed=1, m=5, max_new_tokens=9)
    finally:
        tiny_pair.eos = frozenset()
    assert out.finish_reason == "eos"


@pytest.mark.parametrize("m", [1, 3, 8])
def test_a_stop_string_ends_text_ids_and_counts_at_one_token(text_pair, m):
    free = text_pair.generate("ab", seed=4, m=m, max_new_tokens=60)
    characters = [i for i in range(8, len(free.text) - 2) if free.text[i] not in free.text[:i]]
    stop = free.text[characters[0] : characters[0] + 2]  # spans tokens
    out = text_pair.generate("ab", seed=4, m=m, max_new_tokens=60, stop=["never there", stop])
    assert out.text == free.text[: free.text.index(stop)]
    assert out.finish_reason == "stop"
    assert out.ids == free.ids[: len(out.ids)]
    assert out.stats.tokens == len(out.ids) < 60
    assert stop in text_pair.tokenizer.decode(out.ids)
    assert stop not in text_pair.tokenizer.decode(out.ids[:-1])


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), m=st.integers(0, 9), stop=st.sampled_from([(), ("a",), ("xy", "\ufffd"), ("zzz",)]))
def test_a_streams_pieces_join_to_the_whole_text(text_pair, seed, m, stop):
    options = {"seed": seed, "m": m, "max_new_tokens": 25, "stop": stop}
    stream = text_pair.stream("ab", **options)
    pieces = list(stream)
    assert "".join(pieces) == stream.output.text == text_pair.generate("ab", **options).text
    assert all(pieces)
    assert not any(string in stream.output.text for string in stop)
    if not stop:
        assert stream.output.text == text_pair.tokenizer.decode(stream.output.ids)


def test_pieces_never_end_inside_a_character():
    text = "naïve 😀 Größe — 数学 "
    tokenizer = byte_tokenizer()
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(token) for token in tokenizer.encode(text)]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert detokenizer.finish() == ""


def cache_bytes(stream):
    """What the two models hold for a stream of its own."""
    batch = stream._session._batch
    return [rows.cache.bytes for rows in (batch._verifier, batch._drafter._rows)]


def test_leaving_a_stream_early_frees_its_caches(text_pair):
    stream = text_pair.stream("ab", seed=1, m=5, max_new_tokens=50)
    next(stream)
    assert min(cache_bytes(stream)) > 0
    stream.close()
    assert cache_bytes(stream) == [0, 0]
    assert list(stream) == []
    with pytest.raises(InvalidParameter, match="not iterated to its end"):
        _ = stream.output


def test_the_verifier_alone_takes_one_call_per_token(tiny_pair):
    out = tiny_pair.generate(PROMPT, max_new_tokens=20, m=0, seed=2)
    assert out.stats.verifier_calls == 20
    assert out.stats.drafted == 0
    assert {mark for event in out.events for _, mark in event.tokens()} == {Mark.BONUS}
    assert math.isnan(out.stats.acceptance)
    assert out.stats.to_dict()["acceptance"] is None


def test_a_prompt_beyond_the_drafters_context_goes_on_without_drafts():
    verifier, drafter = tiny_model(0, positions=128), tiny_model(1, layers=1, positions=32)
    pair = load_pair(verifier, drafter)
    prompt = [i % 8 for i in range(28)]
    out = pair.generate(prompt, temperature=0, max_new_tokens=40, m=4)
    plain = pair.generate(prompt, temperature=0, max_new_tokens=40, m=0)
    assert out.ids == plain.ids
    assert out.events[0].draft
    assert not out.events[-1].draft
    assert out.stats.calls_without_draft == sum(not event.draft for event in out.events) > 20


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_models_generate(dtype):
    pair = load_pair(tiny_model(0).to(dtype), tiny_model(1, hidden=8, layers=1).to(dtype))
    out = pair.generate(PROMPT, rule=Cactus(0.5), seed=1, m=5, max_new_tokens=30)
    assert len(out.ids) == 30
    assert all(0 <= token < 8 for token in out.ids)


def test_nothing_of_probability_zero_is_ever_emitted(tiny_pair):
    for seed in range(10):
        out = tiny_pair.generate(PROMPT, rule=Cactus(1.0), m=5, top_k=3, seed=seed, max_new_tokens=40)
        context = torch.tensor([[*PROMPT, *out.ids]])
        logits = tiny_pair.verifier.module(context).logits[0, len(PROMPT) - 1 : -1]
        ranks = (logits > logits.gather(-1, torch.tensor(out.ids)[:, None])).sum(-1)
        assert int(ranks.max()) < 3


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def test_generates_on_every_device_there_is(device):
    pair = load_pair(tiny_model(0).to(device), tiny_model(1, hidden=8, layers=1).to(device))
    assert len(pair.generate(PROMPT, rule=Cactus(0.5), seed=1, max_new_tokens=30).ids) == 30


class Poisoned:
    """A hook that makes a module's logits of one id ``value`` once it is armed."""

    def __init__(self, module, value):
        self.armed, self.value = False, value
        module.register_forward_hook(self)

    def __call__(self, module, args, output):
        if self.armed:
            output.logits = output.logits.index_fill(-1, torch.tensor([2]), self.value)
        return output


def require_broken(pair, role, poison):
    """The stream under way ends with an error that names the model and the place, its caches freed; so do others."""
    stream = pair.stream(PROMPT, m=4, max_new_tokens=60, seed=1)
    for _ in range(3):
        stream._session.step()
    settled = len(stream.ids)
    assert settled >= 3
    poison()
    for _ in range(2):
        with pytest.raises(BrokenLogits, match=f"behind token {settled} of the response, the {role} returned NaN"):
            list(stream)
    assert stream.done
    assert len(stream.ids) == settled
    assert cache_bytes(stream) == [0, 0]
    with pytest.raises(BrokenLogits, match=f"the {role} returned NaN"):
        _ = stream.output
    with pytest.raises(BrokenLogits, match=f"behind token 0 of the response, the {role} returned NaN"):
        pair.generate(PROMPT, m=4, max_new_tokens=60, seed=1)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("role", ["verifier", "drafter"])
def test_nan_or_inf_from_a_modules_forward_is_an_error_that_names_it(role, value):
    modules = {"verifier": tiny_model(0), "drafter": tiny_model(1)}
    hook = Poisoned(modules[role], value)
    pair = load_pair(modules["verifier"], modules["drafter"])
    require_broken(pair, role, lambda: setattr(hook, "armed", True))


@pytest.mark.parametrize("role", ["verifier", "drafter"])
def test_nan_from_the_lean_forward_is_an_error_that_names_it(role):
    modules = {"verifier": tiny_model(0), "drafter": tiny_model(1)}
    pair = load_pair(modules["verifier"], modules["drafter"])
    assert pair.verifier.way == pair.drafter.model.way == "together, lean forward"
    require_broken(pair, role, lambda: modules[role].lm_head.weight.data[2].fill_(math.nan))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"m": -1}, InvalidParameter, "m is -1.*at least 0"),
        ({"m": "often"}, InvalidParameter, """m is 'often', but must be "auto" or a whole number"""),
        ({"m": True}, InvalidParameter, "m is True"),
        ({"m": 2.5}, InvalidParameter, "m is 2.5"),
        ({"max_new_tokens": 0}, InvalidParameter, "max_new_tokens is 0"),
        ({"max_new_tokens": 1000}, InvalidParameter, "room for 253 more of its 256"),
        ({"temperature": -1}, InvalidParameter, "temperature is -1"),
        ({"seed": -1}, InvalidParameter, "seed is -1"),
        ({"stop": "x"}, InvalidParameter, "no tokenizer"),
        ({"seed": 2**64}, InvalidParameter, "seed is 18446744073709551616"),
        ({"prompt": []}, InvalidPrompt, "empty"),
        ({"prompt": [1, 8]}, InvalidPrompt, "id 8.*vocabulary of 8"),
        ({"prompt": [1, -1]}, InvalidPrompt, "id -1"),
        ({"prompt": [1] * 256}, InvalidPrompt, "256 tokens.*holds 256"),
        ({"prompt": torch.tensor([[1, 2], [3, 4]])}, InvalidPrompt, r"shape \[2, 2\].*one row"),
        ({"prompt": [1.5, 2.0]}, InvalidPrompt, "else than whole numbers"),
        ({"prompt": ["a", "b"]}, InvalidPrompt, "else than whole numbers"),
        ({"chat": True}, InvalidParameter, "chat is True, but the prompt is ids"),
        ({"rule": "cactus"}, InvalidParameter, "rule is 'cactus', but must be a rule"),
        ({"prompt": "hello"}, InvalidPrompt, "no tokenizer"),
    ],
)
def test_bad_requests_are_refused_before_anything_is_generated(tiny_pair, options, error, message):
    prompt = options.pop("prompt", PROMPT)
    with pytest.raises(error, match=message):
        tiny_pair.stream(prompt, **options)


@pytest.mark.parametrize(
    ("prompt", "options", "error", "message"),
    [
        ("", {}, InvalidPrompt, "empty"),
        ("ab", {"chat": True}, InvalidPrompt, "no chat template"),
        ([{"role": "user", "content": "ab"}], {"chat": False}, InvalidParameter, "list of messages"),
        ("ab", {"stop": ["x", ""]}, InvalidParameter, "empty"),
    ],
)
def test_bad_texts_are_refused(text_pair, prompt, options, error, message):
    with pytest.raises(error, match=message):
        text_pair.stream(prompt, **options)


def test_messages_that_the_template_refuses_are_an_invalid_prompt(abacus):
    with pytest.raises(InvalidPrompt, match="chat template refuses these messages: Abacus has no system role"):
        abacus.generate([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}])


def test_unknown_options_are_refused(tiny_pair):
    with pytest.raises(InvalidParameter, match="'temprature' is no option.*temperature"):
        tiny_pair.generate(PROMPT, temprature=0.5)
    with pytest.raises(InvalidParameter, match="'speculate' is no option"):
        tiny_pair.stream(PROMPT, speculate=False)
