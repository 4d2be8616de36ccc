"""Whole engines of vLLM with the plugin: greedy and random drafts of a model, and n-grams."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

import cactus_decoding as cactus
from cactus_decoding.drafters.model import ModelDrafter, ModelDraftRows
from cactus_decoding.induced import induced_law
from cactus_decoding.integrations.vllm import cpu
from cactus_decoding.integrations.vllm.ledger import Ledger
from cactus_decoding.sampling import SamplingParams, probabilities
from tests.vllm.engines import SPECULATIONS, M, accepted_length, generate, prompts, sampling, tokens

NAMES = list(SPECULATIONS)
NO_TOKEN = {"cactus_max_relaxed": 0}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_at_zero_every_token_is_that_of_vllm_without_the_plugin(engine_of, plugin, name, temperature):
    llm, ids = engine_of(name), prompts(16)

    def emitted(extra):
        torch.manual_seed(0)  # vLLM draws random drafts without regard to a request's seed
        return tokens(llm, ids, [sampling(seed, temperature=temperature, extra_args=extra) for seed in range(16)])

    nothing = ({"cactus_delta": 0}, {"cactus_rule": "ratio", "cactus_alpha": 1}, {"cactus_delta": 1, **NO_TOKEN})
    with_plugin = [emitted(extra) for extra in (None, *nothing)]
    plugin.unregister()
    cpu.POINT.wrap(cpu.expanded)  # without which vLLM on CPU samples from memory that was never written
    try:
        without = emitted(None)
    finally:
        plugin.register()
    assert with_plugin == [without] * 4


@pytest.mark.parametrize("name", NAMES)
def test_acceptance_grows_with_delta(engine_of, name):
    llm, ids = engine_of(name), prompts(32)
    lengths = []
    for delta in (0.0, 0.01, 0.1, 1.0):
        _, metrics = generate(llm, ids, [sampling(s, extra_args={"cactus_delta": delta}) for s in range(32)])
        lengths.append(accepted_length(metrics))
    print(f"{name}: accepted drafts per verification at 0, .01, .1, 1: {[round(x, 2) for x in lengths]}")
    assert lengths == sorted(lengths)
    assert lengths[-1] > 1.2 * lengths[0]


MIXED = [
    {"extra_args": None},
    {"extra_args": {"cactus_delta": 0.1}},
    {"extra_args": {"cactus_delta": 1}},
    {"temperature": 0.0, "extra_args": {"cactus_delta": 1}},
    {"temperature": 0.7, "top_p": 0.9, "extra_args": {"cactus_delta": 1, "cactus_rule": "exact"}},
    {"extra_args": {"cactus_rule": "ratio", "cactus_alpha": 4}},
    {"extra_args": {"cactus_delta": 1, "cactus_max_relaxed": 2}},
    {"temperature": 0.0},
]


@pytest.mark.parametrize("name", ["greedy", "ngram"])
def test_a_mixed_batch_leaves_each_request_as_it_is_alone(engine_of, name):
    llm, ids = engine_of(name), prompts(len(MIXED))
    params = [sampling(seed, **settings) for seed, settings in enumerate(MIXED)]
    together = tokens(llm, ids, params)
    assert together == [tokens(llm, [prompt], [own])[0] for prompt, own in zip(ids, params)]
    assert together[3] == tokens(llm, [ids[3]], [sampling(3, temperature=0.0)])[0]  # no effect at temperature 0


def test_a_mixed_batch_of_random_drafts_leaves_acceptance_as_it_is_alone(engine_of):
    """Their texts cannot be compared: vLLM draws random drafts off one stream for the whole batch."""
    llm, ids, deltas = engine_of("probabilistic"), prompts(96, seed=41), (0.0, 0.1, 1.0)
    mixed = [sampling(s, extra_args={"cactus_delta": deltas[s % 3]}) for s in range(96)]
    _, together = generate(llm, ids, mixed)
    for place, delta in enumerate(deltas):
        _, alone = generate(llm, ids, [sampling(s, extra_args={"cactus_delta": delta}) for s in range(96)])
        (a, error_a), (b, error_b) = ratio(steps_of(together[place::3])), ratio(steps_of(alone))
        assert abs(a - b) < 3.5 * math.hypot(error_a, error_b)


def relaxed_by(llm):
    """Relaxed tokens of each request, off the plugin's own books; the last step is read when the next one comes."""
    ledger = llm.llm_engine.model_executor.driver_worker.worker.model_runner._cactus_relaxer.ledger
    ledger._read()
    return {name: counts.relaxed for name, counts in ledger.requests.items()}, ledger


def test_a_cap_on_relaxed_tokens_holds(engine_of, monkeypatch):
    llm, ids = engine_of("greedy"), prompts(32)
    monkeypatch.setattr(Ledger, "settle", lambda ledger, idle: False)  # which forgets requests that ended
    found = {}
    for cap in (None, 3, 1):
        extra = {"cactus_delta": 1, **({} if cap is None else {"cactus_max_relaxed": cap})}
        before = set(relaxed_by(llm)[0])
        _, metrics = generate(llm, ids, [sampling(seed, extra_args=extra) for seed in range(32)])
        relaxed = [value for name, value in relaxed_by(llm)[0].items() if name not in before]
        assert len(relaxed) == 32
        found[cap] = relaxed, accepted_length(metrics)
    assert max(found[None][0]) > 3  # so that the caps do something
    assert max(found[3][0]) == 3
    assert max(found[1][0]) == 1
    assert found[None][1] > found[3][1] > found[1][1]


