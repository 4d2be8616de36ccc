"""Positions that are recorded once, and every rule set on them to one and the same measured figure."""

import json
import math
from dataclasses import fields
from itertools import pairwise

import pytest
import torch

from cactus_decoding.calibration import Positions, Target, calibrate, record
from cactus_decoding.calibration.search import standard_error
from cactus_decoding.drafters import PromptLookup
from cactus_decoding.errors import InvalidParameter
from cactus_decoding.fidelity import FIGURES, measure, measure_rows
from cactus_decoding.generation.drafting import MOST, StepCosts
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
)
from cactus_decoding.rules.dials import dial_of
from cactus_decoding.testing import mock_pair, random_table
from tests.tiny import random_laws

V = 16
VERIFIER = random_table(3, V)
DRAFTER = 0.6 * VERIFIER + 0.4 * random_table(4, V)
PROMPTS = [[i, i + 1] for i in range(6)]
STEADY = [  # figures that rise without jumps
    Cactus(), Cactus(solver="exact"), Cactus(divergence="chi2"), BoundedRatio(), BoundedRatio(recovery="shift"),
    Mentored(divergence="kl"), Frontier(), Interpolation(), Ears(),
]  # fmt: skip
CASCADES = [Cascade(deferral) for deferral in ("chow", "diff", "opt", "token-v1", "token-v2", "token-v3")]
DIALLED = [*STEADY, Fuzzy(), Typical(), Typical(recovery="sample"), TopK(), TopK(recovery="reference"), *CASCADES]
MEASURED = ("acceptance", "kl", "tv")


def rows_of(count, size=V, distance=1.0, spread=2.0):
    """``[count, size]`` each, in float32 as models give them."""
    p, q = zip(*(random_laws(seed, size, spread, distance) for seed in range(count)))
    return torch.stack(p).float(), torch.stack(q).float()


def positions_of(p, q, groups=None):
    positions = Positions(len(p))
    for place in range(len(p)):
        positions.add(p[place : place + 1], q[place : place + 1], place if groups is None else groups[place])
    return positions


def figure_of(setting, target):
    return getattr(setting.point, target.figure)


@pytest.fixture(scope="module")
def drawn():
    """Laws that all differ, of 20 prompts with 3 positions each."""
    p, q = rows_of(60)
    return p, q, positions_of(p, q, [place // 3 for place in range(60)])


# --- positions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [Lossless(), *DIALLED], ids=repr)
def test_short_rows_are_kept_as_they_are(drawn, rule):
    p, q, positions = drawn
    p, q = p[:20].double(), q[:20].double()
    expected = measure_rows(p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True), rule)
    assert torch.equal(positions_of(*(x[:20] for x in drawn[:2])).measure(rule), expected)
    assert positions.merged == 0.0


def long_rows(count=3, size=50_000):
    """Rows of which the tokens below 1e-6 hold some thousandths."""
    generator = torch.Generator().manual_seed(0)
    base = 3.0 * torch.randn(count, size, generator=generator)
    return (base + 0.7 * torch.randn(count, size, generator=generator)).softmax(-1), base.softmax(-1)


def test_a_long_tail_that_is_put_together_changes_no_figure_that_counts():
    p, q = long_rows()
    positions = positions_of(p, q)
    assert 1e-3 < positions.merged < 0.1
    assert positions.merged == pytest.approx(
        max(float(x[(p[i] < 1e-6) & (q[i] < 1e-6)].sum()) for i in range(3) for x in (p[i], q[i])), rel=1e-4
    )
    assert positions.bytes < 8 * p.numel() / 2
    p, q = (x.double() / x.double().sum(-1, keepdim=True) for x in (p, q))
    for rule in (
        Cactus(1e-4), Cactus(0.01), BoundedRatio(2.0), Mentored(0.05, divergence="kl"), Frontier(2.0),
        Interpolation(0.5), Ears(0.1), TopK(5), Cascade("token-v3"),
    ):  # fmt: skip
        found, expected = positions.measure(rule, MEASURED), measure_rows(p, q, rule, MEASURED)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7, msg=lambda text, rule=rule: f"{rule}: {text}")


