import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cactus_decoding.integrations.vllm.relaxation import Relaxation
from cactus_decoding.integrations.vllm.shift import Dials, lift, log_total, raised, write
from cactus_decoding.rules import BoundedRatio, Cactus
from tests.tiny import laws

CPU = torch.device("cpu")
EDGES = [0.0, 5e-324, 1e-300, 1e-30, 0.5, 1.0 - 1e-12, math.nextafter(1.0, 0.0), 1.0]
cactus = st.builds(
    Cactus,
    st.floats(1e-6, 50) | st.sampled_from([1e-300, 1e9]),
    st.sampled_from(["second_order", "exact"]),
    max_ratio=st.none() | st.floats(1.01, 1e6),
)
ratio = st.builds(BoundedRatio, st.floats(1.01, 1e6), st.just("shift"))
# all that a request can be: lossless ones have no relaxation
relaxation = st.none() | st.builds(Relaxation, cactus | ratio)
probability = st.floats(0, 1) | st.sampled_from(EDGES)


def rows(batch, each=1):
    """The dials of a batch with so many open rows per request."""
    owner = torch.arange(len(batch)).repeat_interleave(each)
    return Dials.of(batch, CPU).rows(owner, torch.ones_like(owner, dtype=torch.bool))


def of_rule(q, one):
    """The rule's own gamma, never below q."""
    return q if one is None else torch.maximum(one.rule.target(torch.ones_like(q), q), q)


