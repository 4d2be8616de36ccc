import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cactus_decoding.divergences import DIVERGENCES, get_divergence
from cactus_decoding.errors import InvalidParameter
from tests.tiny import laws

KL = DIVERGENCES["kl"]
NAMES = sorted(DIVERGENCES)
DTYPES = [torch.float32, torch.float64]
# q(n): "second order / exact" at delta = .01, .1, .5, 1; recomputed independently with bisection
REFERENCE = {
    1e-6: [(0.0001, 0.0016), (0.0004, 0.0119), (0.0010, 0.0507), (0.0014, 0.0951)],
    1e-4: [(0.0015, 0.0038), (0.0046, 0.0226), (0.0101, 0.0861), (0.0142, 0.1555)],
    0.01: [(0.0241, 0.0270), (0.0545, 0.0805), (0.1095, 0.2218), (0.1507, 0.3573)],
    0.1: [(0.1424, 0.1450), (0.2342, 0.2569), (0.4000, 0.4951), (0.5243, 0.6892)],
    0.3: [(0.3648, 0.3660), (0.5049, 0.5146), (0.7583, 0.7844), (0.9481, 0.9595)],
    0.5: [(0.5707, 0.5706), (0.7236, 0.7198), (1.0, 0.9518), (1.0, 1.0)],
    0.9: [(0.9424, 0.9396), (1.0, 0.9991), (1.0, 1.0), (1.0, 1.0)],
}
budget = st.one_of(st.floats(1e-6, 20.0), st.sampled_from([1e-9, 0.01, 0.1, 0.25, 0.5, 1.0]))
probability = st.one_of(st.floats(1e-12, 1.0), st.floats(0.0, 1.0), st.sampled_from([0.0, 1.0, 0.5, 1e-30]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("q", REFERENCE)
def test_reference_table(q, dtype):
    for delta, (second_order, exact) in zip([0.01, 0.1, 0.5, 1.0], REFERENCE[q]):
        q_n = torch.tensor([q], dtype=dtype)
        assert KL.raise_second_order(q_n, delta).item() == pytest.approx(second_order, abs=5.1e-5)
        assert KL.raise_exact(q_n, delta).item() == pytest.approx(exact, abs=5.1e-5)


@pytest.mark.parametrize(
    ("delta", "overshoot"), [(0.01, 0.0098), (0.1, 0.0823), (0.25, 0.1555), (0.5, 0.1931), (0.75, 0.1663), (1, 0.0986)]
)
def test_second_order_overshoots_most_where_gamma_reaches_one(delta, overshoot):
    q = torch.linspace(1e-4, 1 - 1e-4, 20001, dtype=torch.float64)
    excess = KL.coin(KL.raise_second_order(q, delta), q) - delta
    worst = int(excess.argmax())
    assert excess[worst].item() == pytest.approx(overshoot, abs=1e-4)
    assert q[worst].item() == pytest.approx(1 / (1 + 2 * delta), abs=1e-3)


@given(q=st.floats(1e-12, 1 - 1e-9), delta=budget)
def test_second_order_keeps_the_budget_where_gamma_is_at_most_one_minus_q(q, delta):
    q_n = torch.tensor([q], dtype=torch.float64)
    gamma = KL.raise_second_order(q_n, delta)
    if gamma.item() <= 1 - q:  # wider than Corollary 6, which asks for gamma <= 1/2
        assert KL.coin(gamma, q_n).item() <= delta + 1e-9


@given(q=st.floats(1e-12, 1 - 1e-9), delta=budget)
def test_corollary_6(q, delta):
    q_n = torch.tensor([q], dtype=torch.float64)
    gamma = KL.raise_second_order(q_n, delta)
    if gamma.item() <= 0.5:
        assert KL.coin(gamma, q_n).item() <= delta + 1e-9


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
@given(q=probability, delta=budget)
def test_exact_raise_spends_the_budget_and_no_more(name, dtype, q, delta):
    divergence = DIVERGENCES[name]
    q_n = torch.tensor([q], dtype=dtype)
    gamma = divergence.raise_exact(q_n, delta)
    assert gamma.dtype == dtype
    assert q_n.item() <= gamma.item() <= 1.0
    if q_n.item() == 0.0:
        assert gamma.item() == 0.0
        return
    assert divergence.coin(gamma.double(), q_n.double()).item() <= delta + 1e-6
    higher = (gamma.double() + 1e-5).clamp_max(1.0)
    if gamma.item() < 1.0 - 1e-5 and name != "tv":
        assert divergence.coin(higher, q_n.double()).item() > delta * (1 - 1e-3) - 1e-7


@pytest.mark.parametrize("name", NAMES)
@given(q=probability)
def test_no_budget_is_no_raise(name, q):
    q_n = torch.tensor([q], dtype=torch.float64)
    assert torch.equal(DIVERGENCES[name].raise_exact(q_n, 0.0), q_n)
    assert torch.equal(DIVERGENCES[name].raise_second_order(q_n, 0.0), q_n)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "tv"])
