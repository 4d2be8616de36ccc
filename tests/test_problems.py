"""The word problems: true, distinct, the same everywhere, and strictly read."""

import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cactus_decoding.embedded.problems import Problem, extract_answer, is_correct, make_problem, make_problems
from cactus_decoding.embedded.stories import LARGEST, STEPS

SAMPLE = make_problems(2_000, seed=5)


def test_every_number_follows_from_the_question_or_an_earlier_step() -> None:
    for problem in SAMPLE:
        known = {int(number) for number in re.findall(r"\d+", problem.question)} | {2}  # "twice" and "half" say 2
        for step in problem.steps:
            assert {step.left, step.right} <= known, problem
            assert step.result == eval(f"{step.left}{step.operator}{step.right}"), step
            known.add(step.result)
        assert problem.answer == problem.steps[-1].result


def test_numbers_and_lengths_stay_in_range() -> None:
    for problem in SAMPLE:
        assert len(problem.steps) in STEPS
        for step in problem.steps:
            assert all(1 <= number <= LARGEST for number in (step.left, step.right, step.result))
    assert {len(problem.steps) for problem in SAMPLE} == set(STEPS)


def test_all_operations_occur() -> None:
    assert {step.operator for problem in SAMPLE for step in problem.steps} == set("+-*/")


def test_the_same_seed_gives_the_same_problems_and_another_seed_others() -> None:
    assert make_problems(50, seed=5) == SAMPLE[:50]
    assert make_problems(50, seed=6) != SAMPLE[:50]


def test_problems_do_not_drift_across_platforms_and_versions() -> None:
    first = make_problems(1, seed=0)[0]
    assert first.question == (
        "Leo reads 4 pages each day for 9 days. Then Leo reads 3 more pages. How many pages does Leo read?"
    )
    assert first.answer == 39


def test_questions_are_distinct() -> None:
    assert len({problem.question for problem in SAMPLE}) == len(SAMPLE)


def test_make_problem_needs_only_a_source_of_chance() -> None:
    assert isinstance(make_problem(Random(1)), Problem)


@pytest.mark.parametrize(("count", "seed"), [(-1, 0), (1.5, 0), (True, 0), (1, "a"), (1, None)])
def test_bad_arguments_are_named(count: object, seed: object) -> None:
    with pytest.raises(ValueError, match=r"(count|seed) must"):
        make_problems(count, seed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So Mia has 12+5=17 apples.\n#### 17", 17),
        ("#### 17\n", 17),
        ("#### -3", -3),
        ("#### 17\n#### 18", 17),
        ("#### 007", 7),
        ("", None),
        ("17", None),
        ("####17", None),
        ("#### 17 apples", None),
        ("#### 1 7", None),
        ("##### 17", None),
        ("text #### 17", None),
        ("#### 1.7", None),
        ("#### \u0661\u0667", None),
        ("####\n17", None),
    ],
)
def test_extract_answer(text: str, answer: int | None) -> None:
    assert extract_answer(text) == answer


@given(st.integers(), st.text(alphabet="ab 1=+.\n"))
def test_extract_answer_finds_what_was_written(number: int, before: str) -> None:
    assert extract_answer(f"{before}\n#### {number}") == number


def test_is_correct() -> None:
    problem = SAMPLE[0]
    assert is_correct(f"...\n#### {problem.answer}", problem)
    assert not is_correct(f"...\n#### {problem.answer + 1}", problem)
    assert not is_correct(f"{problem.answer}", problem)
