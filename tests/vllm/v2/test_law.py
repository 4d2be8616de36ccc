"""The law of what the sampling function of the V2 runner emits under the plugin, in Triton's interpreter."""

from types import SimpleNamespace

import pytest
import torch
from scipy.stats import chisquare

from cactus_decoding.induced import induced_law
from cactus_decoding.integrations.vllm.relaxation import relaxation_of
from cactus_decoding.integrations.vllm.verification import Member, Relaxer
from cactus_decoding.rules import BoundedRatio, Cactus

REQUESTS, K, TEMPERATURE = 4000, 2, 0.8
Q = torch.tensor([0.1, 0.4, 0.05, 0.05, 0.3, 0.1, 0.0])
P = torch.tensor([0.4, 0.1, 0.2, 0.1, 0.1, 0.05, 0.05])
CASES = [
    ({"cactus_delta": 0.05}, Cactus(0.05)),
    ({"cactus_delta": 0.05, "cactus_rule": "exact"}, Cactus(0.05, solver="exact")),
    ({"cactus_rule": "ratio", "cactus_alpha": 1.5}, BoundedRatio(1.5, recovery="shift")),
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

    from cactus_decoding.integrations.vllm import runner_v2

    torch.manual_seed(5)
    rows, slots = K + 1, torch.arange(REQUESTS, dtype=torch.int32)
    n = torch.multinomial(p, REQUESTS * K, True).view(REQUESTS, K)
    fed = torch.zeros(REQUESTS, rows, dtype=torch.int64)
    fed[:, 1:] = n
    logits = Q.log().expand(REQUESTS * rows, -1).contiguous().clone()
    before = logits.clone()
    draft_logits = None if point_mass else (p.log() * TEMPERATURE).expand(REQUESTS, K, -1).contiguous()
    batch = [str(request) for request in range(REQUESTS)]
    relaxer = Relaxer(dict.fromkeys(batch, Member(relaxation_of(parameters), 3)))
    token = runner_v2._verifying.set((relaxer, batch))
    try:
        sampled, count = rejection_sampler.rejection_sample(
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
    finally:
        runner_v2._verifying.reset(token)
    assert torch.equal(logits, before)
    ((_, counts),) = relaxer.ledger._noted
    assert counts[:, 0].eq(K).all()
    return sampled[:, 0], count - 1, counts


@pytest.mark.parametrize("point_mass", [False, True], ids=["random", "point mass"])
@pytest.mark.parametrize(("parameters", "rule"), CASES, ids=str)
def test_the_emitted_law_is_the_induced_one(kernels, parameters, rule, point_mass):
    p = torch.eye(7)[2] if point_mass else P
    emitted, accepted, counts = draw(parameters, p, point_mass)
    law = induced_law(p.double(), Q.double(), rule)
    seen, possible = torch.bincount(emitted, minlength=len(Q)), law > 0
    assert seen[~possible].sum() == 0
    assert 0.1 < (accepted == 0).double().mean() < 0.9  # some are refused
    assert chisquare(seen[possible], law[possible] / law.sum() * REQUESTS).pvalue > 1e-4
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