def test_a_smaller_limit_keeps_less_and_the_figures_nearly():
    p, q = long_rows()
    whole, limited = positions_of(p, q), Positions(3, limit=3 * 8 * 6000)
    limited.add(p, q, 0)
    assert limited.bytes < 3 * 8 * (6000 + 2001) < whole.bytes
    assert limited.merged > whole.merged
    for rule in (Cactus(0.01), BoundedRatio(2.0), Frontier(2.0)):
        torch.testing.assert_close(limited.measure(rule, MEASURED), whole.measure(rule, MEASURED), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kind", ["long tails", "all alike"])
def test_the_limit_is_never_passed(kind):
    p, q = long_rows() if kind == "long tails" else (torch.full((3, 50_000), 2e-5),) * 2
    limited = Positions(3, limit=3 * 8 * 6000)
    limited.add(p, q, 0)
    assert limited.bytes <= 3 * 8 * 6000


def test_groups_length_and_bytes():
    p, q = rows_of(7)
    positions = Positions(7)
    assert (len(positions), positions.bytes, positions.groups) == (0, 0, [])
    positions.add(p[:4], q[:4], 2)
    positions.add(p[4:], q[4:], 0)
    positions.add(p[:0], q[:0], 5)
    assert (len(positions), positions.bytes, positions.groups) == (7, 7 * V * 8, [2, 2, 2, 2, 0, 0, 0])


def test_tokens_that_neither_law_has_are_dropped():
    p, q = (torch.zeros(2, 9) for _ in range(2))
    p[0, [1, 4]], q[0, [4, 7]] = 0.5, 0.5
    p[1, 2], q[1, 2] = 1.0, 1.0
    positions = positions_of(p, q)
    assert positions.bytes == 8 * (3 + 1)
    found = positions.measure(Lossless(), ("acceptance", "kl"))
    assert found.tolist() == [[0.5, 0.0], [1.0, 0.0]]


@pytest.mark.parametrize("rule", [Lossless(), Cactus(0.3), BoundedRatio(2.0), TopK(3)], ids=repr)
def test_certain_drafts_are_positions_too(rule):
    _, q = rows_of(4)
    p = torch.nn.functional.one_hot(torch.tensor([3, 0, 5, 9]), V).float()
    found = positions_of(p, q).measure(rule)
    for place in range(4):
        expected = measure(p[place].double(), q[place].double() / q[place].double().sum(), rule)
        assert found[place].tolist() == pytest.approx([getattr(expected, name) for name in FIGURES], abs=1e-12)


def test_figures_of_every_third_position(drawn):
    _, _, positions = drawn
    every = positions.measure(Cactus(0.1), ("kl",), every=3)
    assert torch.equal(every, positions.measure(Cactus(0.1), ("kl",))[::3])


def test_rows_of_unlike_size_come_back_in_their_order():
    sizes = [12, 3, 700, 40, 3, 5000, 12]
    positions, expected = Positions(len(sizes)), []
    for place, size in enumerate(sizes):
        p, q = (law.float().unsqueeze(0) for law in random_laws(place, size, 1.0))
        positions.add(p, q, 0)
        p, q = (law.double() / law.double().sum() for law in (p, q))
        expected.append(measure_rows(p, q, BoundedRatio(1.5))[0])
    torch.testing.assert_close(positions.measure(BoundedRatio(1.5)), torch.stack(expected), rtol=1e-9, atol=1e-12)


def test_no_positions_cannot_be_measured():
    with pytest.raises(InvalidParameter, match="no position"):
        Positions(5).measure(Cactus())


# --- recording ----------------------------------------------------------------------------------------------------


def in_table(positions, verifier, drafter):
    """Whether the figures of every position are those of a row of the tables."""
    rule = BoundedRatio(1.5)
    known = measure_rows(drafter.double(), verifier.double(), rule)
    found = positions.measure(rule)
    return bool(((found.unsqueeze(1) - known).abs().amax(-1).amin(-1) < 1e-5).all())


@pytest.mark.parametrize("count", [1, 37, 400])
def test_the_count_is_reached_exactly_with_laws_of_the_pair(count):
    told = []
    pair = mock_pair(VERIFIER, DRAFTER)
    positions = record(pair, PROMPTS, count=count, m=4, max_new_tokens=20, rows=3, watch=told.append)
    assert len(positions) == len(positions.groups) == count
    assert set(positions.groups) <= set(range(6))
    assert in_table(positions, VERIFIER, DRAFTER)
    assert told == sorted(told)
    assert told[-1] <= count


def test_temperature_is_that_of_both_laws():
    from cactus_decoding.sampling import SamplingParams

    warm = record(mock_pair(VERIFIER, DRAFTER), PROMPTS, SamplingParams(temperature=1.7), count=60, max_new_tokens=20)
    assert in_table(warm, *((table.log() / 1.7).softmax(-1) for table in (VERIFIER, DRAFTER)))
    assert not in_table(warm, VERIFIER, DRAFTER)


def test_what_is_recorded_is_what_was_examined():
    pair = mock_pair(VERIFIER, DRAFTER)
    positions = record(pair, PROMPTS[:2], count=100, m=4, max_new_tokens=30, rows=1, seed=5)
    expected = []
    for seed in range(5, 15):
        out = pair.generate(PROMPTS[(seed - 5) % 2], m=4, max_new_tokens=30, seed=seed, audit=1)
        expected += [figures for event in out.events for figures in event.audit]
    found = positions.measure(Lossless(), ("acceptance",))[:, 0].tolist()
    assert found == pytest.approx([figures.acceptance for figures in expected[:100]], abs=1e-6)


def test_prompts_are_gone_through_again_with_other_random_numbers():
    pair = mock_pair(VERIFIER, DRAFTER)
    positions = record(pair, PROMPTS[:2], count=60, m=4, max_new_tokens=6, rows=1)
    assert positions.groups == sorted(positions.groups[:5]) + positions.groups[5:]
    changes = sum(a != b for a, b in pairwise(positions.groups))
    assert changes > 4  # 0, 1, 0, 1, ...
    once = positions.measure(Lossless(), ("kl", "acceptance"))
    assert len(once.unique(dim=0)) > 4


def test_recording_repeats_itself():
    pair = mock_pair(VERIFIER, DRAFTER)
    first, again, other = (record(pair, PROMPTS, count=50, max_new_tokens=20, seed=seed) for seed in (1, 1, 2))
    figures = [positions.measure(Lossless(), ("acceptance",)) for positions in (first, again, other)]
    assert torch.equal(figures[0], figures[1])
    assert not torch.equal(figures[0], figures[2])


def test_certain_drafts_are_recorded_as_point_masses():
    positions = record(mock_pair(VERIFIER, PromptLookup()), [[1, 2, 3, 1, 2]], count=40, m=3, max_new_tokens=30)
    found = positions.measure(Lossless(), ("acceptance", "lossless_acceptance"))
    assert torch.equal(found[:, 0], found[:, 1])  # each the q of the drafted token, some entry of the table
    entries = VERIFIER.flatten()
    assert bool(((found[:, :1] - entries).abs().amin(-1) < 1e-6).all())


def test_where_nothing_is_drafted_there_is_nothing_to_calibrate():
    count = 64
    rising = torch.roll(torch.eye(count, dtype=torch.float64), 1, dims=1)  # i is followed by i + 1: no repeats
    with pytest.raises(InvalidParameter, match="nothing was drafted for any of the 2 prompts"):
        record(mock_pair(rising, PromptLookup()), [[0], [3]], count=5, max_new_tokens=30)


def test_no_prompt_is_an_error():
    with pytest.raises(InvalidParameter, match="no prompt"):
        record(mock_pair(VERIFIER, DRAFTER), [])


@pytest.mark.parametrize("wrong", [{"count": 0}, {"m": 0}, {"rows": 0}, {"count": 2.5}, {"max_new_tokens": 0}])
def test_options_of_a_recording_are_checked(wrong):
    with pytest.raises(InvalidParameter, match=next(iter(wrong))):
        record(mock_pair(VERIFIER, DRAFTER), PROMPTS, **wrong)


# --- setting rules ------------------------------------------------------------------------------------------------


def means(p, q, rule):
    """(acceptance, kl, tv) over the rows as they came."""
    return tuple(measure_rows(p.double(), q.double(), rule, MEASURED).mean(0).tolist())


TARGETS = [Target("kl", 0.05), Target("tv", 0.1), Target("acceptance", 0.8)]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.figure)
def test_every_steady_rule_gets_to_the_target(drawn, target):
    p, q, positions = drawn
    calibration = calibrate(positions, STEADY, target)
    assert (calibration.positions, calibration.prompts, calibration.target) == (60, 20, target)
    assert calibration.lossless_acceptance == pytest.approx(means(p, q, Lossless())[0], rel=1e-5)
    for setting, rule in zip(calibration.settings, STEADY, strict=True):
        acceptance, kl, tv = means(p, q, setting.point.rule)
        assert setting.reached
        assert {"acceptance": acceptance, "kl": kl, "tv": tv}[target.figure] == pytest.approx(target.value, rel=0.01)
        assert (setting.point.acceptance, setting.point.kl, setting.point.tv) == pytest.approx(
            (acceptance, kl, tv), rel=1e-4
        )
        assert type(setting.point.rule) is type(rule)


