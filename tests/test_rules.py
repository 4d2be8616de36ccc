import math
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cactus_decoding.divergences import DIVERGENCES
from cactus_decoding.errors import InvalidParameter
from cactus_decoding.fidelity import measure
from cactus_decoding.induced import induced_law
from cactus_decoding.rules import (
    RULES,
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
    parse_rule,
    spec_of,
    split_specs,
)
from cactus_decoding.rules.base import recovery_weights, scaled_weights
from cactus_decoding.rules.bounded_ratio import solve_beta
from cactus_decoding.rules.cascade import Deferral
from tests.tiny import laws, random_laws

EVERY_RULE = [
    Lossless(),
    Cactus(0.1),
    Cactus(1.0),
    Cactus(0.5, solver="exact"),
    Cactus(0.3, divergence="tv"),
    Cactus(0.3, solver="exact", divergence="reverse-kl"),
    Cactus(0.5, max_ratio=2.0),
    BoundedRatio(1.7),
    BoundedRatio(4.0, recovery="shift"),
    Mentored(0.2),
    Mentored(0.1, "kl"),
    Frontier(3.0),
    Typical(),
    Typical(0.3, 0.9, "sample"),
    *(Cascade(deferral) for deferral in get_args(Deferral)),
    TopK(2),
    TopK(3, "reference"),
    Interpolation(),
    Interpolation(1.0),
    Ears(),
    Fuzzy(),
]
IDS = [repr(rule) for rule in EVERY_RULE]
LOSSLESS = [
    Lossless(), Cactus(0.0), Cactus(0.0, solver="exact"), Cactus(1.0, max_ratio=1.0), BoundedRatio(1.0),
    BoundedRatio(1.0, "shift"), Mentored(0.0), Mentored(0.0, "kl"), Frontier(1.0), Cascade("diff", -1.0),
    Cascade("token-v1", -1.0), Cascade("token-v2", -1.0), Interpolation(0.0), Ears(0.0), Fuzzy(0.0),
]  # fmt: skip


@given(pair=laws())
def test_theorem_1_any_fixed_target_is_emitted_exactly(pair):
    """Keep with min(1, h/p), recover from (h - p)+: the emitted law is h, by exact sum over n."""
    p, h = pair
    keep = torch.where(p > 0, torch.minimum(h, p), 0.0)
    residual = (h - p).clamp_min(0)
    law = keep if residual.sum() == 0 else keep + (1 - keep.sum()) * residual / residual.sum()
    assert (law - h).abs().max().item() < 1e-12
    assert keep.sum().item() == pytest.approx(1 - DIVERGENCES["tv"].value(h, p).item(), abs=1e-12)


@pytest.mark.parametrize("rule", EVERY_RULE, ids=IDS)
@settings(max_examples=25)
@given(pair=laws())
def test_targets_never_bring_back_what_a_filter_removed_and_keep_what_lossless_keeps_where_they_say_so(rule, pair):
    p, q = pair
    h = rule.target(p, q, rule.statistics(p, q))
    assert bool((h <= 1 + 1e-12).all())
    assert bool((h[q == 0] == 0).all())
    assert bool((torch.minimum(p, h) >= torch.minimum(p, q)).all()) or not rule.between


