"""What docs/theory.md states and no other test checks; and that every test it names exists."""

import ast
import math
import re
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import linprog

from cactus_decoding.divergences import DIVERGENCES
from cactus_decoding.fidelity import measure
from cactus_decoding.induced import induced_law
from cactus_decoding.rules import (
    BoundedRatio,
    Cactus,
    Cascade,
    Ears,
    Fly,
    Frontier,
    Fuzzy,
    Interpolation,
    Lossless,
    Mentored,
    TopK,
    Typical,
)
from cactus_decoding.sampling import Purpose, draw, uniforms
from cactus_decoding.verify import verify
from tests.test_rules import EVERY_RULE, IDS
from tests.tiny import chi_square_p, laws, random_laws

ROOT = Path(__file__).parent.parent
KL, TV = DIVERGENCES["kl"], DIVERGENCES["tv"]
positive = laws(zeros=False)


def one_hot(like, n):
    return torch.zeros_like(like).index_fill(0, torch.tensor([n]), 1.0)


def test_every_test_named_on_the_page_exists():
    text = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    named = re.findall(r"`(test_\w+)::(test_\w+)`", text)
    assert len(named) > 30
    for file, test in named:
        tree = ast.parse((ROOT / "tests" / f"{file}.py").read_text(encoding="utf-8"))
        assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{file}::{test}"


