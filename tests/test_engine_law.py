"""The law of what `generate` emits, against full enumeration over a vocabulary of 8."""

from collections import Counter

import pytest
import torch

from cactus_decoding.generation.drafting import StepCosts
from cactus_decoding.generation.loading import load_pair
from cactus_decoding.induced import induced_law
from cactus_decoding.rules import BoundedRatio, Cactus, Lossless
from cactus_decoding.sampling import SamplingParams, probabilities
from tests.tiny import chi_square_p, tiny_model

V = 8
PROMPT = [3, 1]
RESPONSES = 2000


@torch.inference_mode()
def law_after(module, ids, params):
    return probabilities(module(torch.tensor([ids])).logits[0, -1].double(), params)


@torch.inference_mode()
def laws_after(module, contexts):
    """``[n, k] -> [n, V]``."""
    return module(contexts).logits[:, -1].double().softmax(-1)


def emitted(pair, ids, rule, params):
    """The law of the token behind ``ids``: the induced law where it was drafted."""
    q = law_after(pair.verifier.module, ids, params)
    return induced_law(law_after(pair.drafter.model.module, ids, params), q, rule)


def joint_law(pair, rule, params):
    first = emitted(pair, PROMPT, rule, params)
    return torch.stack([first[x] * emitted(pair, [*PROMPT, x], rule, params) for x in range(V)])


def drafters_joint_law(pair, params):
    module = pair.drafter.model.module
    first = law_after(module, PROMPT, params)
    return torch.stack([first[x] * law_after(module, [*PROMPT, x], params) for x in range(V)])


def sample(pair, prompt=PROMPT, responses=RESPONSES, **options):
    """Counts of the first two tokens, and how many drafts were examined; response i has seed i, alone or not."""
    counts = torch.zeros(V, V)
    outputs = pair.generate([prompt] * responses, rows=250, m=2, max_new_tokens=3, seed=0, **options)
    for out in outputs:
        counts[out.ids[0], out.ids[1]] += 1
    return counts.flatten(), sum(out.stats.examined for out in outputs)


@pytest.mark.parametrize("params", [SamplingParams(0.7, top_p=0.9)])
def test_lossless_emits_the_verifiers_joint_law(tiny_pair, params):
    joint = joint_law(tiny_pair, Lossless(), params)
    q = law_after(tiny_pair.verifier.module, PROMPT, params)
    assert (joint.sum(1) - q).abs().max() < 1e-6  # the enumeration itself is right
    counts, _ = sample(tiny_pair, temperature=params.temperature, top_p=params.top_p)
    assert chi_square_p(counts, joint.flatten()) > 1e-4
    distance = 0.5 * (drafters_joint_law(tiny_pair, params) - joint).abs().sum()
    assert distance > 0.3, "drafter and verifier are so alike that the test has no power"


@pytest.mark.parametrize("rule", [Cactus(0.5), BoundedRatio(2.0)])
def test_relaxed_rules_emit_the_joint_induced_law(tiny_pair, rule):
    """With m = 2 and three tokens to go, both of the first two are examined drafts or recoveries from them."""
    params = SamplingParams(0.8)
    counts, _ = sample(tiny_pair, rule=rule, temperature=params.temperature)
    assert chi_square_p(counts, joint_law(tiny_pair, rule, params).flatten()) > 1e-4
    assert chi_square_p(counts, joint_law(tiny_pair, Lossless(), params).flatten()) < 1e-4, "the test has no power"


def test_an_adapted_draft_length_keeps_the_law():
    """The number of drafts follows the response's own past, and the last two tokens still have the verifier's law."""
    pair = load_pair(tiny_model(seed=0, layers=1), tiny_model(seed=1, hidden=8, layers=1))
    pair.step_costs = lambda n: StepCosts(((0, 1.0), (1, 1.4), (2, 1.81), (16, 12.0)))
    outputs = pair.generate([PROMPT] * RESPONSES, rows=4, max_new_tokens=5, seed=0)
    drafted = Counter(len(event.draft) for out in outputs for event in out.events if event.position == 2)
    assert min(drafted[1], drafted[2]) > 100, f"the draft lengths at the third token are {drafted}"
    counts = torch.zeros(V, V)
    for out in outputs:
        counts[out.ids[3], out.ids[4]] += 1
    law = torch.ones(1, dtype=torch.float64)
    contexts = torch.tensor([PROMPT])
    for _ in range(5):
        q = laws_after(pair.verifier.module, contexts)
        law = (law.unsqueeze(1) * q).flatten()
        contexts = torch.cat([contexts.repeat_interleave(V, 0), torch.arange(V).repeat(len(contexts))[:, None]], 1)
    joint = law.view(-1, V * V).sum(0)
    assert chi_square_p(counts.flatten(), joint) > 1e-4


@pytest.mark.parametrize("temperature", [0.5, 0.7, 1.0, 1.5])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_a_drafter_that_is_the_verifier_is_always_accepted(temperature, top_p):
    """Filters applied twice, or to one side only, show here first."""
    pair = load_pair(tiny_model(seed=5, vocabulary=50), tiny_model(seed=5, vocabulary=50))
    out = pair.generate([7, 8], m=5, max_new_tokens=200, temperature=temperature, top_p=top_p, seed=1)
    assert out.stats.acceptance == 1.0
    assert out.stats.refused == 0
    assert out.stats.examined > 100


@pytest.mark.parametrize("rule", [Lossless(), Cactus(0.2, "exact")])
def test_certain_drafts_emit_the_joint_law_too(rule):
    """Prompt lookup: p is a point mass on what followed in the text before; both tokens are examined drafts."""
    module, prompt = tiny_model(seed=0, layers=1), [3, 1, 4, 3, 1, 4, 3, 1]
    pair = load_pair(module, "prompt-lookup")
    counts, examined = sample(pair, prompt, rule=rule)

    def law(ids):
        """What is drafted behind ``ids``: what followed its last three, two or one tokens most recently."""
        q = law_after(module, ids, SamplingParams())
        for size in (3, 2, 1):
            for at in range(len(ids) - 1, size - 1, -1):
                if ids[at - size : at] == ids[-size:]:
                    return induced_law(torch.eye(V, dtype=torch.float64)[ids[at]], q, rule)
        return q

    first = law(prompt)
    joint = torch.stack([first[x] * law([*prompt, x]) for x in range(V)])
    assert examined > RESPONSES
    assert chi_square_p(counts, joint.flatten()) > 1e-4
