"""A grid of settings, of which the hopeless ones are not run to the end."""

import numpy as np
import pytest

from cactus_decoding.evaluation import sweep as module
from cactus_decoding.evaluation.outcomes import Outcomes
from cactus_decoding.evaluation.plan import Setting
from cactus_decoding.evaluation.running import Run
from cactus_decoding.evaluation.sweep import beaten, sweep
from cactus_decoding.sampling import SamplingParams
from tests.evaluated import CACTUS, LOSSLESS, PLAIN, VERIFIER, bytes_in, lines_in, plan_of, responses_in

RATIO = Setting.of("ratio:2", 5, PLAIN)
N = 200


def outcome(right, seconds, spread=0.1):
    """``right`` of N problems, each in about so many seconds."""
    scores = (np.arange(N) < right).astype(float)[:, None]
    times = seconds * (1 + spread * np.sin(np.arange(N)))
    return Outcomes(scores, {"seconds": times, "answers": np.ones(N)}, np.zeros((0, 3), dtype=np.int64))


def leavers(**found):
    """Of settings by name, who is beaten by whom."""
    named = {"lossless": LOSSLESS, "verifier": VERIFIER, "cactus": CACTUS, "ratio": RATIO}
    names = {setting: name for name, setting in named.items()}
    return {names[one]: names[by] for one, by, _ in beaten({named[name]: value for name, value in found.items()})}


def test_times_of_one_chunk_count_once():
    slow, fast = outcome(180, 1.0, 0.0), outcome(180, 0.9, 0.0)
    slow.columns["seconds"][:100] = 0.8  # the second half met a busy machine
    assert leavers(cactus=slow, ratio=fast) == {}
    chunked = [
        Outcomes(one.scores, one.columns, one.places, chunk=100) for one in (outcome(180, 1.0), outcome(180, 0.8))
    ]
    assert leavers(cactus=chunked[0], ratio=chunked[1]) == {"cactus": "ratio"}


def test_surely_worse_and_no_faster_is_beaten():
    assert leavers(cactus=outcome(120, 1.0), ratio=outcome(180, 1.0)) == {"cactus": "ratio"}
    assert leavers(cactus=outcome(120, 1.0), ratio=outcome(180, 1.01)) == {}


def test_surely_slower_and_no_better_is_beaten():
    assert leavers(cactus=outcome(180, 1.0), ratio=outcome(180, 0.8)) == {"cactus": "ratio"}
    assert leavers(cactus=outcome(181, 1.0), ratio=outcome(180, 0.8)) == {}


def test_what_is_undecided_stays():
    noisy = outcome(178, 1.0)
    noisy.columns["seconds"][:] = np.where(np.arange(N) % 2, 0.1, 1.9)
    assert leavers(cactus=noisy, ratio=outcome(180, 0.95)) == {}
    assert leavers(cactus=outcome(180, 1.0), ratio=outcome(180, 1.0)) == {}


def test_references_never_leave_but_beat_others():
    assert leavers(lossless=outcome(100, 9.0), verifier=outcome(90, 10.0), cactus=outcome(180, 1.0)) == {}
    assert leavers(lossless=outcome(180, 1.0), cactus=outcome(120, 1.0)) == {"cactus": "lossless"}


def test_one_that_left_beats_nobody_and_the_reason_is_told():
    found = {CACTUS: outcome(120, 1.0), RATIO: outcome(110, 1.2), LOSSLESS: outcome(180, 0.9)}
    assert beaten(found) == [
        (CACTUS, LOSSLESS, "30.0 points better and no slower"),
        (RATIO, LOSSLESS, "35.0 points better and no slower"),
    ]


def test_settings_of_another_temperature_are_no_rivals():
    cold = Setting.of("cactus:1", 5, SamplingParams(temperature=0.5))
    assert beaten({CACTUS: outcome(120, 1.0), cold: outcome(180, 0.5)}) == []


def test_a_hopeless_setting_is_stopped_and_the_same_sweep_again_finds_the_same(tmp_path):
    bad = Setting.of("interpolation:1", 1, PLAIN)  # the drafter's own answers, half of them wrong, token by token
    plan = plan_of([LOSSLESS, CACTUS, bad.lossless, bad], limit=40, rows=4, audit_every=0)
    ends, told = [], []
    for _ in range(2):
        with Run(plan, tmp_path) as run:
            ends.append(sweep(run, lambda done, parts: None, told.append))
        if len(ends) == 1:
            before = bytes_in(tmp_path / "responses")
    assert ends[0] == ends[1]
    assert bytes_in(tmp_path / "responses") == before
    left, stopped = ends[0]
    assert told == stopped * 2
    assert left.settings == (LOSSLESS, CACTUS, bad.lossless)
    assert [(one.setting, one.problems) for one in stopped] == [("interpolation:w=1 m=1", 32)]
    assert {place.split("/")[2] for place in lines_in(tmp_path) if "0002" in place} == {
        one.key for one in left.settings
    }


def test_an_interrupted_sweep_goes_on_to_the_same_end(tmp_path, monkeypatch):
    """Judged by hand here, so that no clock decides: whoever has the larger budget leaves at the first look."""

    def judge(found):
        return [(CACTUS, LOSSLESS, "better")] if CACTUS in found else []

    def interrupt(done, parts):
        if done >= 20:
            raise KeyboardInterrupt

    plan = plan_of([LOSSLESS, CACTUS, RATIO], limit=14, rows=1, audit_every=0)
    ends, seen = [], {}
    monkeypatch.setattr(module, "beaten", judge)
    with pytest.raises(KeyboardInterrupt), Run(plan, tmp_path / "parts") as run:
        sweep(run, interrupt)
    for name in ("whole", "parts"):
        with Run(plan, tmp_path / name) as run:
            ends.append(sweep(run, lambda *progress, name=name: seen.setdefault(name, []).append(progress)))
        assert seen[name][-1] == (28, 28)  # two settings, 14 problems
    assert ends[0] == ends[1]
    (left, stopped) = ends[0]
    assert left.settings == (LOSSLESS, RATIO)
    assert [(one.setting, one.by, one.problems) for one in stopped] == [("cactus:delta=1", "lossless", 8)]
    assert responses_in(tmp_path / "parts") == responses_in(tmp_path / "whole")