def test_drafts_are_counted_as_vllm_counts_them_and_some_are_relaxed(engine_of):
    llm, ids = engine_of("probabilistic"), prompts(32, seed=5)
    _, ledger = relaxed_by(llm)
    start = (ledger.total.drafts, ledger.total.draft_tokens, list(ledger.total.accepted), ledger.total.relaxed)
    _, metrics = generate(llm, ids, [sampling(seed, extra_args={"cactus_delta": 0.5}) for seed in range(32)])
    relaxed_by(llm)
    steps = [step for record in metrics for step in record.per_step_accepted]
    assert ledger.total.drafts - start[0] == len(steps)
    assert ledger.total.draft_tokens - start[1] == sum(record.num_draft_tokens for record in metrics)
    by_place = [sum(step > place for step in steps) for place in range(M)]
    assert [now - then for now, then in zip(ledger.total.accepted, start[2] or [0] * M)] == by_place
    assert (
        0.05 < (ledger.total.relaxed - start[3]) / sum(min(step + 1, M) for step in steps) < 0.35
    )  # .15 on our engine


def steps_of(metrics):
    """(accepted, verifications) of each response of vLLM, its last verification left out."""
    return [(sum(record.per_step_accepted[:-1]), len(record.per_step_accepted) - 1) for record in metrics]


class GreedyRows(ModelDraftRows):
    def add(self, shaping):
        super().add(SamplingParams(temperature=0))


class GreedyDrafter(ModelDrafter):
    """Drafts the likeliest token, as vLLM does unless told otherwise, whatever the verifier's temperature."""

    def open(self):
        return GreedyRows(self.model.open(), self.model)


def own_acceptance(name, ids, delta, settings):
    """(accepted, verifications) of each response of this package's engine, its last call left out: it may be short."""
    pair = cactus.load_pair("abacus", dtype="float32")
    if name == "greedy":
        pair = cactus.Pair(pair.verifier, GreedyDrafter(pair.drafter.model), pair.tokenizer, pair.eos)
    outputs = pair.generate(ids, rule=cactus.Cactus(delta), m=M, max_new_tokens=48, ignore_eos=True, seed=5, **settings)
    events = [[event for event in output.events[:-1] if len(event.draft) == M] for output in outputs]
    return [(sum(event.kept for event in own), len(own)) for own in events]


def ratio(pairs):
    """The ratio of two sums and its standard error, by the delta method over responses."""
    over, under = np.array(pairs, dtype=float).T
    mean = over.sum() / under.sum()
    return mean, math.sqrt(((over - mean * under) ** 2).sum()) / under.sum()


ALIKE = [
    ("greedy", {"temperature": 1.0}, 0.0),
    ("greedy", {"temperature": 1.0}, 0.25),
    ("probabilistic", {"temperature": 1.0}, 0.0),
    ("probabilistic", {"temperature": 1.0}, 0.25),
    ("probabilistic", {"temperature": 0.7}, 1.0),
]


@pytest.mark.parametrize(("name", "settings", "delta"), ALIKE)
def test_acceptance_is_that_of_this_packages_own_engine(engine_of, name, settings, delta):
    ids, extra = prompts(96, seed=21), {"cactus_delta": delta}
    _, metrics = generate(engine_of(name), ids, [sampling(s, extra_args=extra, **settings) for s in range(96)])
    (a, error_a), (b, error_b) = ratio(steps_of(metrics)), ratio(own_acceptance(name, ids, delta, settings))
    print(f"{name} {settings} {delta}: vLLM {a:.3f} +- {error_a:.3f}, own engine {b:.3f} +- {error_b:.3f}")
    assert abs(a - b) < 3.5 * math.hypot(error_a, error_b)


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9, "top_k": 20, "temperature": 0.8}], ids=["plain", "filtered"])
def test_the_second_token_of_an_engine_follows_the_induced_law(engine_of, filters):
    """Two thousand times the same prompt. The first token comes of the prompt; the second is the first examined one.

    Given the first token the greedy drafter's token is certain, so the second one's law is h of that token.
    """
    llm, ids, delta = engine_of("greedy"), prompts(1)[0], 0.3
    params = [sampling(seed, max_tokens=2, extra_args={"cactus_delta": delta}, **filters) for seed in range(2000)]
    emitted = tokens(llm, [ids] * len(params), params)
    first = Counter(response[0] for response in emitted).most_common(1)[0][0]
    second = [response[1] for response in emitted if response[0] == first]
    pair = cactus.load_pair("abacus", dtype="float32")
    q, p = (_following(model, [*ids, first], filters) for model in (pair.verifier, pair.drafter.model))
    n = int(p.argmax())
    law = induced_law(torch.eye(len(q), dtype=torch.float64)[n], q, cactus.Cactus(delta))
    assert law[n] > q[n] + 0.01  # it is relaxed, and
    assert law[n] < 0.99  # refused at times
    seen = torch.bincount(torch.tensor(second), minlength=len(q)).double()
    often = law * len(second) >= 5
    pooled = torch.stack([torch.cat([x[often], x[~often].sum()[None]]) for x in (seen, law * len(second))])
    pooled = pooled[:, pooled[1] > 0]
    assert chisquare(pooled[0], pooled[1] * pooled[0].sum() / pooled[1].sum()).pvalue > 1e-4


def _following(model, ids, filters):
    """The law of the token behind these ids, float64."""
    rows = model.open()
    rows.add()
    logits = rows.extend(torch.tensor([ids]), [len(ids)], [1])[:, -1].detach()
    return probabilities(logits.double(), SamplingParams(**filters))[0]
