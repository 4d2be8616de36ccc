"""Penalties and biases: each law sees the prompt, what was emitted and the drafts before it, for either model."""

import math
from dataclasses import asdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.generation.loading import load_pair
from cactus_decoding.generation.request import Request
from cactus_decoding.laws import Penalised, laws_of, shaping_of
from cactus_decoding.rules import BoundedRatio, Cactus, Lossless
from cactus_decoding.sampling import SamplingParams, biased, probabilities
from tests.tiny import logit, tiny_model

V = 8
ids_below = st.lists(st.integers(0, V - 1), max_size=6)
bias_of = st.dictionaries(st.integers(0, V - 1), st.one_of(st.floats(-3, 3), st.just(-math.inf)), max_size=3)
penalties = {
    "presence_penalty": st.sampled_from([0.0, 0.7, -1.1]),
    "frequency_penalty": st.sampled_from([0.0, 0.6, -0.3]),
    "repetition_penalty": st.sampled_from([1.0, 1.5, 0.7]),
    "logit_bias": bias_of,
}
unfiltered_params_of = st.builds(SamplingParams, temperature=st.sampled_from([0.5, 1.0, 1.7]), **penalties)
params_of = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 1.7]),
    top_k=st.sampled_from([0, 3]),
    top_p=st.sampled_from([1.0, 0.8]),
    min_p=st.sampled_from([0.0, 0.1]),
    **penalties,
)
penalised_params_of = params_of.filter(lambda params: params.penalised)


def directly(logits, params, prompt, response):
    """The documented order, for one position, id by id; ``[V]`` logits."""
    logits = logits.clone()
    for token, value in params.logit_bias:
        logits[token] += value
    for token in {*prompt, *response}:
        penalty = params.repetition_penalty
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    for token in set(response):
        logits[token] = logits[token] - params.presence_penalty - params.frequency_penalty * response.count(token)
    return probabilities(logits, SamplingParams(params.temperature, params.top_k, params.top_p, params.min_p))


def random_logits(seed, *shape):
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@given(
    params=penalised_params_of, prompt=ids_below, blocks=st.lists(st.tuples(ids_below, ids_below), max_size=4),
    seed=st.integers(0, 2**32),
)  # fmt: skip
def test_a_penalised_law_sees_prompt_response_and_the_drafts_before_it(params, prompt, blocks, seed):
    """One object for the whole response: drafted id by id, then examined, then grown by what was kept or not."""
    law, response = shaping_of(params, len(prompt)), []
    assert isinstance(law, Penalised)
    for number, (draft, settled) in enumerate(blocks):
        logits = random_logits(seed + number, len(draft) + 1, V)
        before, drafted = [*prompt, *response], torch.tensor(draft, dtype=torch.long)
        expected = [directly(row, params, prompt, response + draft[:i]) for i, row in enumerate(logits)]
        for place in range(len(draft)):  # as the drafter asks: one row, all that is drafted so far behind it
            torch.testing.assert_close(law(logits[place : place + 1], before, drafted[:place])[0], expected[place])
        torch.testing.assert_close(law(logits, before, drafted), torch.stack(expected))
        response += settled


@given(data=st.data(), n=st.integers(1, 4), m=st.integers(0, 3), seed=st.integers(0, 2**32))
def test_rows_with_different_parameters_do_not_mix(data, n, m, seed):
    params = [data.draw(params_of) for _ in range(n)]
    prompts, responses = ([data.draw(ids_below) for _ in range(n)] for _ in range(2))
    lengths = [data.draw(st.integers(0, m)) for _ in range(n)]
    drafts = torch.randint(V, (n, m), generator=torch.Generator().manual_seed(seed))
    logits, keep = random_logits(seed, n, m + 1, V), [length + 1 for length in lengths]
    shapings = [shaping_of(one, len(prompt)) for one, prompt in zip(params, prompts)]
    found = laws_of(logits, shapings, [p + r for p, r in zip(prompts, responses)], drafts, lengths, keep).dense()
    for row in range(n):
        for place in range(keep[row]):
            seen = responses[row] + drafts[row, :place].tolist()
            torch.testing.assert_close(found[row, place], directly(logits[row, place], params[row], prompts[row], seen))


