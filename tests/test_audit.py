"""The exact meter: figures of every audited call against the tables that the laws come from, and their sums."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from cactus_decoding.drafters import PromptLookup
from cactus_decoding.errors import InvalidParameter
from cactus_decoding.fidelity import FIGURES, measure
from cactus_decoding.generation.audit import audit_of
from cactus_decoding.induced import acceptance, induced_law
from cactus_decoding.rules import (
    BoundedRatio,
    Cactus,
    Cascade,
    Ears,
    Fly,
    Frontier,
    Interpolation,
    Lossless,
    Mentored,
    TopK,
    Typical,
)
from cactus_decoding.testing import mock_pair, random_table
from cactus_decoding.verify import Verdict

V = 8
VERIFIER = random_table(0, V)
DRAFTER = 0.5 * VERIFIER + 0.5 * random_table(1, V)
PROMPT = [3, 1, 4]
EXAMINED = (Verdict.KEPT, Verdict.RELAXED, Verdict.REFUSED)
RULES = [
    Lossless(), Cactus(0.5), Cactus(0.5, "exact"), BoundedRatio(3.0), BoundedRatio(3.0, "shift"), Typical(),
    TopK(3), Mentored(0.1, divergence="kl"), Frontier(2.0), Interpolation(0.5), Ears(0.3), Cascade("token-v3"),
]  # fmt: skip


@pytest.fixture(scope="module")
def pair():
    return mock_pair(VERIFIER, DRAFTER)


def laws_at(out, event, place, temperature=1.0, certain=False):
    """(p, q) of a place of a block, from the tables."""
    before = [*out.prompt_ids, *out.ids[: event.position], *event.draft[:place]][-1]
    q = (VERIFIER[before].log() / temperature).softmax(-1)
    if certain:
        return torch.nn.functional.one_hot(torch.tensor(event.draft[place]), V).double(), q
    return (DRAFTER[before].log() / temperature).softmax(-1), q


def examined_places(event):
    return [place for place, verdict in enumerate(event.verdicts) if verdict in EXAMINED]


def values(figures):
    return [getattr(figures, name) for name in FIGURES]


def require_audit(out, rule, every=1, **laws):
    """The figures of every ``every``-th call are those of `measure`; others have none. Returns how many there are."""
    found = 0
    for number, event in enumerate(out.events):
        if number % every:
            assert event.audit is None
            continue
        places = examined_places(event)
        assert len(event.audit) == len(places)
        for place, figures in zip(places, event.audit):
            expected = measure(*laws_at(out, event, place, **laws), rule)
            assert values(figures) == pytest.approx(values(expected), rel=1e-4, abs=1e-6)
            found += 1
    return found


# --- figures of calls ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_every_place_has_the_figures_of_its_laws(pair, rule):
    out = pair.generate(PROMPT, rule=rule, m=4, max_new_tokens=16, seed=2, audit=1)
    assert require_audit(out, rule) == out.stats.examined > 0
    assert (out.stats.audit.calls, out.stats.audit.audited) == (out.stats.verifier_calls,) * 2
    assert out.stats.audit.tokens == out.stats.tokens


def test_laws_are_those_after_temperature(pair):
    out = pair.generate(PROMPT, rule=Cactus(0.5), m=3, max_new_tokens=30, seed=2, audit=1, temperature=0.6)
    assert require_audit(out, Cactus(0.5), temperature=0.6) > 10


@pytest.mark.parametrize("every", [2, 3, 7])
def test_every_so_many_calls_are_audited_and_the_first_is(pair, every):
    out = pair.generate(PROMPT, rule=Cactus(0.5), m=3, max_new_tokens=60, seed=4, audit=every)
    assert require_audit(out, Cactus(0.5), every) > 3
    audited = [number for number, event in enumerate(out.events) if event.audit is not None]
    assert audited == [*range(0, len(out.events), every)]
    assert (out.stats.audit.calls, out.stats.audit.audited) == (len(out.events), len(audited))


def test_certain_drafts_are_audited_as_point_masses():
    pair = mock_pair(VERIFIER, PromptLookup())
    rule = BoundedRatio(1.5)
    out = pair.generate([1, 2, 3, 1, 2, 5, 1, 2], rule=rule, m=3, max_new_tokens=40, seed=1, audit=1)
    assert require_audit(out, rule, certain=True) == out.stats.examined > 10
    assert out.stats.audit.total_kl > 0.0


@pytest.mark.parametrize("rule", [Lossless(), Cactus(0.5), BoundedRatio(2.0, "shift"), TopK(3)], ids=repr)
@pytest.mark.parametrize("every", [1, 2])
def test_an_audit_changes_no_text(rule, every):
    pair = mock_pair()  # one that writes letters
    options = {"rule": rule, "m": 4, "max_new_tokens": 20, "seed": 6}
    plain, audited = pair.generate("abc", **options), pair.generate("abc", **options, audit=every)
    assert (plain.text, plain.ids) == (audited.text, audited.ids)
    assert plain.stats.audit is None
    assert all(event.audit is None for event in plain.events)
    assert [replace(event, audit=None) for event in audited.events] == list(plain.events)


def test_responses_of_a_batch_are_audited_as_alone(pair):
    options = {"rule": Cactus(0.5), "m": 3, "max_new_tokens": 25}
    together = pair.generate([PROMPT, [5], [2, 2, 2, 2]], **options, seed=3, audit=2)
    for number, out in enumerate(together):
        require_audit(out, Cactus(0.5), 2)
        alone = pair.generate(out.prompt_ids, **options, seed=3 + number, audit=2)
        assert alone.ids == out.ids
        assert alone.stats.audit == out.stats.audit


def test_a_stop_inside_a_block_leaves_no_figures_behind_it():
    pair = mock_pair(VERIFIER, 0.9 * VERIFIER + 0.1 * DRAFTER, eos=[2])
    ignored = ends = 0
    for seed in range(20):
        out = pair.generate(PROMPT, rule=Cactus(1.0), m=6, max_new_tokens=60, seed=seed, audit=1)
        last = out.events[-1]
        ends += out.finish_reason == "eos"
        ignored += last.verdicts.count(Verdict.IGNORED)
        assert len(last.audit) == len(examined_places(last)) <= len(last.tokens())
        assert out.stats.audit.tokens == len(out.ids)
    assert ends > 15
    assert ignored > 5


def test_at_the_cap_the_last_call_may_have_nothing_to_examine(pair):
    out = pair.generate(PROMPT, rule=Cactus(0.5), m=4, max_new_tokens=1, seed=1, audit=1)
    assert out.events[0].audit == ()
    assert (out.stats.audit.tokens, out.stats.audit.total_kl, out.stats.audit.max_kl) == (1, 0.0, 0.0)


@pytest.mark.parametrize("budget", [0, 1, 4])
def test_behind_the_spent_budget_the_law_is_the_verifiers(pair, budget):
    rule = Cactus(1.0)
    relaxed = spent_inside_a_block = 0
    for seed in range(3):
        out = pair.generate(PROMPT, rule=rule, m=5, max_new_tokens=30, seed=seed, max_relaxed=budget, audit=1)
        left = budget
        for event in out.events:
            begun_with = left
            for place, figures in zip(examined_places(event), event.audit, strict=True):
                used = rule if left > 0 else Lossless()
                expected = measure(*laws_at(out, event, place), used)
                assert values(figures) == pytest.approx(values(expected), rel=1e-4, abs=1e-6)
                assert (figures.kl > 1e-6) == (left > 0)
                spent_inside_a_block += left == 0 < begun_with
                left -= event.verdicts[place] is Verdict.RELAXED
        relaxed += budget - left
    assert relaxed == 3 * budget
    assert budget == 0 or spent_inside_a_block > 0


def test_the_verifier_alone_does_not_stray(pair):
    audit = pair.generate(PROMPT, m=0, max_new_tokens=12, seed=1, audit=1).stats.audit
    assert (audit.calls, audit.audited, audit.tokens) == (12, 12, 12)
    assert (audit.mean_kl, audit.max_kl, audit.mean_tv, audit.total_kl, audit.total_kl_high) == (0.0,) * 5


# --- sums ---------------------------------------------------------------------------------------------------------


def test_sums_by_hand(pair):
    out = pair.generate(PROMPT, rule=Cactus(0.5), m=3, max_new_tokens=60, seed=4, audit=3)
    audited = [event for event in out.events if event.audit is not None]
    kl = [[figures.kl for figures in event.audit] for event in audited]
    tv = [figures.tv for event in audited for figures in event.audit]
    tokens = sum(event.kept + (event.emitted is not None) for event in audited)
    audit = out.stats.audit
    assert audit.tokens == tokens
    assert audit.mean_kl == pytest.approx(sum(map(sum, kl)) / tokens)
    assert audit.max_kl == max(map(max, kl))
    assert audit.mean_tv == pytest.approx(sum(tv) / tokens)
    assert audit.total_kl == pytest.approx(sum(map(sum, kl)) * len(out.events) / len(audited))
    sums, n, calls = [sum(call) for call in kl], len(kl), len(out.events)
    variance = sum((x - sum(sums) / n) ** 2 for x in sums) / (n - 1)
    half = 1.959964 * calls * math.sqrt(variance / n * (1 - n / calls))
    assert audit.total_kl_high - audit.total_kl == pytest.approx(half, rel=1e-5)
    assert audit.total_kl_low == pytest.approx(max(audit.total_kl - half, 0.0), rel=1e-5)


def test_where_all_calls_are_audited_the_interval_is_a_point(pair):
    audit = pair.generate(PROMPT, rule=Cactus(0.5), m=3, max_new_tokens=30, seed=1, audit=1).stats.audit
    assert audit.total_kl_low == audit.total_kl == audit.total_kl_high > 0.0
    assert audit.total_kl == pytest.approx(audit.mean_kl * audit.tokens)


def test_an_interval_from_half_the_calls_mostly_holds_the_total(pair):
    options = {"rule": Cactus(0.5), "m": 2, "max_new_tokens": 45, "seed": 0}
    whole, half = (pair.generate([PROMPT] * 20, **options, audit=every) for every in (1, 2))
    held = 0
    for all_calls, some in zip(whole, half):
        assert [event.audit for event in some.events[::2]] == [event.audit for event in all_calls.events[::2]]
        held += some.stats.audit.total_kl_low <= all_calls.stats.audit.total_kl <= some.stats.audit.total_kl_high
    assert held >= 16  # of 20; 19 are expected
    totals = [sum(out.stats.audit.total_kl for out in outs) for outs in (whole, half)]
    assert totals[1] == pytest.approx(totals[0], rel=0.1)


def test_intervals_of_random_samples_of_calls_hold_the_total(pair):
    outs = pair.generate([PROMPT] * 4, rule=Cactus(0.5), m=2, max_new_tokens=60, seed=9, audit=1)
    events = [event for out in outs for event in out.events]
    total = audit_of(events).total_kl
    assert total == pytest.approx(sum(out.stats.audit.total_kl for out in outs))
    generator = torch.Generator().manual_seed(0)
    held = 0
    for _ in range(300):
        chosen = set(torch.randperm(len(events), generator=generator)[: len(events) // 3].tolist())
        audit = audit_of([event if i in chosen else replace(event, audit=None) for i, event in enumerate(events)])
        held += audit.total_kl_low <= total <= audit.total_kl_high
    assert 0.85 < held / 300 < 0.99  # of 95% in the long run; calls are few here and not normal


def test_no_audit_without_audited_calls(pair):
    out = pair.generate(PROMPT, m=3, max_new_tokens=10, seed=1)
    assert audit_of(out.events) is None
    assert audit_of([]) is None
    assert out.stats.to_dict()["audit"] is None


def test_the_lossless_rule_never_strays(pair):
    for out in pair.generate([PROMPT] * 8, rule=Lossless(), m=4, max_new_tokens=30, seed=0, audit=1):
        assert out.stats.audit.total_kl == pytest.approx(0.0, abs=1e-9)
        assert out.stats.audit.mean_tv == pytest.approx(0.0, abs=1e-6)


# --- what the total estimates -------------------------------------------------------------------------------------

SMALL_VERIFIER = random_table(5, 3)
SMALL_DRAFTER = random_table(6, 3)


def texts_of(rule, length):
    """(law over whole texts behind id 0, expected sum of KL), with one draft per call, by going through all paths."""
    p, q = SMALL_DRAFTER, SMALL_VERIFIER
    law = induced_law(p, q, rule)
    kept = torch.minimum(p, torch.stack([rule.target(p[i], q[i]) for i in range(3)]))
    strays = (law * (law / q).log()).sum(-1)
    texts, expected = {}, 0.0
    paths = [((0,), 1.0)]
    while paths:
        text, chance = paths.pop()
        wanted, last = length + 1 - len(text), text[-1]
        if wanted == 0:
            texts[text] = texts.get(text, 0.0) + chance
            continue
        if wanted == 1:
            paths += [((*text, x), chance * float(q[last, x])) for x in range(3)]
            continue
        expected += chance * float(strays[last])
        for x in range(3):
            paths.append(((*text, x), chance * float(law[last, x] - kept[last, x])))
            for y in range(3):  # behind a draft that was kept: a bonus from q
                paths.append(((*text, x, y), chance * float(kept[last, x] * q[x, y])))
    return texts, expected


def test_the_mean_total_is_the_expected_sum_and_bounds_the_divergence_of_texts():
    rule, length = Cactus(0.5), 5
    texts, expected = texts_of(rule, length)
    assert sum(texts.values()) == pytest.approx(1.0)
    divergence = 0.0
    for text, chance in texts.items():
        verifiers = math.prod(float(SMALL_VERIFIER[a, b]) for a, b in pairwise(text))
        divergence += chance * math.log(chance / verifiers)
    assert 0.5 * expected < divergence < expected  # a text does not tell where its blocks began
    pair = mock_pair(SMALL_VERIFIER, SMALL_DRAFTER)
    outs = pair.generate([[0]] * 200, rule=rule, m=1, max_new_tokens=length, seed=1, audit=1)
    totals = torch.tensor([out.stats.audit.total_kl for out in outs], dtype=torch.float64)
    assert abs(float(totals.mean()) - expected) < 4 * float(totals.std()) / math.sqrt(len(totals))


def test_relaxed_share_estimates_what_the_audit_measures(pair):
    outs = pair.generate([PROMPT] * 16, rule=Cactus(0.3), m=4, max_new_tokens=60, seed=0, audit=1)
    require_agreement(outs)


def test_whole_blocks_with_a_relaxing_rule(pair):
    rule = Cactus(0.3)
    outs = pair.generate([PROMPT] * 16, rule=rule, m=4, max_new_tokens=60, seed=0, audit=1, block=True)
    assert all(require_audit(out, rule) for out in outs[:3])
    require_agreement(outs)


def require_agreement(outs):
    """The share of relaxed tokens against the mean total variation of the places that were examined."""
    figures = [each for out in outs for event in out.events for each in event.audit]
    examined = sum(out.stats.examined for out in outs)
    assert len(figures) == examined > 700
    share = sum(out.stats.relaxed for out in outs) / examined
    mean_tv = sum(each.tv for each in figures) / examined
    assert share == pytest.approx(mean_tv, abs=4 * math.sqrt(share / examined))
    assert share > 0.05


def test_acceptance_of_the_audit_is_the_rules(pair):
    outs = pair.generate([PROMPT] * 12, rule=BoundedRatio(1.5), m=3, max_new_tokens=40, seed=0, audit=1)
    figures = [each for out in outs for event in out.events for each in event.audit]
    accepted, examined = (sum(getattr(out.stats, name) for out in outs) for name in ("accepted", "examined"))
    mean = sum(each.acceptance for each in figures) / examined
    assert accepted / examined == pytest.approx(mean, abs=4 * math.sqrt(0.25 / examined))
    rows = acceptance(DRAFTER, VERIFIER, BoundedRatio(1.5))
    assert all(float((rows - each.acceptance).abs().min()) < 1e-6 for each in figures)


# --- requests and JSON --------------------------------------------------------------------------------------------


def test_a_rule_that_looks_ahead_cannot_be_audited(pair):
    with pytest.raises(InvalidParameter, match=r"audit is 1, but Fly\(.*cannot be measured position by position"):
        pair.generate(PROMPT, rule=Fly(), m=3, max_new_tokens=5, audit=1)
    assert pair.generate(PROMPT, rule=Fly(), m=3, max_new_tokens=5, seed=1, audit=0).stats.audit is None


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "all"])
def test_audit_is_a_whole_number(pair, wrong):
    with pytest.raises(InvalidParameter, match="audit is .* but must be a whole number, at least 0"):
        pair.generate(PROMPT, m=3, max_new_tokens=5, audit=wrong)


@pytest.mark.parametrize("rule", [Cactus(0.5), BoundedRatio(2.0), TopK(2), Typical()], ids=repr)
def test_an_audit_is_json(pair, rule):
    stats = pair.generate(PROMPT, rule=rule, m=3, max_new_tokens=30, seed=2, audit=1).stats
    document = json.loads(json.dumps(stats.to_dict(), allow_nan=False))
    assert document["audit"]["audited"] == stats.verifier_calls
    assert document["audit"]["total_kl"] == stats.audit.total_kl


def test_one_audited_call_of_several_has_no_interval(pair):
    audit = pair.generate(PROMPT, rule=Cactus(0.5), m=3, max_new_tokens=30, seed=2, audit=1000).stats.audit
    assert audit.audited == 1 < audit.calls
    document = json.loads(json.dumps(audit.to_dict(), allow_nan=False))
    assert (document["total_kl_low"], document["total_kl_high"]) == (None, None)
    assert document["total_kl"] == pytest.approx(audit.calls * audit.mean_kl * audit.tokens)


def test_events_with_figures_are_json(pair):
    out = pair.generate(PROMPT, rule=Cactus(0.5), m=3, max_new_tokens=12, seed=2, audit=2)
    for event in out.events:
        document = json.loads(json.dumps(event.to_dict()))
        if event.audit is None:
            assert document["audit"] is None
        else:
            assert [[entry[name] for name in FIGURES] for entry in document["audit"]] == [*map(values, event.audit)]


def test_infinite_divergences_are_null_in_json():
    """A certain draft that a capped target keeps for good drops all other tokens: KL(q || law) is infinite."""
    q = torch.tensor([0.6, 0.4], dtype=torch.float64)
    figures = measure(torch.tensor([1.0, 0.0], dtype=torch.float64), q, Cactus(2.0))
    assert figures.reverse_kl == math.inf
    assert figures.to_dict()["reverse_kl"] is None
    json.dumps(figures.to_dict(), allow_nan=False)