@given(pair=laws(most=5))
def test_no_way_to_turn_drafts_into_h_keeps_more(pair):
    """Of all joint laws with margins p and h, the largest mass of "emitted as drafted", by linear programming."""
    p, h = (law.tolist() for law in pair)
    size = len(p)
    margins = [[float(k // size == i) for k in range(size * size)] for i in range(size)]
    margins += [[float(k % size == i) for k in range(size * size)] for i in range(size)]
    kept = [-float(k // size == k % size) for k in range(size * size)]
    best = linprog(kept, A_eq=margins, b_eq=[*p, *h])
    assume(best.status == 0)  # margins that add up to 1 with rounding may seem infeasible
    assert -best.fun == pytest.approx(math.fsum(map(min, p, h)), abs=1e-7)


@pytest.mark.parametrize("name", sorted(DIVERGENCES))
@given(pair=laws(zeros=False), place=st.integers(0, 11))
def test_scaling_the_rest_is_the_cheapest_way_to_raise_one_token(name, pair, place):
    """Any h with the same h(n) is at least as far from q as the one that scales all other tokens alike."""
    h, q = pair
    n, divergence = place % len(q), DIVERGENCES[name]
    scaled = (1 - h[n]) / (1 - q[n]) * q
    scaled[n] = h[n]
    coin = divergence.coin(h[n], q[n]).item()
    assert divergence.value(scaled, q).item() == pytest.approx(coin, abs=1e-9, rel=1e-9)
    assert divergence.value(h, q).item() >= coin * (1 - 1e-9) - 1e-9


@given(pair=positive, place=st.integers(0, 11), delta=st.floats(0.01, 1))
def test_the_target_is_q_with_one_logit_shifted(pair, place, delta):
    _, q = pair
    n = place % len(q)
    gamma = KL.raise_exact(q, delta)[n]
    assume(gamma < 1)
    logits = q.log()
    logits[n] += torch.logit(gamma) - torch.logit(q[n])
    scaled = (1 - gamma) / (1 - q[n]) * q
    scaled[n] = gamma
    assert (logits.softmax(0) - scaled).abs().max().item() < 1e-9


@pytest.mark.parametrize("delta", [0.1, 0.25, 0.5, 1.0, 2.0])
def test_tokens_of_at_least_one_over_1_plus_2_delta_are_kept_for_certain(delta):
    edge = 1 / (1 + 2 * delta)
    q = torch.tensor([edge - 1e-3, edge + 1e-9, (1 + edge) / 2], dtype=torch.float64)
    assert (Cactus(delta).target(q, q) == 1).tolist() == [False, True, True]


@given(pair=laws(), place=st.integers(0, 11), delta=st.floats(0, 2))
def test_a_verifier_that_is_certain_cannot_be_moved(pair, place, delta):
    p, q = pair
    q = one_hot(q, place % len(q))
    for solver in ("second_order", "exact"):
        assert torch.equal(Cactus(delta, solver).target(p, q), q)


@pytest.mark.parametrize("name", sorted(DIVERGENCES))
@given(pair=positive, delta=st.floats(0, 2))
def test_the_emitted_law_is_never_further_from_q_than_the_drafter(name, pair, delta):
    p, q = pair
    divergence = DIVERGENCES[name]
    for rule in (Cactus(delta), Cactus(delta, solver="exact"), BoundedRatio(1 + delta)):
        law = induced_law(p, q, rule)
        assert divergence.value(law, q).item() <= divergence.value(p, q).item() * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("rule", EVERY_RULE, ids=IDS)
@given(pair=laws())
def test_no_rule_buys_acceptance_for_less_than_its_total_variation(rule, pair):
    p, q = pair
    found = measure(p, q, rule)
    assert found.acceptance <= found.lossless_acceptance + found.tv + 1e-12


@pytest.mark.parametrize("rule", [rule for rule in EVERY_RULE if rule.between], ids=repr)
@given(pair=laws())
def test_what_is_recovered_fits_into_what_lossless_recovers(rule, pair):
    """So a lossless decoder can be coupled to agree wherever both refuse."""
    p, q = pair
    h = rule.target(p, q, rule.statistics(p, q))
    recovered = induced_law(p, q, rule) - torch.minimum(p, h)
    assert bool((recovered <= (q - p).clamp_min(0) + 1e-12).all())


@pytest.mark.parametrize("name", sorted(DIVERGENCES))
@given(pair=laws(count=3, zeros=False))
def test_no_law_within_the_budget_accepts_more_than_the_clipped_one(name, pair):
    p, q, other = pair
    budget = DIVERGENCES[name].value(other, q).item()
    accepted = torch.minimum(other, p).sum().item()
    assert accepted <= measure(p, q, Mentored(budget, name)).acceptance + 1e-9


@given(law=laws(count=1, zeros=False), place=st.integers(0, 11), delta=st.floats(0.001, 2))
def test_for_a_certain_draft_exact_cactus_is_mentored_decoding(law, place, delta):
    (q,) = law
    p = one_hot(q, place % len(q))
    cactus, mentored = (induced_law(p, q, rule) for rule in (Cactus(delta, "exact"), Mentored(delta, "kl")))
    assert (cactus - mentored).abs().max().item() < 1e-9


@pytest.mark.parametrize("divergence", ["kl", "reverse-kl", "tv"])
@given(pair=positive, budget=st.floats(0.01, 1))
def test_mentored_decoding_keeps_its_budget_for_the_emitted_law(divergence, pair, budget):
    p, q = pair
    law = induced_law(p, q, Mentored(budget, divergence))
    assert DIVERGENCES[divergence].value(law, q).item() <= budget + 1e-9


@given(seed=st.integers(0, 10**6), rho=st.floats(1.05, 20), share=st.floats(0, 1))
def test_no_split_of_the_frontiers_total_over_positions_accepts_more(seed, rho, share):
    pairs = [random_laws(seed, spread=1.0), random_laws(seed + 1, spread=3.0, distance=2.0)]
    found = [measure(p, q, Frontier(rho)) for p, q in pairs]
    total = sum(position.kl for position in found)
    split = (share * total, (1 - share) * total)
    others = [measure(p, q, Mentored(budget, "kl")) for (p, q), budget in zip(pairs, split)]
    assert sum(other.acceptance for other in others) <= sum(position.acceptance for position in found) + 1e-9


@given(pair=laws(), delta=st.floats(0.01, 2), most=st.floats(1, 20))
def test_a_capped_lift_bounds_the_ratio_of_the_emitted_law(pair, delta, most):
    p, q = pair
    assert bool((induced_law(p, q, Cactus(delta, max_ratio=most)) <= most * q + 1e-12).all())


@given(pair=laws(), epsilon=st.floats(0.01, 0.9), a=st.floats(0.1, 0.9))
def test_typical_acceptance_is_a_budget_of_cross_entropy(pair, epsilon, a):
    """Kept iff the law that is n for certain has H(h, q) = -ln q(n) below max(-ln epsilon, H(q) - ln a)."""
    p, q = pair
    rule = Typical(epsilon, a)
    budget = max(-math.log(epsilon), -torch.xlogy(q, q).sum().item() - math.log(a))
    cross_entropy = -q.log()
    sure = (cross_entropy - budget).abs() > 1e-9
    kept = rule.target(p, q, rule.statistics(p, q)) == 1
    assert torch.equal(kept[sure], (cross_entropy < budget)[sure])


@given(pair=positive)
def test_cross_entropy_is_least_for_a_collapsed_law(pair):
    """q itself costs its entropy; all mass on its likeliest token costs -ln max q, and nothing costs less."""
    h, q = pair
    least = -math.log(q.max().item())
    assert -(h * q.log()).sum().item() >= least - 1e-12
    assert -(q * q.log()).sum().item() >= least - 1e-12


@given(pair=positive, w=st.floats(0, 1), b=st.floats(0, 1), threshold=st.floats(0, 1), k=st.integers(1, 12))
def test_what_other_rules_promise(pair, w, b, threshold, k):
    p, q = pair
    apart = TV.value(p, q).item()
    mixed = induced_law(p, q, Interpolation(w))
    assert (mixed - (w * p + (1 - w) * q)).abs().max().item() < 1e-12
    assert measure(p, q, Interpolation(w)).tv == pytest.approx(w * apart, abs=1e-12)
    assert measure(p, q, Ears(b)).tv <= b * (1 - q.max().item()) + 1e-12
    assert measure(p, q, Fuzzy(threshold)).js <= threshold + 1e-12
    trusted = Cascade("chow", a=0.5)
    expected = p if p.max() >= 0.5 else q
    assert (induced_law(p, q, trusted) - expected).abs().max().item() < 1e-12
    among = q >= q.topk(min(k, len(q))).values[-1]
    assert induced_law(p, q, TopK(k))[~among].sum().item() == pytest.approx(0, abs=1e-12)
    assert Fly().looks_ahead


def test_block_verification_emits_the_verifiers_joint_law_and_keeps_more():
    size, draws = 4, 100_000
    p_first, q_first = random_laws(1, size, spread=1.0, distance=1.5)
    p_then, q_then = (torch.stack(rows) for rows in zip(*(random_laws(2 + i, size, 1.0, 1.5) for i in range(size))))
    u = [uniforms(7, place, 0, draws) for place in range(3)]
    first = draw(p_first.expand(draws, -1), u[0][Purpose.DRAFT])
    draft = torch.stack([first, draw(p_then[first], u[1][Purpose.DRAFT])], dim=-1)
    p = torch.stack([p_first.expand(draws, -1), p_then[first]], dim=1)
    q = torch.stack([q_first.expand(draws, -1), q_then[first], torch.full((draws, size), 1 / size)], dim=1)
    accept = torch.stack([u[place][Purpose.ACCEPT] for place in range(2)], dim=-1)
    emit = torch.stack([u[place][Purpose.EMIT] for place in range(3)], dim=-1)
    kept = {}
    for block in (False, True):
        found = verify(draft, p.double(), q.double(), Lossless(), accept, emit, block=block)
        one = torch.where(found.kept > 0, draft[:, 0], found.emitted)
        then = torch.where(found.kept == 2, draft[:, 1], found.emitted)
        late = uniforms(8, 0, 0, draws)[Purpose.EMIT]  # where the block ended at once, the verifier goes on alone
        then = torch.where(found.kept == 0, draw(q_then[one], late), then)
        counts = torch.bincount(size * one + then, minlength=size * size)
        assert chi_square_p(counts, (q_first[:, None] * q_then).flatten()) > 1e-4
        kept[block] = found.kept.double().mean().item()
    assert kept[True] > kept[False] + 0.01


@pytest.mark.parametrize("name", ["kl", "reverse-kl", "js"])
@pytest.mark.parametrize("tiny", [1e-12, 1e-16, 1e-20, 1e-30])
def test_mentored_decoding_keeps_its_budget_where_q_is_tiny(name, tiny):
    """What is left of q behind the likely tokens must not be lost to rounding."""
    p, q = (torch.tensor(x, dtype=torch.float64) for x in ([0.5, 0.5, 0.0], [tiny, 0.6 - tiny, 0.4]))
    law = induced_law(p, q, Mentored(0.15, name))
    assert DIVERGENCES[name].value(law, q).item() <= 0.15 + 1e-6
