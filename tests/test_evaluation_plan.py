"""What a run asks: the same problems, the same seeds, and every setting beside its reference."""

import pytest

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.evaluation.plan import Setting
from cactus_decoding.rules import Fly
from cactus_decoding.sampling import SamplingParams
from tests.evaluated import CACTUS, LOSSLESS, PLAIN, VERIFIER, alike, carried_out, plan_of, responses_in

RATIO = Setting.of("ratio:2", 5, PLAIN)


def test_all_settings_meet_the_same_seeds_and_every_sample_another(tmp_path):
    plan = plan_of([LOSSLESS, CACTUS, VERIFIER], limit=4, samples=2, audit_every=2)
    carried_out(plan, tmp_path)
    found, seeds, audited, drafted = responses_in(tmp_path), {}, {}, {}
    for (place, item, sample), record in found.items():
        rule = place.split("/")[2].split(",")[0]
        seeds.setdefault((item, sample), set()).add(record["seed"])
        audited.setdefault(rule, []).extend([int(item)] if record["stats"]["audit"] else [])
        drafted[rule] = drafted.get(rule, 0) + record["stats"]["drafted"]
    assert len(found) == 3 * 4 * 2
    assert all(len(some) == 1 for some in seeds.values())
    assert len(set.union(*seeds.values())) == len(seeds) == 8
    measured = sorted(2 * [number for number in range(4) if plan.audits(number)])
    assert {rule: sorted(items) for rule, items in audited.items()} == {
        "lossless": measured, "cactus_delta=1": measured, "verifier": []
    }  # fmt: skip
    assert 0 < len(measured) < 8
    assert drafted["verifier"] == 0 < drafted["lossless"]
    # the first samples are those of a run without second ones, however many rows decode beside them
    carried_out(plan_of([CACTUS, LOSSLESS], limit=4, rows=1, audit_every=2), tmp_path / "alone")
    alone = responses_in(tmp_path / "alone")
    assert len(alone) == 8
    for key, record in alone.items():
        assert alike(record, found[key])


def test_max_relaxed_binds_the_rule_and_not_lossless(tmp_path):
    carried_out(plan_of(max_relaxed=2, limit=4), tmp_path)
    relaxed = {"lossless": [], "cactus": []}
    for (place, _, _), record in responses_in(tmp_path).items():
        relaxed["cactus" if "cactus" in place else "lossless"].append(record["stats"]["relaxed"])
    assert max(relaxed["cactus"]) == 2
    assert max(relaxed["lossless"]) == 0


def test_options_of_a_response():
    plan = plan_of(max_new_tokens=7, max_relaxed=0.5, audit_every=3, seed=2**64 - 1)
    cold = Setting.of("cactus:1", 3, SamplingParams(temperature=0.5))
    found = plan.options(cold, {"max_new_tokens": 160, "stop": ["x"]}, 3, 0)
    assert (found["m"], found["temperature"], found["max_new_tokens"], found["stop"]) == (3, 0.5, 7, ["x"])
    assert (found["seed"], found["audit"], found["max_relaxed"]) == (2, int(plan.audits(3)), 0.5)
    assert "chat" not in found
    audited = next(number for number in range(100) if plan.audits(number))
    assert plan.options(cold, {}, audited, 0)["audit"] == 1
    assert plan.options(Setting.of("fly", 3, PLAIN), {}, audited, 0)["audit"] == int(not Fly().looks_ahead)
    assert plan_of(chat=False).options(cold, {}, 0, 0)["chat"] is False
    assert "rule" not in plan.options(VERIFIER, {}, 3, 0)


def test_audits_fall_on_every_kind_of_a_task_that_deals_them_in_turns():
    for every in (2, 4, 10):
        plan = plan_of(audit_every=every)
        kinds = [sum(plan.audits(number) for number in range(kind, 4000, 4)) for kind in range(4)]
        assert min(kinds) > 0.8 * 1000 / every
        assert max(kinds) < 1.2 * 1000 / every
    assert not any(plan_of(audit_every=0).audits(number) for number in range(100))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": ()}, "there is no rule to evaluate"),
        ({"tasks": ()}, "there is no task to evaluate"),
        ({"settings": (LOSSLESS, CACTUS, CACTUS)}, "the rule 'cactus:delta=1' is given twice"),
        ({"settings": (LOSSLESS, RATIO, Setting.of("ratio:2.0", 5, PLAIN))}, "'ratio:alpha=2' is given twice"),
        ({"tasks": ("abacus", "abacus")}, "the task 'abacus' is given twice"),
        ({"settings": (CACTUS,)}, "lossless with m=5 is not among the settings"),
        ({"settings": (LOSSLESS, Setting.of("cactus:1", 6, PLAIN))}, "lossless with m=6"),
        ({"settings": (VERIFIER,)}, "the verifier alone has nothing to be compared with"),
        ({"samples": 0}, "samples is 0"),
        ({"limit": 0}, "limit is 0"),
        ({"rows": 0}, "rows is 0"),
    ],
)  # fmt: skip
def test_a_plan_that_compares_nothing_is_refused(change, message):
    with pytest.raises(InvalidParameter, match=message):
        plan_of(**change)