@pytest.mark.parametrize("rule", [Cactus(), *DIALLED[len(STEADY) :]], ids=repr)
def test_reached_says_whether_the_figure_is_the_targets(drawn, rule):
    _, _, positions = drawn
    for target in TARGETS[:2]:
        (setting,) = calibrate(positions, [rule], target).settings
        near = abs(figure_of(setting, target) - target.value) <= 0.01 * target.value
        assert setting.reached == near


@pytest.mark.parametrize(
    ("rule", "target"),
    [
        (Cactus(), Target("kl", 30.0)),
        (TopK(), Target("kl", 1e-9)),
        (Cascade("chow"), Target("tv", 0.99)),
        (BoundedRatio(), Target("acceptance", 0.05)),  # the lossless rule keeps more
    ],
)
def test_a_target_out_of_reach_is_said_to_be(drawn, rule, target):
    _, _, positions = drawn
    (setting,) = calibrate(positions, [rule], target).settings
    assert not setting.reached
    distances = [abs(getattr(point, target.figure) - target.value) for point in setting.coarse]
    assert abs(figure_of(setting, target) - target.value) == pytest.approx(min(distances), rel=0.05, abs=1e-6)


def test_a_figure_that_jumps_is_met_from_below():
    p, q = rows_of(1, V)
    target = Target("tv", 0.02)
    (setting,) = calibrate(positions_of(p, q), [Cascade("diff")], target).settings
    assert not setting.reached
    assert setting.point.tv == pytest.approx(0.0, abs=1e-9)


