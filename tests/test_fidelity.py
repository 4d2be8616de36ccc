import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cactus_decoding.divergences import DIVERGENCES
from cactus_decoding.fidelity import measure, relaxed_share
from cactus_decoding.induced import acceptance, induced_law, induced_law_by_definition
from cactus_decoding.rules import BoundedRatio, Cactus, Lossless
from cactus_decoding.verify import Verdict
from tests.test_rules import EVERY_RULE, IDS
from tests.tiny import laws


@pytest.mark.parametrize("rule", EVERY_RULE, ids=IDS)
@settings(max_examples=25)
@given(pair=laws(most=30))
def test_induced_law_equals_its_definition(rule, pair):
    p, q = pair
    fast, slow = induced_law(p, q, rule), induced_law_by_definition(p, q, rule)
    assert (fast - slow).abs().max().item() < 1e-12
    assert slow.sum().item() == pytest.approx(1.0, abs=1e-12)


BETWEEN = pytest.mark.parametrize("rule", [rule for rule in EVERY_RULE if rule.between], ids=repr)


@BETWEEN
@settings(max_examples=25)
@given(pair=laws(most=30))
def test_the_exchange_rate_acceptance_is_that_of_sps_plus_tv(rule, pair):
    p, q = pair
    found = measure(p, q, rule)
    assert found.acceptance == pytest.approx(found.lossless_acceptance + found.tv, abs=1e-12)


@BETWEEN
@settings(max_examples=25)
@given(pair=laws())
def test_the_emitted_law_lies_between_p_and_q(rule, pair):
    p, q = pair
    law = induced_law(p, q, rule)
    assert bool((law >= torch.minimum(p, q) - 1e-12).all())
    assert bool((law <= torch.maximum(p, q) + 1e-12).all())
    for name in ("kl", "chi2", "js", "tv"):
        assert DIVERGENCES[name].value(law, q).item() <= DIVERGENCES[name].value(p, q).item() + 1e-9


@given(pair=laws(), alpha=st.floats(1.0, 20.0), recovery=st.sampled_from(["exact", "shift"]))
def test_bounded_ratio_bounds_the_real_law(pair, alpha, recovery):
    p, q = pair
    law = induced_law(p, q, BoundedRatio(alpha, recovery))
    assert bool((law <= alpha * q + 1e-12).all())
    assert DIVERGENCES["kl"].value(law.where(q > 0, 0.0), q).item() <= math.log(alpha) + 1e-9


@given(pair=laws())
def test_lossless_emits_q(pair):
    p, q = pair
    for rule in (Lossless(), Cactus(0.0), BoundedRatio(1.0)):
        assert (induced_law(p, q, rule) - q).abs().max().item() < 1e-12


@given(law=laws(count=1), place=st.integers(0, 11), delta=st.floats(0.01, 2))
def test_a_certain_draft_makes_the_budget_exact(law, place, delta):
    """One n only: what is emitted is the target itself, and its KL is the budget or less."""
    (q,) = law
    p = torch.zeros_like(q)
    p[place % len(q)] = 1.0
    if q[place % len(q)] == 0:
        return
    assert measure(p, q, Cactus(delta, solver="exact")).kl <= delta + 1e-9


def test_kl_of_the_emitted_law_can_exceed_the_budget():
    """Why nobody may write that the output is within delta of the verifier."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(200, generator=generator, dtype=torch.float64).softmax(0)
    p = torch.randn(200, generator=generator, dtype=torch.float64).softmax(0)
    assert measure(p, q, Cactus(0.01, solver="exact")).kl > 0.01


def test_large_vocabulary_is_fast_and_sound():
    generator = torch.Generator().manual_seed(0)
    base = 4 * torch.randn(150_000, generator=generator, dtype=torch.float64)
    p, q = (base + torch.randn(150_000, generator=generator, dtype=torch.float64)).softmax(0), base.softmax(0)
    law = induced_law(p, q, Cactus(0.25))
    assert law.sum().item() == pytest.approx(1.0, abs=1e-10)


def test_relaxed_share_counts_examined_tokens_only():
    codes = [Verdict.KEPT, Verdict.RELAXED, Verdict.REFUSED, Verdict.UNEXAMINED, Verdict.IGNORED, Verdict.ABSENT]
    assert relaxed_share(torch.tensor(codes)) == pytest.approx(1 / 3)
    assert math.isnan(relaxed_share(torch.tensor([Verdict.UNEXAMINED])))


@given(pair=laws(), deltas=st.tuples(st.floats(0, 2), st.floats(0, 2)))
def test_a_larger_budget_never_accepts_less(pair, deltas):
    p, q = pair
    small, large = (acceptance(p, q, Cactus(delta)).item() for delta in sorted(deltas))
    assert small <= large + 1e-12
