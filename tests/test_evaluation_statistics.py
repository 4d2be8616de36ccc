"""Intervals that cover, tests that raise no false alarm, and power that is what is stated: mostly by simulation.

The standard error of a share of .95 in 2,000 simulations is .005. One point of a discrete interval also departs from
.95 by its grid (Wilson's at the edges, Tango's with few changes), hence bounds for single points and tighter ones for
averages over points.
"""

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.evaluation.paired import (
    Comparison,
    compare,
    gain_rate,
    mcnemar,
    power_of,
    smallest_visible_loss,
    tango,
)
from cactus_decoding.evaluation.statistics import Interval, accuracy, ratio, ratio_change
from cactus_decoding.evaluation.verdicts import MARGIN, holm, verdict

RUNS = 2000


def column(values):
    return np.asarray(values, dtype=float).reshape(-1, 1)


def answers(gained, lost, n):
    """A reference and a rule with these changes; of the other problems half are right in both."""
    rest = n - gained - lost
    same = [1] * (rest // 2) + [0] * (rest - rest // 2)
    return column([0] * gained + [1] * lost + same), column([1] * gained + [0] * lost + same)


@cache
def compared(gained, lost, n):
    return compare(*answers(gained, lost, n))


cached_tango = cache(tango)
cached_smallest = cache(smallest_visible_loss)
cached_power = cache(power_of)


def covered(interval, truth):
    return interval.low <= truth <= interval.high


# Reference values


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    # Newcombe (Statistics in Medicine 17, 1998, 857), table I, method 3
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_as_published(right, n, low, high):
    found = accuracy(column([1] * right + [0] * (n - right)))
    assert found.estimate == right / n
    assert found[1:] == pytest.approx((low, high), abs=5e-5)


def test_accuracy_of_samples_that_hang_together_counts_problems():
    scores = np.repeat(column([1, 0, 1, 0, 0, 1, 0, 1]), 4, axis=1)
    one = stats.t.interval(0.95, 7, loc=0.5, scale=scores[:, 0].std(ddof=1) / math.sqrt(8))
    assert accuracy(scores) == pytest.approx((0.5, *one))


def test_accuracy_is_kept_in_range():
    assert accuracy([[1, 1], [1, 1], [0, 1]]).high == 1.0
    assert accuracy([[0, 0], [0, 0], [0, 1]]).low == 0.0


@pytest.mark.parametrize("n", [1, 7, 300])
def test_scores_all_alike_bound_the_problems_that_depart(n):
    assert accuracy(np.ones((n, 4))) == pytest.approx(accuracy(np.ones((n, 1))))
    assert accuracy(np.zeros((n, 4))) == pytest.approx(accuracy(np.zeros((n, 1))))
    found = accuracy(np.full((n, 1), 0.3))
    assert 0 < found.low < 0.3 < found.high < 1
    assert (found.high - 0.3) / 0.7 == pytest.approx((0.3 - found.low) / 0.3)


@pytest.mark.parametrize(
    ("gained", "lost", "p"), [(0, 0, 1.0), (3, 3, 1.0), (0, 6, 2 / 64), (1, 7, 18 / 256), (7, 1, 18 / 256)]
)
def test_mcnemar_by_hand(gained, lost, p):
    assert mcnemar(gained, lost) == pytest.approx(p)


def test_tango_as_published():
    # Airway responses before and after transplantation: Fagerland, Lydersen, Laake (Stat. in Medicine 33, 2014, 2850)
    assert tango(1, 7, 21) == pytest.approx((-6 / 21, -0.517, -0.026), abs=5e-4)


@pytest.mark.parametrize(
    ("gained", "lost", "n"), [(1, 7, 21), (0, 4, 50), (12, 40, 300), (0, 0, 100), (9, 0, 9), (5, 5, 10), (30, 31, 5000)]
)
def test_tango_inverts_the_score_test(gained, lost, n):
    def z(difference):
        """With the likeliest rates given the difference found by search, not by formula."""

        def against(losses):
            gains = losses + difference
            unchanged = 1 - losses - gains
            return -sum(k * math.log(max(r, 1e-300)) for k, r in
                        ((gained, gains), (lost, losses), (n - gained - lost, unchanged)) if k)  # fmt: skip

        bounds = max(0.0, -difference), (1 - difference) / 2
        losses = optimize.minimize_scalar(against, bounds=bounds, method="bounded", options={"xatol": 1e-13}).x
        return (gained - lost - n * difference) / math.sqrt(n * (2 * losses + difference * (1 - difference)))

    found = tango(gained, lost, n)
    assert found.low == -1 or z(found.low) == pytest.approx(1.96, abs=2e-3)
    assert found.high == 1 or z(found.high) == pytest.approx(-1.96, abs=2e-3)


def test_tango_where_nothing_changed_has_a_width():
    bound = 1.959964**2 / (400 + 1.959964**2)
    assert tango(0, 0, 400) == pytest.approx((0, -bound, bound))


def test_where_the_exact_test_finds_a_difference_the_interval_has_no_zero():
    for changed in range(6, 400):
        lost = 1 + int(stats.binom.isf(0.025, changed, 0.5))  # the fewest that are significant
        assert tango(changed - lost, lost, 400).high < 0


def test_compare_means_is_the_paired_t_test():
    rng = np.random.default_rng(1)
    before, after = rng.random((40, 3)), rng.random((40, 3))
    found, expected = compare(before, after), stats.ttest_rel(after.mean(1), before.mean(1))
    assert found.p == pytest.approx(expected.pvalue)
    assert found.difference[1:] == pytest.approx(tuple(expected.confidence_interval()))
    assert (found.n, found.gained, found.lost) == (40, None, None)


def test_compare_means_without_spread():
    same = compare(np.full((50, 4), 0.5), np.full((50, 4), 0.5))
    assert same.p == 1
    assert same.difference == pytest.approx(tango(0, 0, 50))
    assert same.smallest_loss == compared(0, 0, 50).smallest_loss
    lost = compare(np.ones((5, 2)), np.zeros((5, 2)))
    assert lost.p == 2 / 32  # five alike by chance, either way
    assert lost.difference == pytest.approx(tango(0, 5, 5))


def test_few_changes_all_one_way_are_no_finding_for_t_alone():
    before = np.full((100, 2), 0.5)
    after = before.copy()
    after[:4, 0] = 0.0
    assert stats.ttest_rel(after.mean(1), before.mean(1)).pvalue < 0.05
    assert compare(before, after).p == 1 / 8


def test_one_problem_shows_nothing():
    for before, after in (([[1]], [[0]]), ([[0.3]], [[0.2]]), ([[1, 1]], [[0, 0]])):
        found = compare(before, after)
        assert found.p == 1
        assert found.smallest_loss is None
        assert -1 <= found.difference.low < found.difference.high < 1


def test_p_is_never_zero():
    assert 0 < mcnemar(0, 5000) < 1e-300
    before = np.linspace(0.5, 0.6, 3000).reshape(-1, 1)
    assert 0 < compare(before, before - 0.5).p < 1e-300


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_ratio_by_hand():
    found = ratio([1, 3], [2, 4])
    half = stats.t.isf(0.025, 1) * math.sqrt(2 * ((1 - 4 / 3) ** 2 + (3 - 8 / 3) ** 2)) / 6
    assert found == pytest.approx((4 / 6, max(0, 4 / 6 - half), 4 / 6 + half))


def test_ratio_of_equal_wholes_is_the_mean():
    parts = np.random.default_rng(2).random(30)
    assert ratio(5 * parts, np.full(30, 5.0)) == pytest.approx(accuracy(column(parts)))


def test_ratio_change_pairs_the_problems():
    rng = np.random.default_rng(3)
    wholes = rng.integers(20, 200, 60)
    parts = wholes * rng.uniform(0.05, 0.5, 60)
    found = ratio_change(0.68 * parts, wholes, parts, wholes)
    assert found == pytest.approx((-0.32, -0.32, -0.32))  # the same factor in every problem: nothing left to vary
    shuffled = ratio_change(0.68 * parts[::-1], wholes[::-1], parts, wholes)
    assert shuffled.estimate == pytest.approx(-0.32)
    assert shuffled.high - shuffled.low > 0.1


def test_ratios_of_nothing_are_unknown():
    unknown = {"estimate": None, "low": None, "high": None}
    zeros, ones = np.zeros(3), np.ones(3)
    assert ratio([], []).to_dict() == ratio(zeros, zeros).to_dict() == unknown
    assert ratio_change([], [], [], []).to_dict() == unknown
    for quads in ((ones, zeros, ones, ones), (ones, ones, zeros, ones), (ones, ones, ones, zeros)):
        assert ratio_change(*quads).to_dict() == unknown
    assert ratio([3], [4]).to_dict() == {"estimate": 0.75, "low": None, "high": None}
    assert ratio_change([1], [2], [1], [1]).to_dict() == {"estimate": -0.5, "low": None, "high": None}
    assert ratio_change(zeros, ones, ones, ones).to_dict() == {"estimate": -1.0, "low": None, "high": None}


# Bad input


@pytest.mark.parametrize("scores", [[], [[]], [1, 0], np.zeros((0, 3)), np.zeros((3, 0))])
def test_shapes_that_are_no_scores(scores):
    with pytest.raises(InvalidParameter, match="shape"):
        accuracy(scores)


@pytest.mark.parametrize("wrong", [math.nan, 1.5, -0.1, math.inf])
def test_scores_outside_their_range(wrong):
    with pytest.raises(InvalidParameter, match=str(wrong)):
        accuracy([[0.5], [wrong]])
    with pytest.raises(InvalidParameter, match="scores holds"):
        compare([[1], [1]], [[0.5], [wrong]])
    with pytest.raises(InvalidParameter, match="reference holds"):
        compare([[0.5], [wrong]], [[1], [1]])


def test_runs_that_do_not_pair():
    with pytest.raises(InvalidParameter, match=r"\(2, 1\).*\(3, 1\)"):
        compare(np.ones((2, 1)), np.ones((3, 1)))
    with pytest.raises(InvalidParameter, match="comparisons is 0"):
        compare([[1]], [[1]], comparisons=0)


def test_counts_that_do_not_fit():
    with pytest.raises(InvalidParameter, match="shapes"):
        ratio([1, 2], [3])
    with pytest.raises(InvalidParameter, match="shapes"):
        ratio([[1, 2]], [[3, 4]])
    with pytest.raises(InvalidParameter, match="ref_parts holds -1"):
        ratio_change([1], [1], [-1], [1])
    for wrong in (math.nan, math.inf):
        with pytest.raises(InvalidParameter, match="wholes holds"):
            ratio([1, 2], [1, wrong])


def test_verdicts_on_impossible_settings():
    found = compared(3, 3, 100)
    for margin in (0, 1, 2, -0.1, math.nan):
        with pytest.raises(InvalidParameter, match="margin"):
            verdict(found, 1.0, margin)
    for p in (-0.1, 1.1, math.nan):
        with pytest.raises(InvalidParameter, match="p-value"):
            verdict(found, p)
        with pytest.raises(InvalidParameter, match="p-value"):
            holm([0.5, p])
    with pytest.raises(InvalidParameter, match="holm"):
        verdict(found, 0.01)


# Properties


@st.composite
def tables(draw):
    n = draw(st.integers(1, 80))
    gained = draw(st.integers(0, n))
    return gained, draw(st.integers(0, n - gained)), n


@st.composite
def score_pairs(draw):
    shape = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    values = st.lists(st.sampled_from([0, 0.25, 0.5, 1]), min_size=math.prod(shape), max_size=math.prod(shape))
    return np.reshape(draw(values), shape), np.reshape(draw(values), shape)


def assert_sound(found):
    estimate, low, high = found.difference
    assert -1 <= low <= estimate <= high <= 1
    assert low < high
    assert 0 < found.p <= 1
    assert found.smallest_loss is None or 0 < found.smallest_loss <= 1


def assert_mirrored(one, other):
    assert other.difference == pytest.approx((-one.difference[0], -one.difference[2], -one.difference[1]), abs=1e-8)
    assert other.p == pytest.approx(one.p)


@given(table=tables())
def test_answers_compare_soundly_both_ways(table):
    gained, lost, n = table
    one, other = compared(gained, lost, n), compared(lost, gained, n)
    assert_sound(one)
    assert_mirrored(one, other)
    assert (one.gained, one.lost) == (other.lost, other.gained) == (gained, lost)


@given(pair=score_pairs(), seed=st.integers(0, 99))
def test_means_compare_soundly_both_ways_and_in_any_order(pair, seed):
    before, after = pair
    one = compare(before, after)
    assert_sound(one)
    assert_mirrored(one, compare(after, before))
    order = np.random.default_rng(seed).permutation(len(before))
    again = compare(before[order], after[order])
    assert again.difference == pytest.approx(one.difference, abs=1e-12)
    assert again.p == pytest.approx(one.p)
    share = accuracy(before)
    assert 0 <= share.low <= share.estimate <= share.high <= 1
    assert accuracy(before[order]) == pytest.approx(share, abs=1e-12)


@given(p=st.lists(st.floats(0, 1), max_size=12), seed=st.integers(0, 99))
def test_holm_is_monotone_and_between_p_and_bonferroni(p, seed):
    adjusted = holm(p)
    for one, value in zip(p, adjusted, strict=True):
        assert one <= value <= 1
        assert value == 1 or any(value <= len(p) * other for other in p if other <= one)
    ranked = [value for _, value in sorted(zip(p, adjusted, strict=True))]
    assert ranked == sorted(ranked)
    order = np.random.default_rng(seed).permutation(len(p))
    assert holm([p[i] for i in order]) == [adjusted[i] for i in order]


@given(table=tables(), comparisons=st.integers(1, 9), margin=st.floats(0.001, 0.5))
@settings(max_examples=40)
def test_every_comparison_has_a_verdict(table, comparisons, margin):
    found = compared(*table)
    said = verdict(found, min(1.0, comparisons * found.p), margin)
    assert "-" not in said.text
    assert "nan" not in said.text
    assert said.kind != "no_loss" or -found.difference.low <= margin


@given(gained=st.integers(0, 10), lost=st.integers(0, 10))
@settings(max_examples=20)
def test_more_comparisons_need_a_larger_loss(gained, lost):
    assert compared(gained, lost, 300).smallest_loss < compare(*answers(gained, lost, 300), 8).smallest_loss


# Coverage


def wilson_coverage(n, share):
    """Exact: the sum over every count of right answers."""
    low, high = stats.binom.ppf([1e-7, 1 - 1e-7], n, share).astype(int)
    counts = range(low, high + 1)
    hits = [covered(accuracy(column([1] * right + [0] * (n - right))), share) for right in counts]
    return float(stats.binom.pmf(counts, n, share) @ hits)


def test_wilson_covers():
    found = [wilson_coverage(n, share) for n in (50, 500, 2000) for share in (0.03, 0.1, 0.5, 0.75)]
    print("wilson", np.round(found, 3))
    assert min(found) > 0.92
    assert 0.945 < np.mean(found) < 0.96


def tango_coverage(n, gains, losses, rng):
    counts, runs = np.unique(
        rng.multinomial(n, [gains, losses, 1 - gains - losses], RUNS)[:, :2], axis=0, return_counts=True
    )
    hits = [covered(cached_tango(int(b), int(c), n), gains - losses) for b, c in counts]
    return float(runs @ hits / RUNS)


def test_tango_covers():
    rng = np.random.default_rng(4)
    found = [
        tango_coverage(n, gains, gains + loss, rng)
        for n in (100, 500, 2000)
        for gains, loss in ((1 / n, 0), (3 / n, 0), (1 / n, 0.02), (0.02, 0.01), (0.05, 0), (0.05, 0.06), (0.15, 0.02))
    ]
    print("tango", np.round(found, 3))
    assert min(found) > 0.93
    assert 0.943 < np.mean(found) < 0.965


def samples_coverage(n, right, wrong, rng):
    """Four samples each of problems whose chances are Beta(right, wrong): much alike within a problem."""
    chances = rng.beta(right, wrong, (RUNS, n, 1))
    scores = rng.random((RUNS, n, 4)) < chances
    return np.mean([covered(accuracy(run), right / (right + wrong)) for run in scores])


def graded_coverage(n, rng):
    scores = rng.beta(2, 1, (RUNS, n, 1))
    return np.mean([covered(accuracy(run), 2 / 3) for run in scores])


def paired_coverage(n, right, wrong, rng):
    """Two runs of one law, four samples of each problem: the true difference is 0."""
    chances = rng.beta(right, wrong, (RUNS, n, 1))
    before, after = (rng.random((RUNS, n, 4)) < chances for _ in range(2))
    return np.mean([covered(compare(*pair).difference, 0.0) for pair in zip(before, after)])


def test_student_covers():
    rng = np.random.default_rng(5)
    found = [samples_coverage(n, *shape, rng) for n in (50, 200) for shape in ((0.5, 0.5), (1, 3), (2, 0.3))]
    found += [graded_coverage(n, rng) for n in (10, 100)]
    print("t", np.round(found, 3))
    assert min(found) > 0.925  # the last shape has nine in ten problems near 1: skewed, and n = 50 is few for it
    assert 0.94 < np.mean(found) < 0.96
    pairs = [paired_coverage(n, *shape, rng) for n in (50, 200) for shape in ((0.5, 0.5), (1, 3), (0.1, 0.05))]
    print("t pairs", np.round(pairs, 3))
    assert min(pairs) > 0.935
    assert 0.94 < np.mean(pairs) < 0.965


def responses(rng, n, rate):
    """Lengths that vary a lot and, with them, the rate: refused of drafted tokens, `[RUNS, n]` each."""
    lengths = 20 + rng.gamma(1.5, 100, (RUNS, n)).astype(int)
    rates = rate * np.clip(rng.gamma(8, 1 / 8, (RUNS, n)) * (0.7 + 0.3 * 170 / lengths), 0, 3)
    return lengths, rates


def true_rate(rate):
    """Of `responses`, by half a million of them."""
    lengths, rates = responses(np.random.default_rng(0), 250, rate)
    return float((lengths * rates).sum() / lengths.sum())


def ratio_coverage(n, rate, rng):
    lengths, rates = responses(rng, n, rate)
    parts, truth = rng.binomial(lengths, rates), true_rate(rate)
    return np.mean([covered(ratio(*run), truth) for run in zip(parts, lengths)])


def change_coverage(n, rate, rng):
    """The rule refuses 0.68 times as often; its responses have lengths of their own."""
    lengths, rates = responses(rng, n, rate)
    own = np.maximum(1, (lengths * rng.uniform(0.8, 1.2, lengths.shape)).astype(int))
    parts, reference = rng.binomial(own, 0.68 * rates), rng.binomial(lengths, rates)
    return np.mean([covered(ratio_change(*run), -0.32) for run in zip(parts, own, reference, lengths)])


def test_what_was_not_measured_does_not_count():
    parts, wholes = np.array([1.0, 3.0, 2.0]), np.array([2.0, 4.0, 5.0])
    padded = [np.concatenate([column, np.zeros(40)]) for column in (parts, wholes)]
    assert ratio(*padded) == ratio(parts, wholes)
    assert ratio_change(*padded, *padded[::-1]) == ratio_change(parts, wholes, wholes, parts)
    assert math.isnan(ratio([1, 0, 0], [2, 0, 0]).low)


def test_ratios_cover():
    rng = np.random.default_rng(6)
    found = [ratio_coverage(n, rate, rng) for n in (30, 200) for rate in (0.02, 0.2)]
    changes = [change_coverage(n, rate, rng) for n in (30, 200) for rate in (0.02, 0.2)]
    print("ratio", np.round(found, 3), "change", np.round(changes, 3))
    for part in (found, changes):
        assert min(part) > 0.925
        assert 0.938 < np.mean(part) < 0.96


# False alarms


def lossless_runs(rng, n, rules, chances):
    """Changes (gained, lost) of ``rules`` runs of one law against one reference run, `[RUNS, rules, 2]`."""
    reference = rng.random((RUNS, 1, n)) < chances
    runs = rng.random((RUNS, rules, n)) < chances
    return np.stack([(runs & ~reference).sum(-1), (~runs & reference).sum(-1)], axis=-1)


def says_loses(changes, n):
    found = [compared(int(b), int(c), n) for b, c in changes]
    adjusted = holm([each.p for each in found])
    return any(verdict(each, p).kind == "loses" for each, p in zip(found, adjusted) if p < 0.05)


@pytest.mark.parametrize("rules", [1, 8])
@pytest.mark.parametrize("hang", [0.05, 0.2])
def test_lossless_runs_are_rarely_said_to_lose(rules, hang):
    rng = np.random.default_rng(7)
    n = 200
    changes = lossless_runs(rng, n, rules, rng.beta(hang, hang, n))
    rate = np.mean([says_loses(run, n) for run in changes])
    print("false alarms", rules, hang, rate)
    assert rate <= 0.05  # half of the level, since only losses count, and less with an exact test


def test_lossless_samples_are_rarely_said_to_lose():
    rng = np.random.default_rng(8)
    chances = rng.beta(0.1, 0.05, (200, 1))
    before, after = (rng.random((RUNS, 200, 4)) < chances for _ in range(2))
    found = [compare(*pair) for pair in zip(before, after)]
    assert np.mean([verdict(each, each.p).kind == "loses" for each in found]) <= 0.05


# Power


def mean_power(n, gains, loss, rng):
    """Over data of this truth: the true power at the loss that each data set states."""
    gained, runs = np.unique(
        rng.multinomial(n, [gains, gains + loss, 1 - 2 * gains - loss], RUNS)[:, 0], return_counts=True
    )
    stated = [cached_smallest(n, gain_rate(int(b), n), 0.05) for b in gained]
    return float(runs @ [cached_power(n, gains, each, 0.05) for each in stated] / RUNS)


def test_the_smallest_loss_has_the_power_that_is_stated():
    rng = np.random.default_rng(9)
    truths = [(n, gains) for n in (100, 500, 2000) for gains in (1 / n, 4 / n, 0.02, 0.06)]
    lossless = [mean_power(*truth, 0.0, rng) for truth in truths]
    lossy = [mean_power(*truth, smallest_visible_loss(*truth, 0.05), rng) for truth in truths]
    print("power", np.round(lossless, 3), np.round(lossy, 3))
    for found in (lossless, lossy):
        assert np.mean(found) == pytest.approx(0.8, abs=0.015)
        assert found == pytest.approx([0.8] * len(found), abs=0.04)


@pytest.mark.parametrize(("n", "gains", "level"), [(100, 0.02, 0.05), (400, 0.05, 0.05), (400, 0.02, 0.05 / 8)])
def test_the_power_is_that_of_simulated_tests(n, gains, level):
    loss = smallest_visible_loss(n, gains, level)
    rates = [gains, gains + loss, 1 - 2 * gains - loss]
    counts, runs = np.unique(np.random.default_rng(10).multinomial(n, rates, 20_000)[:, :2], axis=0, return_counts=True)
    seen = [b < c and mcnemar(int(b), int(c)) <= level for b, c in counts]
    assert runs @ seen / runs.sum() == pytest.approx(0.8, abs=0.01)
    assert power_of(n, gains, loss, level) == pytest.approx(0.8, abs=1e-3)


def test_the_power_of_graded_scores_is_that_of_simulated_tests():
    rng = np.random.default_rng(11)

    def run(losses):
        before = rng.uniform(0.4, 0.8, (RUNS, 60, 1))
        after = before + rng.uniform(-0.2, 0.2, before.shape) - losses
        return [compare(*pair) for pair in zip(before, after)]

    stated = np.array([each.smallest_loss for each in run(0.0)])
    found = run(stated[:, None, None])
    assert np.mean([each.p < 0.05 and each.difference.estimate < 0 for each in found]) == pytest.approx(0.8, abs=0.03)


def test_the_power_of_the_largest_loss_is_a_number():
    for n in range(2, 40):
        for gained in range(n // 2):
            gains = gain_rate(gained, n)
            assert 0 <= power_of(n, gains, 1 - 2 * gains, 0.05) <= 1


def test_no_loss_is_visible_to_a_handful():
    assert compared(0, 0, 5).smallest_loss is None  # five losses out of five have p = 1/16
    assert compared(0, 0, 9).smallest_loss is not None
    assert compared(4, 4, 8).smallest_loss is None
    graded = np.linspace(0.4, 0.5, 6).reshape(-1, 1)
    assert compare(graded[:5], 1.1 * graded[:5]).smallest_loss is None
    assert compare(graded, 1.1 * graded).smallest_loss is not None


# Words


def told(gained, lost, n, factor=1, margin=MARGIN):
    found = compared(gained, lost, n)
    return verdict(found, min(1.0, factor * found.p), margin)


def test_the_words_of_each_verdict():
    assert told(20, 82, 1000).to_dict() == {"kind": "loses", "text": "loses 6.2 points (4.3 to 8.2)"}
    assert told(82, 20, 1000).to_dict() == {"kind": "gains", "text": "gains 6.2 points (4.3 to 8.2)"}
    assert told(30, 31, 1319).to_dict() == {"kind": "no_loss", "text": "no loss larger than 1.3 points (95%)"}
    said = told(5, 9, 200)
    assert said.kind == "cannot_tell"
    assert said.text == (
        "cannot tell: n = 200 is too small, a loss of up to 6.2 points is possible; about 760 problems would settle it"
    )


def test_large_numbers_are_grouped():
    assert "n = 1,319 is too small" in told(100, 110, 1319).text
    assert "about 4,100 problems" in told(100, 110, 1319).text


@pytest.mark.parametrize(("gained", "lost", "n"), [(100, 110, 1319), (5, 9, 200), (3, 3, 200), (6, 4, 200)])
def test_as_many_problems_as_are_asked_for_do_settle_it(gained, lost, n):
    needed = int(told(gained, lost, n).text.split("about ")[1].split()[0].replace(",", ""))

    def kind(more):
        return told(round(gained * more), round(lost * more), round(n * more)).kind

    assert kind(1.1 * needed / n) != "cannot_tell"
    assert kind(0.8 * needed / n) == "cannot_tell"


def test_a_gain_that_is_not_significant_is_no_loss():
    found = compared(15, 4, 500)
    assert found.difference.low > 0
    assert verdict(found, 8 * found.p).text == "no loss: between 0.5 and 4.2 points better (95%)"


def test_no_loss_claims_no_more_than_was_found():
    assert "larger than 0.1 points" in verdict(Comparison(9, Interval(0.01, -1e-5, 0.02), 1, 1, 0.1, None), 0.1).text
    assert "between 0.0 and" in verdict(Comparison(9, Interval(0.01, 0.0, 0.02), 1, 1, 0.1, None), 0.1).text


def test_the_margin_decides_what_is_called_no_loss():
    assert told(30, 31, 1319, margin=0.01).kind == "cannot_tell"
    assert told(5, 9, 200, margin=0.1).kind == "no_loss"


def test_a_loss_that_other_comparisons_hide_needs_more_problems():
    found = compared(4, 15, 500)
    said = verdict(found, 8 * found.p)
    assert said.kind == "cannot_tell"
    needed = int(said.text.split("about ")[1].split()[0].replace(",", ""))
    assert 500 < needed < 1500


def test_comparisons_are_ready_for_json():
    found = compared(1, 7, 21).to_dict()
    assert list(found) == ["n", "difference", "gained", "lost", "p", "smallest_loss"]
    assert list(found["difference"]) == ["estimate", "low", "high"]