def test_lead_is_the_paired_difference(drawn):
    _, _, positions = drawn
    first, second = calibrate(positions, [Cactus(), BoundedRatio()], Target("kl", 0.05)).settings
    assert (first.lead, first.lead_error) == (0.0, 0.0)
    a, b = (positions.measure(setting.point.rule, ("acceptance",))[:, 0] for setting in (first, second))
    assert second.lead == pytest.approx(float((b - a).mean()), abs=1e-12)
    assert second.lead == pytest.approx(second.point.acceptance - first.point.acceptance, abs=1e-12)
    assert second.lead_error == pytest.approx(standard_error(b - a, positions.groups), abs=1e-12)
    assert second.lead_error < second.error / 2  # pairs: most of what differs between positions is common
    assert second.error == pytest.approx(standard_error(b, positions.groups), abs=1e-12)
    kl = positions.measure(second.point.rule, ("kl",))[:, 0]
    assert second.kl_tail == pytest.approx(float(kl.quantile(0.99)), abs=1e-12)


def test_standard_error_by_hand():
    values = torch.tensor([1.0, 3.0, 2.0, 6.0, 8.0, 4.0], dtype=torch.float64)  # mean 4
    # groups a: -3 - 1 = -4; b: -2 + 2 = 0; c: 4 + 0 = 4; sum of squares 32; 3 / 2 * 32 = 48; root over 6
    assert standard_error(values, [7, 7, 1, 1, 4, 4]) == pytest.approx(math.sqrt(48) / 6)
    assert standard_error(values, [7, 1, 4, 7, 1, 4]) == pytest.approx(math.sqrt(1.5 * (1 + 9 + 4)) / 6)
    # each its own group: the textbook's
    assert standard_error(values, range(6)) == pytest.approx(float(values.std()) / math.sqrt(6))
    assert math.isnan(standard_error(values, [3] * 6))


