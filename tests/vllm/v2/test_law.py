"""The law of what the sampling function of the V2 runner emits under the plugin, in Triton's interpreter."""

from types import SimpleNamespace

import pytest
import torch
from scipy.stats import chisquare

from cactus_decoding.induced import induced_law
from cactus_decoding.integrations.vllm.relaxation import relaxation_of
from cactus_decoding.integrations.vllm.verification import Member, Relaxer, during
from cactus_decoding.rules import BoundedRatio, Cactus

REQUESTS, K, TEMPERATURE = 600, 2, 0.8  # the interpreter takes a twentieth of a second for each
Q = torch.tensor([0.1, 0.4, 0.05, 0.05, 0.3, 0.1, 0.0])
P = torch.tensor([0.05, 0.05, 0.55, 0.1, 0.1, 0.1, 0.05])
UNLIKELY = torch.eye(len(Q))[2]
CASES = [
    ({"cactus_delta": 0.3}, Cactus(0.3), P),
    ({"cactus_delta": 0.3}, Cactus(0.3), UNLIKELY),
    ({"cactus_delta": 0.3, "cactus_rule": "exact"}, Cactus(0.3, solver="exact"), P),
    ({"cactus_rule": "ratio", "cactus_alpha": 4}, BoundedRatio(4, recovery="shift"), UNLIKELY),
]


@pytest.fixture(scope="module")
def kernels(plugin):
    """The module of the kernels; its log1p is CUDA's, which the interpreter does not have."""
    import triton.language as tl
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler_utils as kernels

    kernels.tldevice = SimpleNamespace(log1p=lambda x: tl.log(1.0 + x))
    return kernels


def draw(parameters, p, point_mass):
    """First tokens, accepted lengths and relaxed tokens of many requests of two drafts each."""
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler

    torch.manual_seed(5)
    rows, slots = K + 1, torch.arange(REQUESTS, dtype=torch.int32)
    n = torch.multinomial(p, REQUESTS * K, True).view(REQUESTS, K)
    fed = torch.zeros(REQUESTS, rows, dtype=torch.int64)
    fed[:, 1:] = n
    logits = Q.log().expand(REQUESTS * rows, -1).contiguous().clone()
    before = logits.clone()
    draft_logits = None if point_mass else (p.log() * TEMPERATURE).expand(REQUESTS, K, -1).contiguous()
    batch = [str(request) for request in range(REQUESTS)]
    relaxation = relaxation_of(parameters)
    relaxer = Relaxer({request: Member(relaxation, key) for key, request in enumerate(batch)})

    def sample():
        return rejection_sampler.rejection_sample(
            logits,
            draft_logits,
            fed.flatten(),
            torch.arange(REQUESTS + 1, dtype=torch.int32) * rows,
            torch.arange(REQUESTS * rows),
            slots,
            slots.repeat_interleave(rows),
            torch.arange(rows, dtype=torch.int32).repeat(REQUESTS),
            torch.full((REQUESTS,), TEMPERATURE),
            torch.randint(0, 2**31, (REQUESTS,)),
            K,
        )

    sampled, count = during(relaxer, batch, sample)
    assert torch.equal(logits, before)
    ((_, counts),) = relaxer.ledger._noted
    assert counts[:, 0].eq(K).all()
    return sampled[:, 0], count - 1, counts


@pytest.mark.parametrize(("parameters", "rule", "p"), CASES, ids=str)
def test_the_emitted_law_is_the_induced_one(kernels, parameters, rule, p):
    emitted, accepted, counts = draw(parameters, p, point_mass=p is UNLIKELY)
    law = induced_law(p.double(), Q.double(), rule)
    seen, possible = torch.bincount(emitted, minlength=len(Q)), law > 0
    assert seen[~possible].sum() == 0
    assert 0.1 < (accepted == 0).double().mean() < 0.9  # some are refused
    assert chisquare(seen[possible], law[possible] / law.sum() * REQUESTS).pvalue > 1e-4
    verifier = Q[possible].double().clamp_min(1e-9)  # without the shift it would be this law, which so many tell apart
    assert chisquare(seen[possible], verifier / verifier.sum() * REQUESTS).pvalue < 1e-9
    assert torch.equal(counts[:, 1], accepted.long())
    examined = (accepted + 1).clamp_max(K).sum()
    distance = 0.5 * float((law - Q.double()).abs().sum())
    assert counts[:, 2].sum() / examined == pytest.approx(distance, abs=5 * 0.5 / REQUESTS**0.5)


def test_rows_of_a_request_verify_the_token_fed_behind_them(plugin):
    from cactus_decoding.integrations.vllm.runner_v2 import _drafts

    fed = torch.tensor([9, 1, 2, 8, 7, 3, -1])
    drafts = _drafts(fed, torch.tensor([0, 3, 4, 7], dtype=torch.int32))
    assert drafts.n.tolist() == [1, 2, -1, -1, 3, -1, -1]  # a placeholder is no draft
    assert drafts.owner.tolist() == [0, 0, 0, 1, 2, 2, 2]
    assert drafts.place.tolist() == [0, 1, 2, 0, 0, 1, 2]
