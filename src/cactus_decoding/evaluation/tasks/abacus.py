"""The word problems that the Abacus pair was made for: as many as wanted, with known answers."""

from __future__ import annotations

from cactus_decoding.embedded.problems import extract_answer, make_problems
from cactus_decoding.evaluation.tasks.base import Item, Task

SEED = 4_000_003
"""Nothing was trained, chosen or calibrated on the problems of this seed."""
_MAX_NEW_TOKENS = 160  # three times a usual solution: one that rambles is cut, and counted as such
COUNT = 2000
"""How many there are where nobody says otherwise."""


class Abacus(Task):
    """Right is what ends in a line ``#### N`` with the number that the problem comes to."""

    name = "abacus"

    def __init__(self, count: int = COUNT) -> None:
        self.items = [
            Item(str(number), problem.question, str(problem.answer), {"max_new_tokens": _MAX_NEW_TOKENS})
            for number, problem in enumerate(make_problems(count, SEED))
        ]

    def score(self, item: Item, text: str) -> float:
        return float(extract_answer(text) == int(item.answer))