def test_progress_ends_with_all_done(drawn):
    _, _, positions = drawn
    told = []
    calibrate(positions, [Cactus(), TopK()], Target("kl", 0.05), lambda *part: told.append(part))
    done = [part[1] for part in told]
    assert {part[2] for part in told} == {done[-1]}
    assert done == sorted(done)
    assert {part[0] for part in told[:-1]} == {"cactus", "top-k"}


def test_calibration_is_json(drawn):
    _, _, positions = drawn
    calibration = calibrate(positions, [Cactus(), Fuzzy()], Target("tv", 0.1))
    document = json.loads(json.dumps(calibration.to_dict(), allow_nan=False))
    assert document["target"] == {"tv": 0.1}
    assert (document["positions"], document["prompts"]) == (60, 20)
    for entry, setting in zip(document["settings"], calibration.settings, strict=True):
        assert parse_rule(entry["rule"]) == setting.point.rule
        assert (entry["kl"], entry["lead"], entry["reached"]) == (setting.point.kl, setting.lead, setting.reached)
        assert [parse_rule(point["rule"]) for point in entry["coarse"]] == [point.rule for point in setting.coarse]


def test_no_positions_or_no_dial_are_errors(drawn):
    _, _, positions = drawn
    with pytest.raises(InvalidParameter, match="no position"):
        calibrate(Positions(3), [Cactus()], Target("kl", 0.05))
    with pytest.raises(InvalidParameter, match="'lossless' cannot be set"):
        calibrate(positions, [Cactus(), Lossless()], Target("kl", 0.05))


@pytest.mark.parametrize("a", [0.0, 0.3, 0.9, 1.0])
def test_tokens_per_call_is_the_geometric_sum(drawn, a):
    from dataclasses import replace

    _, _, positions = drawn
    (setting,) = calibrate(positions, [Cactus()], Target("kl", 0.05)).settings
    setting = replace(setting, point=replace(setting.point, acceptance=a))
    for m in (0, 1, 5):
        expected = m + 1 if a == 1.0 else (1 - a ** (m + 1)) / (1 - a)
        assert setting.tokens_per_call(m) == pytest.approx(expected)
    costs = StepCosts(((0, 1.0), (1, 1.25), (MOST, 5.0)))
    best, speed = setting.speed(costs)
    speeds = {m: setting.tokens_per_call(m) / costs(m) for m in range(1, MOST + 1)}
    assert speed == pytest.approx(max(speeds.values()))
    assert speed == pytest.approx(speeds[best])


