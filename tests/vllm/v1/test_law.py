"""The law of what vLLM's own sampling function emits under the plugin, on its CPU kernels."""

from types import SimpleNamespace

import pytest
import torch
from scipy.stats import chisquare

from cactus_decoding.induced import induced_law
from cactus_decoding.integrations.vllm.relaxation import relaxation_of
from cactus_decoding.integrations.vllm.verification import Member, Relaxer, during
from cactus_decoding.rules import BoundedRatio, Cactus

DRAWS = 200_000
Q = torch.tensor([0.1, 0.4, 0.05, 0.05, 0.3, 0.1, 0.0])
P = torch.tensor([0.45, 0.1, 0.2, 0.1, 0.05, 0.05, 0.05])
DRAFTS = {"random": P, "point mass": torch.eye(7)[2]}
RULES = [
    ({"cactus_delta": 0.003}, Cactus(0.003)),
    ({"cactus_delta": 0.1}, Cactus(0.1)),
    ({"cactus_delta": 0.1, "cactus_rule": "exact"}, Cactus(0.1, solver="exact")),
    ({"cactus_delta": 0.5, "cactus_max_ratio": 1.5}, Cactus(0.5, max_ratio=1.5)),
    ({"cactus_rule": "ratio", "cactus_alpha": 1.5}, BoundedRatio(1.5, recovery="shift")),
]


@pytest.fixture(scope="module")
def kernels(engine_of):
    """vLLM's kernels for CPU, which the first engine puts in the place of Triton's."""
    engine_of("greedy")


def draw(parameters, p, point_mass):
    """Tokens of the first place, whether it was accepted, and the relaxed ones: each draw is a request of its own."""
    import vllm.v1.sample.rejection_sampler as vllm_sampler

    torch.manual_seed(7)
    n = torch.multinomial(p, DRAWS, True).to(torch.int32)
    logits = Q.log().expand(DRAWS, -1).contiguous().clone()
    before = logits.clone()
    metadata = SimpleNamespace(all_greedy=False, all_random=True, temperature=torch.ones(DRAWS), generators={})
    batch = [str(request) for request in range(DRAWS)]
    relaxation = relaxation_of(parameters)
    relaxer = Relaxer({request: Member(relaxation, key) for key, request in enumerate(batch)} if relaxation else {})

    def sample():
        return vllm_sampler.rejection_sample(
            n,
            [1] * DRAWS,
            1,
            torch.arange(1, DRAWS + 1, dtype=torch.int32),
            None if point_mass else p.expand(DRAWS, -1).contiguous(),
            logits,
            torch.zeros(DRAWS, 1, dtype=torch.int32),
            metadata,
        )

    emitted = during(relaxer, batch, sample)
    assert torch.equal(logits, before), "the logits, from which vLLM reads log-probabilities, are put back"
    relaxed = sum(int(counts[:, 2].sum()) for _, counts in relaxer.ledger._noted)
    return emitted[:, 0].long(), emitted[:, 1] != -1, relaxed


@pytest.mark.parametrize("drafts", DRAFTS)
@pytest.mark.parametrize(("parameters", "rule"), RULES, ids=str)
def test_the_emitted_law_is_the_induced_one(kernels, parameters, rule, drafts):
    p = DRAFTS[drafts].double()
    q = Q.double()
    emitted, accepted, relaxed = draw(parameters, DRAFTS[drafts], drafts == "point mass")
    law = induced_law(p, q, rule)
    seen = torch.bincount(emitted, minlength=len(Q))
    possible = law > 0
    assert seen[~possible].sum() == 0
    assert chisquare(seen[possible], law[possible] / law.sum() * DRAWS).pvalue > 1e-4
    distance = 0.5 * float((law - q).abs().sum())
    lossless = float(torch.minimum(p, q).sum())
    error = 5 * 0.5 / DRAWS**0.5
    assert accepted.double().mean() == pytest.approx(lossless + distance, abs=error)  # the exchange rate
    assert relaxed / DRAWS == pytest.approx(distance, abs=error)  # and its meter


@pytest.mark.parametrize("drafts", DRAFTS)
def test_at_zero_the_law_is_the_verifiers(kernels, drafts):
    emitted, _, _ = draw({"cactus_delta": 0}, DRAFTS[drafts], drafts == "point mass")
    seen, possible = torch.bincount(emitted, minlength=len(Q)), Q > 0
    assert chisquare(seen[possible], Q[possible].double() / Q.double().sum() * DRAWS).pvalue > 1e-4


def test_on_cpu_each_draft_gets_the_settings_of_its_request(kernels):
    import vllm.v1.sample.rejection_sampler as vllm_sampler

    values, ends = torch.tensor([0.5, 0.0, 2.0]), torch.tensor([2, 2, 5], dtype=torch.int32)
    found = vllm_sampler.expand_batch_to_tokens(values, ends, 5, replace_from=0, replace_to=1)
    assert found.tolist() == [0.5, 0.5, 2.0, 2.0, 2.0]
    ends = torch.tensor([1, 3, 4], dtype=torch.int32)
    assert vllm_sampler.expand_batch_to_tokens(values, ends, 4, 0, 1).tolist() == [0.5, 1.0, 1.0, 2.0]