@pytest.mark.parametrize("q", [0.05, 0.3, 0.6])
def test_raises_agree_for_a_small_budget(name, q):
    q_n = torch.tensor([q], dtype=torch.float64)
    second, exact = (
        f(q_n, 1e-6).item() - q for f in (DIVERGENCES[name].raise_second_order, DIVERGENCES[name].raise_exact)
    )
    assert second == pytest.approx(exact, rel=5e-3)


@given(q=st.floats(1e-6, 1.0), delta=st.floats(1e-3, 20))
def test_kl_budget_of_minus_ln_q_makes_a_token_certain(q, delta):
    gamma = KL.raise_exact(torch.tensor([q], dtype=torch.float64), delta).item()
    if delta >= -math.log(q) + 1e-9:
        assert gamma == 1.0
    if delta <= -math.log(q) - 1e-6:
        assert gamma < 1.0


@pytest.mark.parametrize("name", NAMES)
@given(pair=laws())
def test_values_follow_their_definition(name, pair):
    h, q = pair
    definition = {
        "kl": lambda a, b: a * math.log(a / b) if a and b else (math.inf if a else 0.0),
        "reverse-kl": lambda a, b: b * math.log(b / a) if a and b else (math.inf if b else 0.0),
        "chi2": lambda a, b: (a - b) ** 2 / b if b else (math.inf if a else 0.0),
        "hellinger2": lambda a, b: (math.sqrt(a) - math.sqrt(b)) ** 2,
        "js": lambda a, b: sum(0.5 * x * math.log(2 * x / (a + b)) for x in (a, b) if x),
        "tv": lambda a, b: 0.5 * abs(a - b),
    }[name]
    expected = sum(definition(a, b) for a, b in zip(h.tolist(), q.tolist()))
    assert DIVERGENCES[name].value(h, q).item() == pytest.approx(expected, abs=1e-12, rel=1e-9)
    assert DIVERGENCES[name].value(q, q).item() == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "tv"])
def test_curvature_is_the_second_derivative_at_one(name):
    t = torch.tensor([1 - 1e-5, 1 + 1e-5], dtype=torch.float64)
    slope = DIVERGENCES[name].slope(t)
    assert ((slope[1] - slope[0]) / 2e-5).item() == pytest.approx(DIVERGENCES[name].curvature, rel=1e-5)


def test_elementwise_over_any_shape():
    q = torch.rand(3, 4, 5)
    for divergence in DIVERGENCES.values():
        whole = divergence.raise_exact(q, 0.3)
        assert whole.shape == q.shape
        assert torch.equal(whole[1, 2], divergence.raise_exact(q[1, 2], 0.3))


@pytest.mark.parametrize("delta", [-0.1, math.nan, math.inf, "1"])
def test_a_budget_must_be_a_finite_number_of_at_least_zero(delta):
    for raised in (KL.raise_exact, KL.raise_second_order, DIVERGENCES["tv"].raise_exact):
        with pytest.raises(InvalidParameter, match="at least 0"):
            raised(torch.tensor([0.5]), delta)


def test_unknown_divergence_lists_the_known_ones():
    with pytest.raises(InvalidParameter, match="'wasserstein'.*hellinger2, js, kl"):
        get_divergence("wasserstein")


@pytest.mark.parametrize("name", sorted(DIVERGENCES))
def test_each_entry_may_have_a_budget_of_its_own(name):
    q = torch.tensor([0.0, 1e-6, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0], dtype=torch.float64).repeat(4)
    budgets = torch.tensor([0.0, 0.01, 0.3, 1.0], dtype=torch.float64).repeat_interleave(8)
    divergence = DIVERGENCES[name]
    alone = torch.cat([divergence.raise_exact(q[:8], float(budget)) for budget in budgets[::8]])
    assert torch.equal(divergence.raise_exact(q, budgets), alone)