@given(row=st.lists(logit, min_size=V, max_size=V), params=params_of, text=ids_below)
def test_the_order_is_that_of_transformers(row, params, text):
    """Presence and frequency penalties apart, which it does not have."""
    params = SamplingParams(
        params.temperature or 1.0, params.top_k, params.top_p, params.min_p, logit_bias=params.logit_bias,
        repetition_penalty=params.repetition_penalty,
    )  # fmt: skip
    theirs = LogitsProcessorList()
    if params.logit_bias:
        theirs.append(SequenceBiasLogitsProcessor({(token,): value for token, value in params.logit_bias}))
    theirs.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    theirs.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        theirs.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        theirs.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        theirs.append(MinPLogitsWarper(params.min_p))
    logits = torch.tensor([row]) + torch.linspace(0, 1e-3, V)  # no ties, which are kept here and cut there
    expected = theirs(torch.tensor([text], dtype=torch.long), logits.clone()).softmax(-1)
    shaping = shaping_of(params, len(text))
    torch.testing.assert_close(
        laws_of(logits[None], [shaping], [text], torch.empty(1, 0, dtype=torch.long), [0], [1]).dense()[0], expected
    )


@given(row=st.lists(logit, min_size=V, max_size=V), bias=bias_of)
def test_a_bias_is_added_to_the_logits(row, bias):
    logits = torch.tensor(row)
    expected = logits + torch.tensor([bias.get(i, 0.0) for i in range(V)])
    assert torch.equal(biased(logits, SamplingParams(logit_bias=bias)), expected)
    params = SamplingParams(0.8, top_k=4, logit_bias=bias)
    torch.testing.assert_close(probabilities(logits, params), probabilities(expected, SamplingParams(0.8, top_k=4)))


def test_a_bias_beyond_the_vocabulary_is_refused():
    with pytest.raises(InvalidParameter, match="names the id 9, but the vocabulary has 8"):
        probabilities(torch.zeros(V), SamplingParams(logit_bias={9: 1.0}))


# --- in the engine ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pairs():
    verifier, drafter = tiny_model(0, layers=1), tiny_model(1, hidden=8, layers=1)
    return [load_pair(verifier, draft) for draft in (drafter, "prompt-lookup")]


def laws_behind(model, params, prompt, response, count):
    """``[count + 1, V]``: behind all but the last ``count`` ids of the response, and so on, up to behind all of it."""
    logits = model.plain(torch.tensor([*prompt, *response]))[-count - 1 :]
    begin = len(response) - count
    return torch.stack([directly(row, params, prompt, response[: begin + i]) for i, row in enumerate(logits)])


@torch.inference_mode()
def require_laws_of_its_own_text(pair, out, params):
    """Every p and q in the events, of refused and unexamined drafts too, against plain forwards."""
    for event in out.events:
        block, text = len(event.draft), [*out.ids[: event.position], *event.draft]
        q = laws_behind(pair.verifier, params, out.prompt_ids, text, block)
        p = torch.ones_like(q)
        if hasattr(pair.drafter, "model"):
            p = laws_behind(pair.drafter.model, params, out.prompt_ids, text, block)
        for place, token in enumerate(event.draft):
            assert event.q[place] == pytest.approx(float(q[place, token]), abs=1e-4)
            assert event.p[place] == pytest.approx(float(p[place, token]), abs=1e-4)
        if event.emitted is not None:
            assert event.q_emitted == pytest.approx(float(q[event.kept, event.emitted]), abs=1e-4)