# --- targets and dials --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("figure", "value", "bounds"),
    [
        ("kl", 0.0, "above 0"),
        ("kl", -1.0, "above 0"),
        ("kl", math.nan, "above 0"),
        ("kl", math.inf, "above 0"),
        ("tv", 0.0, "between 0 and 1"),
        ("tv", 1.0, "between 0 and 1"),
        ("acceptance", 1.5, "between 0 and 1"),
        ("acceptance", math.nan, "between 0 and 1"),
    ],
)
def test_targets_are_checked(figure, value, bounds):
    with pytest.raises(InvalidParameter, match=f"{figure} is {value}, but must be a number {bounds}"):
        Target(figure, value)
    assert Target("kl", 3.0).value == 3.0


def test_every_rule_but_two_has_a_dial():
    for rule in RULES.values():
        if rule in (Lossless, Fly):
            with pytest.raises(InvalidParameter, match=f"{rule.name!r} cannot be set by measurement"):
                dial_of(rule())
        else:
            assert dial_of(rule()).setting in {setting.name for setting in fields(rule)}
    with pytest.raises(InvalidParameter, match="no setting to turn"):
        dial_of(Lossless())
    with pytest.raises(InvalidParameter, match="tokens behind a position"):
        dial_of(Fly())


@pytest.mark.parametrize("rule", DIALLED, ids=repr)
def test_values_run_from_strict_to_lenient(rule):
    dial = dial_of(rule)
    rising = dial.lenient > dial.strict
    for count in (2, 5, 14, 100):
        values = dial.values(count)
        assert values[0] == dial.strict
        assert values[-1] == pytest.approx(dial.lenient, rel=1e-12)
        assert all((a < b) == rising and a != b for a, b in pairwise(values))
        assert len(values) == count or dial.whole
        for value in values:
            assert min(dial.strict, dial.lenient) <= value <= max(dial.strict, dial.lenient)
            assert isinstance(dial.turned(rule, value), type(rule))


@pytest.mark.parametrize("rule", DIALLED, ids=repr)
def test_between_stays_between(rule):
    dial = dial_of(rule)
    values = dial.values(14)
    for strict, lenient in pairwise(values):
        low, high = sorted((strict, lenient))
        for share in (0.02, 0.98):
            value = dial.between(strict, lenient, share)
            assert low <= value <= high
            assert not dial.whole or value == int(value)
            dial.turned(rule, value)


@pytest.mark.parametrize(
    "rule",
    [Cactus(0.1, "exact", "chi2"), BoundedRatio(2.0, "shift"), Mentored(divergence="kl"), TopK(3, "reference"),
     Typical(0.1, 0.2, "sample"), Cascade("opt", 0.3), Fuzzy(divergence="tv")],
    ids=repr,
)  # fmt: skip
def test_turning_keeps_the_other_settings(rule):
    dial = dial_of(rule)
    value = dial.between(dial.strict, dial.lenient, 0.4)
    turned = dial.turned(rule, value)
    changed = {setting.name for setting in fields(rule) if getattr(rule, setting.name) != getattr(turned, setting.name)}
    assert changed == {dial.setting}
    assert getattr(turned, dial.setting) == value
    if isinstance(rule, TopK):
        assert isinstance(turned.k, int)


@pytest.mark.parametrize("rule", [*STEADY, Fuzzy(), Cascade("chow"), Cascade("diff"), Cascade("opt")], ids=repr)
def test_acceptance_rises_along_the_dial(drawn, rule):
    _, _, positions = drawn
    assert rule.between
    dial = dial_of(rule)
    turned = [dial.turned(rule, value) for value in dial.values(9)]
    found = torch.stack([positions.measure(each, ("acceptance",), every=4)[:, 0] for each in turned])
    assert bool((found.diff(dim=0) > -1e-9).all())
    assert float(found[-1].mean()) > float(found[0].mean())


def test_the_frontier_keeps_all_where_nothing_is_to_be_clipped():
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.3, 0.5])  # quotients of 2.5 and 0.4
    for rho in (7.0, 20.0, 1000.0):
        assert measure(p, q, Frontier(rho)).acceptance == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("rule", [Typical(), TopK(), Cascade("token-v2")], ids=repr)