@given(batch=st.lists(relaxation, min_size=1, max_size=5), data=st.data())
def test_a_mixed_batch_is_raised_as_each_rule_says(batch, data):
    q = torch.tensor(data.draw(st.lists(probability, min_size=4, max_size=4)), dtype=torch.float64)
    found = raised(q.repeat(len(batch)), rows(batch, 4)).view(len(batch), 4)
    for one, gamma in zip(batch, found):
        torch.testing.assert_close(gamma, of_rule(q, one), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize(
    "one",
    [
        Relaxation(Cactus(0.25)),
        Relaxation(Cactus(0.25, max_ratio=4.0)),
        Relaxation(Cactus(0.25, "exact")),
        Relaxation(Cactus(0.25, "exact", max_ratio=4.0)),
        Relaxation(BoundedRatio(4.0, "shift")),
    ],
    ids=repr,
)
def test_the_ends_of_the_interval_stay(one):
    q = torch.tensor(EDGES, dtype=torch.float64)
    gamma = raised(q, rows([one], len(q)))
    assert gamma[0] == 0.0  # what the verifier excludes is not brought back, and gamma is a number
    assert gamma[-1] == 1.0
    assert bool((gamma >= q).all())
    assert bool((gamma <= 1.0).all())


@given(q=probability, one=relaxation)
def test_closed_rows_are_lossless(q, one):
    q = torch.full((1,), q, dtype=torch.float64)
    closed = Dials.of([one], CPU).rows(torch.tensor([0]), torch.tensor([False]))
    assert torch.equal(raised(q, closed), q)


def test_rows_read_the_dials_of_their_own_request():
    batch = [None, Relaxation(Cactus(0.5, "exact")), Relaxation(BoundedRatio(4.0, "shift"))]
    dials = Dials.of(batch, CPU).rows(torch.tensor([2, 1, 1, 0, 2]), torch.tensor([True, True, False, True, False]))
    q = torch.full((5,), 0.1, dtype=torch.float64)
    exact = Cactus(0.5, "exact").target(q[:1], q[:1]).item()
    assert raised(q, dials).tolist() == [0.4, exact, 0.1, 0.1, 0.1]


# the shift


def shifted(logits, n, dials):
    """The logits with the drafted tokens lifted, and the lift."""
    lifted = lift(logits, n, dials)
    moved = logits.clone()
    write(moved, n, lifted.lifted)
    return moved, lifted


@given(pair=laws(count=1), one=relaxation, data=st.data())
def test_the_softmax_of_the_shifted_logits_is_h(pair, one, data):
    (q,) = pair
    n = data.draw(st.integers(0, len(q) - 1))
    logits = (q.log() + data.draw(st.floats(-30, 30))).float()[None]
    moved, lifted = shifted(logits, torch.tensor([n]), rows([one]))
    q = logits[0].double().softmax(0)
    gamma = of_rule(q[n], one)
    h = q * torch.where(q[n] < 1.0, (1.0 - gamma) / (1.0 - q[n]).clamp_min(1e-300), 1.0)
    h[n] = gamma
    # the square root has no slope bound at 0, so what float32 does to q(n) weighs more in gamma where delta is large
    assert (moved[0].double().softmax(0) - h).abs().max().item() < 1e-6 * max(1.0, gamma.item())
    assert lifted.q.item() == pytest.approx(q[n].item(), rel=1e-5, abs=1e-9)
    others = torch.arange(len(q)) != n
    assert torch.equal(moved[0, others], logits[0, others])
    assert torch.equal(moved[0].isinf(), logits[0].isinf())


def test_a_vocabulary_of_real_size_in_float32():
    generator = torch.Generator().manual_seed(0)
    logits = 3.0 * torch.randn(64, 50_000, generator=generator)
    n = logits.topk(8).indices[torch.arange(64), torch.arange(64) % 8]
    moved, _ = shifted(logits, n, rows([Relaxation(Cactus(0.25, "exact"))], 64))
    q = logits.double().softmax(1).gather(1, n[:, None])[:, 0]
    gamma = Cactus(0.25, "exact").target(q, q)
    assert (moved.double().softmax(1).gather(1, n[:, None])[:, 0] - gamma).abs().max().item() < 1e-6


RELAXED = [
    Relaxation(Cactus(0.5)),
    Relaxation(Cactus(0.5, "exact")),
    Relaxation(Cactus(5.0, max_ratio=2.0)),
    Relaxation(BoundedRatio(4.0, "shift")),
]


@pytest.mark.parametrize("one", RELAXED, ids=repr)
@pytest.mark.parametrize(
    ("row", "n"),
    [
        ([0.0, -math.inf, 1.0], 1),
        ([0.0, 1.0, 2.0], -1),
        ([-math.inf, 3.0, -math.inf], 1),
        ([-200.0, 3.0, -200.0], 1),
        ([math.nan, 1.0, 2.0], 1),
        ([1.0, math.nan, 2.0], 1),
        ([math.inf, 1.0, 2.0], 1),
        ([1.0, math.inf, 2.0], 1),
        ([-math.inf, -math.inf, -math.inf], 1),
    ],
    ids=["excluded", "no draft", "certain", "as good as certain", "NaN", "NaN itself", "inf", "inf itself", "all -inf"],
)
def test_what_cannot_be_lifted_keeps_every_bit(one, row, n):
    logits = torch.tensor([row, [0.0, 1.0, 2.0]])
    moved, _ = shifted(logits, torch.tensor([n, 0]), rows([one], 2))
    assert torch.equal(moved[0].view(torch.int32), logits[0].view(torch.int32))
    assert moved[1, 0] > logits[1, 0]  # and its neighbour is lifted all the same


@given(pair=laws(count=2), data=st.data())
def test_dials_of_0_change_no_bit(pair, data):
    logits = torch.stack(pair).log().float()
    n = torch.tensor([data.draw(st.integers(-1, logits.shape[1] - 1)) for _ in range(2)])
    moved, lifted = shifted(logits, n, rows([None, None]))
    assert torch.equal(moved, logits)
    assert torch.equal(lifted.gamma, lifted.q)


@given(pair=laws(count=3), batch=st.lists(relaxation, min_size=3, max_size=3), data=st.data())
def test_writing_back_restores_every_bit(pair, batch, data):
    logits = torch.stack(pair).log().float()
    before = logits.clone()
    n = torch.tensor([data.draw(st.integers(-1, logits.shape[1] - 1)) for _ in range(3)])
    lifted = lift(logits, n, rows(batch))
    assert torch.equal(logits, before)  # lift itself writes nothing
    write(logits, n, lifted.lifted)
    write(logits, n, lifted.logit)
    assert torch.equal(logits.view(torch.int32), before.view(torch.int32))


@pytest.mark.parametrize("one", RELAXED[:2] + RELAXED[3:], ids=repr)
def test_a_token_that_is_raised_to_1_has_all_of_the_law(one):
    high = (
        Relaxation(BoundedRatio(40.0, "shift"))
        if isinstance(one.rule, BoundedRatio)
        else Relaxation(Cactus(50.0, one.rule.solver))
    )
    moved, lifted = shifted(torch.zeros(1, 10), torch.tensor([3]), rows([high]))
    assert lifted.gamma.item() == 1.0
    assert moved.softmax(1)[0, 3].item() == 1.0
    assert bool(moved.isfinite().all())


@pytest.mark.parametrize("delta", [1e100, 1.7e308])
@pytest.mark.parametrize("solver", ["second_order", "exact"])
def test_an_absurd_budget_raises_all_that_may_come_to_1(delta, solver):
    q = torch.tensor([0.0, 1e-30, 0.5, 1.0], dtype=torch.float64)
    assert raised(q, rows([Relaxation(Cactus(delta, solver))], 4)).tolist() == [0.0, 1.0, 1.0, 1.0]


def test_an_absurd_ratio_raises_all_that_may_come_to_1():
    q = torch.tensor([0.0, 1e-30, 0.5, 1.0], dtype=torch.float64)
    for rule in (BoundedRatio(1.7e308, "shift"), Cactus(1e9, max_ratio=1.7e308)):
        gamma = raised(q, rows([Relaxation(rule)], 4))
        assert gamma[[0, 2, 3]].tolist() == [0.0, 1.0, 1.0]
        assert q[1] < gamma[1] <= 1.0


@pytest.mark.parametrize("shape", [(5, 7), (3, 2**19 + 1), (11, 2**17)], ids=str)
def test_the_total_of_rows_taken_a_few_at_a_time_is_that_of_all_at_once(shape):
    logits = 3.0 * torch.randn(shape, generator=torch.Generator().manual_seed(1))
    logits[0, 1:] = -torch.inf
    assert torch.equal(log_total(logits), torch.logsumexp(logits, 1))
