"""The adaptive draft length: the formula, what is learnt from events, switching off and coming back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cactus_decoding.generation.drafting import (
    MOST,
    AcceptanceHistory,
    StepCosts,
    best_m,
    choose_m,
    expected_tokens,
)
from cactus_decoding.generation.events import Event
from cactus_decoding.testing import scripted_pair
from cactus_decoding.verify import Verdict

COSTS = StepCosts(((0, 1.0), (1, 1.3), (16, 2.8)))  # a tenth of a verifier call per draft


def block(length, kept):
    """A step that drafted ``length`` tokens, of which ``kept`` were kept."""
    verdicts = [Verdict.KEPT] * kept + [Verdict.REFUSED] * (kept < length)
    verdicts += [Verdict.UNEXAMINED] * (length - len(verdicts))
    numbers = (0.5,) * length
    return Event(0, (1,) * length, numbers, numbers, numbers, numbers, tuple(verdicts), 2, 0.5, 0.5, kept == length)


@pytest.mark.parametrize("m", range(MOST + 1))
def test_with_one_chance_everywhere_the_sum_is_the_papers_formula(m):
    a = 0.8
    assert expected_tokens([a ** (j + 1) for j in range(MOST)], m) == pytest.approx((1 - a ** (m + 1)) / (1 - a))


def test_costs_are_measured_ones_and_lines_between_and_behind_them():
    costs = StepCosts(((0, 1.0), (2, 2.0), (4, 5.0)))
    assert [costs(m) for m in range(6)] == [1.0, 1.5, 2.0, 3.5, 5.0, 6.5]


@given(
    chances=st.lists(st.lists(st.floats(0, 1), min_size=MOST, max_size=MOST), min_size=1, max_size=4),
    steps=st.lists(st.floats(0.01, 3), min_size=MOST, max_size=MOST),
)
def test_the_best_m_is_the_fastest_of_all_or_none_comes_near_the_verifier_alone(chances, steps):
    seconds = [1.0]
    for more in steps:
        seconds.append(seconds[-1] + more)
    costs = StepCosts(tuple(enumerate(seconds)))
    survivals = [[min(row[: j + 1]) for j in range(MOST)] for row in chances]
    speeds = [sum(1 + sum(row[:m]) for row in survivals) / seconds[m] for m in range(MOST + 1)]
    found = best_m(costs, survivals)
    if found:
        assert speeds[found] == pytest.approx(max(speeds[1:]))
        assert speeds[found] >= 0.949 * speeds[0]
    else:
        assert max(speeds[1:]) <= 0.951 * speeds[0]


def test_a_history_finds_the_acceptance_of_each_place():
    history = AcceptanceHistory()
    for _ in range(50):
        for kept in (0, 2, 3, 3):  # the first place keeps 3 of 4, the second all, the third 2 of 3
            history.note(block(3, kept))
    first, second, third, *_ = history.survival()
    assert first == pytest.approx(0.75, abs=0.07)
    assert second / first > 0.9
    assert third / second == pytest.approx(2 / 3, abs=0.1)


def test_ignored_and_unexamined_drafts_teach_nothing():
    history, same = AcceptanceHistory(), AcceptanceHistory()
    history.note(block(1, 0))
    same.note(block(9, 0))
    assert history.survival() == same.survival()


def test_the_more_is_accepted_the_more_is_drafted():
    chosen = []
    for kept in (0, 1, 2, 8):
        history = AcceptanceHistory()
        for _ in range(30):
            history.note(block(8, kept))
        chosen.append(choose_m(COSTS, [history]))
    assert chosen == sorted(chosen)
    assert chosen[0] == 0
    assert chosen[-1] >= 8


def steps_until_drafting(history):
    for waited in range(1000):
        m = choose_m(COSTS, [history])
        if m:
            return waited, m
        history.note(block(0, 0))
    raise AssertionError("drafting never came back")


def test_drafting_that_loses_is_tried_again_later_and_later_and_comes_back_when_it_pays():
    history = AcceptanceHistory()
    for _ in range(40):
        history.note(block(4, 0))
    pauses = []
    for _ in range(7):
        waited, m = steps_until_drafting(history)
        assert m == 2
        pauses.append(waited)
        history.note(block(2, 0))
    assert pauses == [8, 16, 32, 64, 128, 128, 128]
    trials = 0
    while choose_m(COSTS, [history]) <= 2:  # a trial that pays is followed by the next one at once, in the end
        steps_until_drafting(history)
        history.note(block(2, 2))
        trials += 1
        assert trials < 60
    history.judge(True)
    history.note(block(0, 0))
    assert not history.due


def test_one_length_serves_a_batch():
    good, bad = AcceptanceHistory(), AcceptanceHistory()
    for _ in range(30):
        good.note(block(8, 8))
        bad.note(block(8, 0))
    assert choose_m(COSTS, [bad]) == 0
    assert 0 < choose_m(COSTS, [good, bad]) <= choose_m(COSTS, [good])


def test_a_drafter_that_is_always_wrong_is_left_alone():
    """Costs of the mock: a draft is a tenth of a verifier call."""
    text = "All happy families are alike; every unhappy family is unhappy in its own way. " * 4
    out = scripted_pair(text, acceptance=0.0).generate("?", max_new_tokens=400)
    assert out.text == text
    assert out.stats.drafted < 60
    assert out.stats.calls_without_draft > 250
    drafted = scripted_pair(text, acceptance=1.0).generate("?", max_new_tokens=400)
    assert drafted.text == text
    assert drafted.stats.verifier_calls < 60
