"""The law of what a batch emits, eight rows at a time, against full enumeration over a vocabulary of 8."""

import torch

from cactus_decoding.drafters import PromptLookup
from cactus_decoding.generation.request import Request
from cactus_decoding.induced import induced_law
from cactus_decoding.rules import BoundedRatio, Cactus, Lossless
from cactus_decoding.sampling import SamplingParams, probabilities
from cactus_decoding.testing import mock_pair, random_table
from tests.tiny import chi_square_p

V = 8
PROMPT = [3]
Q, P = random_table(0, V), random_table(1, V)
PARAMS = [{}, {"temperature": 0.7, "top_p": 0.9}]


def joint_law(rule, params, q=Q):
    """Of the first two tokens, each an examined draft or its replacement."""
    q, p = (probabilities(table.log(), SamplingParams(**params)) for table in (q, P))
    emitted = torch.stack([induced_law(*laws, rule) for laws in zip(p, q)])
    return emitted[PROMPT[-1]].unsqueeze(1) * emitted


def batched(pair, options, responses):
    """Request i with ``options[i % len(options)]``, all in one list, eight at a time."""
    return pair.generate([Request(PROMPT, options[i % len(options)]) for i in range(responses)], rows=8, seed=0)


def counted(outputs):
    counts = torch.zeros(V, V)
    for output in outputs:
        counts[output.ids[0], output.ids[1]] += 1
    return counts.flatten()


def test_at_no_budget_a_batch_emits_the_verifiers_joint_law():
    """Neighbours draft other numbers of tokens, end elsewhere, and use other rules without a budget and parameters."""
    options = [
        {"rule": rule, "m": m, "max_new_tokens": 6 if m == "auto" else 2 + m, **params}
        for m in (0, 1, 2, 5, "auto")
        for rule in (Lossless(), Cactus(0.0), BoundedRatio(1.0))
        for params in PARAMS
    ]
    outputs = batched(mock_pair(Q, P), options, 2400)
    firsts = [probabilities(Q[PROMPT[-1]].log(), SamplingParams(**params)) for params in PARAMS]
    for number, params in enumerate(PARAMS):
        joint = joint_law(Lossless(), params)
        assert (joint.sum(1) - firsts[number]).abs().max() < 1e-9  # the enumeration itself is right
        assert chi_square_p(counted(outputs[number :: len(PARAMS)]), joint.flatten()) > 1e-4
        drafters = joint_law(Lossless(), params, q=P)
        assert 0.5 * (drafters - joint).abs().sum() > 0.3, (
            "drafter and verifier are so alike that the test has no power"
        )
    neighbours = torch.zeros(V, V)
    for first, second in zip(outputs[::2], outputs[1::2]):
        neighbours[first.ids[0], second.ids[0]] += 1
    assert chi_square_p(neighbours.flatten(), torch.outer(*firsts).flatten()) > 1e-4, "neighbours are not independent"


def test_rules_side_by_side_emit_each_its_own_joint_law():
    """With at least two drafts and three tokens to go, both of the first two are examined drafts or recoveries."""
    rules = [Lossless(), Cactus(0.5), BoundedRatio(2.0), BoundedRatio(2.0, "shift")]
    options = [{"rule": rule, "m": m, "max_new_tokens": 1 + m} for m in (2, 3, 5) for rule in rules]
    outputs = batched(mock_pair(Q, P), options, 2400)
    lossless = joint_law(Lossless(), {}).flatten()
    for number, rule in enumerate(rules):
        counts = counted(outputs[number :: len(rules)])
        assert chi_square_p(counts, joint_law(rule, {}).flatten()) > 1e-4
        assert rule.lossless or chi_square_p(counts, lossless) < 1e-4, "the test has no power"


def test_certain_drafts_in_a_batch_emit_the_joint_law():
    """Prompt lookup: what followed in the text before, for one row more, for another less."""
    prompt = [3, 1, 4, 3, 1, 4, 3]
    requests = [Request(prompt, {"m": 1 + i % 4, "max_new_tokens": 3 + i % 3}) for i in range(1200)]
    outputs = mock_pair(Q, PromptLookup()).generate(requests, rows=8, seed=0)
    assert sum(output.stats.examined for output in outputs) > len(outputs)
    joint = Q[3].unsqueeze(1) * Q
    assert chi_square_p(counted(outputs), joint.flatten()) > 1e-4