@pytest.mark.parametrize("rule", EVERY_RULE, ids=IDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(max_examples=25)
@given(data=st.data())
def test_recovery_has_positive_mass_on_tokens_of_positive_q(rule, dtype, data):
    """A refusal always leaves something to draw, never NaN and never a token the verifier excludes."""
    p, q = data.draw(laws(dtype=dtype))
    s = rule.statistics(p[None], q[None])
    h = rule.target(p, q, s)
    n = data.draw(st.sampled_from(torch.arange(len(q)).tolist()))
    if p[n] <= h[n] or q[n] == 1:
        return
    row = torch.tensor([n])
    own = rule.recovery_row(p[None], q[None], s)
    scaled = scaled_weights(p[None], q[None], rule.recovery_scale(p[None], q[None], q[row], h[row], s))
    weights = recovery_weights(scaled if own is None else own, q[None], row)[0]
    assert torch.isfinite(weights).all()
    assert weights.sum() > 0
    assert bool((weights[q == 0] == 0).all())
    assert weights[n] == 0 or isinstance(rule, Typical)  # which may draw from all of q


@pytest.mark.parametrize("lossless", LOSSLESS, ids=map(repr, LOSSLESS))
@settings(max_examples=25)
@given(pair=laws())
def test_limits_are_lossless(lossless, pair):
    p, q = pair
    assert lossless.lossless
    assert (induced_law(p, q, lossless) - q).abs().max().item() < 1e-12
    assert measure(p, q, lossless).acceptance == pytest.approx(torch.minimum(p, q).sum().item(), abs=1e-12)


@given(pair=laws(), alpha=st.floats(1.0, 50.0))
def test_bounded_ratio_emits_one_clipped_target_within_ln_alpha(pair, alpha):
    """clip(p, beta q, alpha q) is a law, Theorem 1 emits it, and its KL from q is at most ln alpha."""
    p, q = pair
    beta = solve_beta(p[None], q[None], alpha)
    assert 0.0 <= beta.item() <= 1.0
    h = torch.maximum(torch.minimum(p, alpha * q), beta * q)
    assert h.sum().item() == pytest.approx(1.0, abs=1e-12)
    assert DIVERGENCES["kl"].value(h, q).item() <= math.log(alpha) + 1e-12
    assert (h - p).clamp_min(0).sum().item() == pytest.approx((p - alpha * q).clamp_min(0).sum().item(), abs=1e-12)


def test_beta_against_bisection():
    for seed in range(50):
        p, q = random_laws(seed, distance=2.0)
        low, high = 0.0, 1.0
        excess = (p - 1.5 * q).clamp_min(0).sum()
        if excess == 0:  # nothing can be refused, and any small beta will do
            continue
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if (middle * q - p).clamp_min(0).sum() < excess else (low, middle)
        assert solve_beta(p[None], q[None], 1.5).item() == pytest.approx(high, abs=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cactus(-0.1), r"delta is -0.1.*at least 0"),
        (lambda: Cactus(math.nan), "delta is nan"),
        (lambda: Cactus(0.1, solver="newton"), "'newton'.*second_order, exact"),
        (lambda: Cactus(0.1, divergence="l2"), "'l2'.*kl"),
        (lambda: BoundedRatio(0.99), r"alpha is 0.99.*at least 1"),
        (lambda: BoundedRatio(math.inf), "alpha is inf"),
        (lambda: BoundedRatio(2.0, recovery="none"), "'none'.*exact, shift"),
        (lambda: Cactus(0.1, max_ratio=0.5), r"max_ratio is 0.5.*at least 1"),
        (lambda: Mentored(-1.0), r"budget is -1.0.*at least 0"),
        (lambda: Mentored(0.1, "l2"), "'l2'.*kl"),
        (lambda: Frontier(0.0), r"rho is 0.0.*at least 1"),
        (lambda: Typical(epsilon=1.5), r"epsilon is 1.5.*from 0 to 1"),
        (lambda: Typical(a=-0.1), r"a is -0.1.*from 0 to 1"),
        (lambda: Typical(recovery="best"), "'best'.*argmax, sample"),
        (lambda: Cascade("votes"), "'votes'.*chow, diff, opt"),
        (lambda: Cascade("chow", -0.1), r"a is -0.1.*from 0 to 1"),
        (lambda: Cascade("diff", 2.0), r"a is 2.0.*from -1 to 1"),
        (lambda: TopK(0), r"k is 0.*at least 1"),
        (lambda: TopK(2.5), "k is 2.5.*whole number"),
        (lambda: TopK(True), "k is True"),
        (lambda: Interpolation(1.1), r"w is 1.1.*from 0 to 1"),
        (lambda: Ears(-0.1), r"b is -0.1.*at least 0"),
        (lambda: Ears("0.1"), "b is '0.1'"),
        (lambda: Fuzzy(math.nan), "threshold is nan"),
        (lambda: Fly(entropy=-1.0), "entropy is -1.0"),
        (lambda: Fly(window=0), "window is 0"),
        (lambda: parse_rule("cactus:delta"), "has 'delta', but settings are written setting=value"),
        (lambda: parse_rule("cactus:delta=0.1,delta=0.2"), "given 'delta' twice"),
        (lambda: parse_rule("cactus:delta=0.1", delta=0.2), "given 'delta' twice"),
        (lambda: parse_rule("cactus:speed=2"), "has no setting 'speed'; it takes delta"),
        (lambda: parse_rule("magic:delta=1"), "rule is 'magic'"),
        (lambda: parse_rule("cactus:delta=much"), "delta is 'much'"),
    ],
)
def test_settings_out_of_range_are_refused_with_the_value(make, message):
    with pytest.raises(InvalidParameter, match=message):
        make()