@pytest.mark.parametrize("which", [0, 1], ids=["drafter", "prompt lookup"])
def test_drafter_and_verifier_see_their_own_text_only(pairs, which):
    pair = pairs[which]

    @settings(max_examples=20)
    @given(data=st.data(), seed=st.integers(0, 10**6), m=st.integers(0, 5))
    def run(data, seed, m):
        params = [data.draw(unfiltered_params_of) for _ in range(3)]
        prompts = [[3, 1, 4, 3, 1], [5, 5], [2, 7, 2, 7, 1, 2]]
        requests = [
            Request(prompt, {**asdict(one), "logit_bias": dict(one.logit_bias)}) for prompt, one in zip(prompts, params)
        ]
        outputs = pair.generate(requests, rule=Cactus(0.5), m=m, max_new_tokens=12, seed=seed)
        for out, one in zip(outputs, params):
            require_laws_of_its_own_text(pair, out, one)

    run()


@pytest.mark.parametrize("penalty", [0.6, 1.3, 2.5])
def test_greedy_with_a_repetition_penalty_equals_transformers_own(penalty):
    verifier, drafter = tiny_model(0, vocabulary=64), tiny_model(1, hidden=8, layers=1, vocabulary=64)
    by_model, by_lookup = (load_pair(verifier, draft) for draft in (drafter, "prompt-lookup"))
    prompts, expected = [[3, 1, 4], [9, 9, 2, 60, 9, 9, 2]], []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        found = verifier.generate(ids, do_sample=False, repetition_penalty=penalty, max_new_tokens=40)
        expected.append(found[0, len(prompt) :].tolist())
    for pair, m in [(by_model, 0), (by_model, 1), (by_model, 4), (by_lookup, 4)]:
        options = {"m": m, "max_new_tokens": 40, "temperature": 0, "repetition_penalty": penalty}
        assert [list(out.ids) for out in pair.generate(prompts, **options)] == expected
        assert list(pair.generate(prompts[0], **options).ids) == expected[0]


@pytest.mark.parametrize("which", [0, 1], ids=["drafter", "prompt lookup"])
@pytest.mark.parametrize("rule", [Lossless(), Cactus(2.0), BoundedRatio(5.0), BoundedRatio(5.0, "shift")])
def test_a_forbidden_id_is_never_emitted(pairs, which, rule):
    """Not even where the text before is full of it, so that it is what a lookup drafts."""
    prompt, pair = [1, 2, 3, 1, 2, 3, 1, 2], pairs[which]
    options = {"rule": rule, "m": 4, "max_new_tokens": 25, "seed": 0, "rows": 16}
    free = pair.generate([prompt] * 16, **options)
    assert sum(out.ids.count(3) for out in free) > 5
    bias = {3: -math.inf, 5: -math.inf}
    outputs = pair.generate([prompt] * 16, logit_bias=bias, repetition_penalty=0.8, **options)
    assert not {3, 5} & {token for out in outputs for token in out.ids}
    drafted = {token for out in outputs for event in out.events for token in event.draft}
    assert (3 in drafted) == (which == 1)


def test_a_bias_that_leaves_one_id_decides(pairs):
    bias = dict.fromkeys(set(range(V)) - {6}, -math.inf)
    for pair in pairs:
        out = pair.generate([1, 2], logit_bias=bias, m=3, max_new_tokens=9)
        assert out.ids == (6,) * 9
        assert [token.logprob for token in out.logprobs] == [0.0] * 9


def test_penalties_and_biases_change_the_text(pairs):
    """Strong ones, at temperature 0, where the direction can be told."""
    free = pairs[0].generate([1, 2], temperature=0, m=3, max_new_tokens=8)
    never_twice = pairs[0].generate([1, 2], temperature=0, m=3, max_new_tokens=8, presence_penalty=1e6)
    assert len(set(free.ids)) < 8
    assert sorted(never_twice.ids) == list(range(V))
    even = pairs[0].generate([1, 2], temperature=0, m=3, max_new_tokens=3 * V, frequency_penalty=1e6)
    assert [even.ids.count(i) for i in range(V)] == [3] * V
    always = pairs[0].generate([1, 2], temperature=0, m=3, max_new_tokens=8, frequency_penalty=-1e6)
    assert len(set(always.ids)) == 1
    unlike_the_prompt = pairs[0].generate([1, 2], temperature=0, m=3, max_new_tokens=1, logit_bias={4: 1e3})
    assert unlike_the_prompt.ids == (4,)
