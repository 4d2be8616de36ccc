"""Grade-school word problems whose answers are known by construction.

A problem is a question together with the calculation steps that solve it. How a step is put into words is no
matter of this package: the two voices of the Abacus pair live beside the training code. A seed names the same
problems on every machine.
"""

import re
from dataclasses import dataclass
from random import Random

from cactus_decoding.embedded.stories import KINDS, Step, Story

DEMO_SEED = 3_000_003
"""Problems for showing things: the pair was trained on none of the first 10,000 of this seed."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A question, the steps that solve it, and the answer (the result of the last step)."""

    question: str
    steps: tuple[Step, ...]
    answer: int


def make_problem(rng: Random) -> Problem:
    """Draw one problem of 2 to 4 steps; stories with numbers out of range are thrown away and drawn anew."""
    while True:
        story = Story(rng)
        kind = story.weighted(KINDS)
        kind(story)
        if story.fits():
            return Problem(" ".join(story.sentences), tuple(story.steps), story.steps[-1].result)


def make_problems(count: int, seed: int) -> list[Problem]:
    """Draw `count` problems with distinct questions; the same seed gives the same list on every machine.

    Raises ValueError if `count` is negative or either argument is no integer.
    """
    for name, number in (("count", count), ("seed", seed)):
        if isinstance(number, bool) or not isinstance(number, int):
            raise ValueError(f"{name} must be an integer, got {number!r}; pass a whole number such as 100")
    if count < 0:
        raise ValueError(f"count must not be negative, got {count}; pass 0 or more problems")
    rng = Random(seed)
    problems: dict[str, Problem] = {}
    while len(problems) < count:
        problem = make_problem(rng)
        problems.setdefault(problem.question, problem)
    return list(problems.values())


_ANSWER = re.compile(r"^#### (-?[0-9]+)$", re.MULTILINE)


def extract_answer(text: str) -> int | None:
    """The number of the first line that reads `#### N` and nothing else, or None if there is no such line."""
    match = _ANSWER.search(text.rstrip())
    return int(match[1]) if match else None


def is_correct(text: str, problem: Problem) -> bool:
    """Whether the answer line of a solution states the problem's answer."""
    return extract_answer(text) == problem.answer