@pytest.mark.parametrize("rule", [*EVERY_RULE, Fly(0.5, 3)], ids=repr)
def test_a_rule_written_in_one_word_is_read_as_the_same_rule(rule):
    assert parse_rule(spec_of(rule)) == rule


def test_words_for_rules():
    assert spec_of(Lossless()) == "lossless"
    assert spec_of(Cactus()) == "cactus:delta=0.25"
    assert spec_of(Cactus(0.1, max_ratio=4.0)) == "cactus:delta=0.1,max_ratio=4"
    assert parse_rule("cactus", delta=0.5) == Cactus(0.5)
    assert parse_rule("cactus: delta=1e-3, max_ratio=none") == Cactus(0.001)


def test_a_number_alone_is_the_first_setting():
    assert parse_rule("cactus:0.25,max_ratio=4") == Cactus(0.25, max_ratio=4)
    assert parse_rule("ratio:2") == BoundedRatio(2)
    assert spec_of(parse_rule("cactus:1.0")) == spec_of(parse_rule("cactus:delta=1")) == "cactus:delta=1"
    for spec, message in [
        ("cactus:max_ratio=4,0.25", "has '0.25', but settings are written setting=value"),
        ("cactus:0.25,delta=1", "given 'delta' twice"),
        ("cactus:exact", "has 'exact', but settings are written setting=value"),
        ("lossless:1", "'lossless' has no setting 'setting'; it takes none"),
    ]:
        with pytest.raises(InvalidParameter, match=message):
            parse_rule(spec)


def test_a_setting_follows_its_rule_in_a_list():
    specs = split_specs("lossless, cactus:0.1,max_ratio=4,solver=exact,,typical,ratio:alpha=2")
    assert specs == ["lossless", "cactus:0.1,max_ratio=4,solver=exact", "typical", "ratio:alpha=2"]
    assert split_specs(" , ") == []


THRESHOLDS = (Typical, Cascade, TopK, Fuzzy)  # where float32 may fall on the other side


@pytest.mark.parametrize("rule", [rule for rule in EVERY_RULE if not isinstance(rule, THRESHOLDS)], ids=repr)
@settings(max_examples=25)
@given(pair=laws(dtype=torch.float32))
def test_float32_laws_are_those_of_float64(rule, pair):
    p, q = pair
    narrow, wide = induced_law(p, q, rule), induced_law(p.double(), q.double(), rule)
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow.double(), wide, rtol=0, atol=2e-4)


def test_registry_names_every_rule_with_its_guarantee_and_source():
    assert list(RULES)[:3] == ["lossless", "cactus", "ratio"]
    assert {type(rule) for rule in EVERY_RULE} | {Fly} == set(RULES.values())
    for rule in RULES.values():
        assert rule.summary
        assert rule.guarantee
        assert rule.source