def test_mean_acceptance_of_the_other_rules_rises_from_end_to_end(drawn, rule):
    _, _, positions = drawn
    dial = dial_of(rule)
    ends = [positions.measure(dial.turned(rule, end), ("acceptance",)).mean() for end in (dial.strict, dial.lenient)]
    assert ends[0] < ends[1]


# --- the command --------------------------------------------------------------------------------------------------

WORDS = ("calibrate", "--positions", "60", "--rule", "cactus", "--rule", "ratio", "--max-new-tokens", "16")


def test_the_command_sets_rules_to_the_target(cactus_command):
    key, value = "tv", 0.08
    status, out, err = cactus_command(*WORDS, "--tv", "0.08", "--json")
    document = json.loads(out, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON: {err}"))
    assert status == 0
    assert document["target"] == {key: value}
    assert document["positions"] == 60
    assert document["prompts"] >= 2
    assert document["m"] == 5
    assert document["bytes"] > 0
    assert document["merged"] < 0.2
    assert 0.0 < document["lossless_acceptance"] < 1.0
    assert [parse_rule(entry["rule"]).name for entry in document["settings"]] == ["cactus", "ratio"]
    for entry in document["settings"]:
        assert entry["reached"]
        assert entry[key] == pytest.approx(value, rel=0.01)
        assert entry["acceptance"] > document["lossless_acceptance"]
        assert {"error", "lead", "lead_error", "kl_tail", "coarse", "tokens_per_call"} <= entry.keys()
        assert 1 <= entry["best_m"] <= MOST
        assert entry["predicted_speed"] > 0.0
    assert document["settings"][0]["lead"] == 0.0


def test_the_table_of_the_command_fits_a_terminal(cactus_command):
    status, out, _ = cactus_command(*WORDS, "--rule", "top-k")
    assert status == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "every rule at a mean kl of 0.05" in out
    assert "60 examined tokens" in out
    assert "cactus:delta=" in out
    assert "ratio:alpha=" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--kl", "0.1", "--tv", "0.1"), "give one of them"),
        (("--kl", "0.1", "--accept", "0.9"), "give one of them"),
        (("--rule", "cacti"), "cacti"),
        (("--rule", "lossless"), "cannot be set by measurement"),
        (("--tv", "1.5"), "between 0 and 1"),
        (("--kl", "0"), "above 0"),
    ],
)
def test_what_the_command_refuses(cactus_command, words, message):
    status, out, err = cactus_command("calibrate", "--positions", "10", "--max-new-tokens", "8", *words)
    assert status != 0
    assert out == ""
    assert message in " ".join(err.replace("│", " ").split())
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--temperature", "0"], "temperature is 0"),
        (["--draft", "prompt-lookup", "--rule", "fuzzy"], "reads how sure the drafter is"),
        (["--rule", "lossless"], "cannot be set by measurement"),
    ],
)
def test_what_cannot_be_calibrated_is_refused_at_once(cactus_command, words, message):
    status, out, err = cactus_command("calibrate", "abacus", *words)
    assert (status, out) == (2, "")
    assert message in " ".join(err.split())


def test_one_prompt_has_no_error_and_the_document_stays_json(cactus_command):
    words = ("--prompt", "Mia has 8 coins. She finds 4 more coins.", "--positions", "20", "--rule", "cactus", "--json")
    document = json.loads(cactus_command("calibrate", "abacus", *words)[1], parse_constant=pytest.fail)
    assert document["settings"][0]["error"] is None


def test_a_of_typical_acceptance_follows_its_dial_unless_it_is_given():
    assert dial_of(Typical()).turned(Typical(), 0.25) == Typical(0.25, 0.5)
    assert dial_of(Typical(a=0.9)).turned(Typical(a=0.9), 0.25) == Typical(0.25, 0.9)
