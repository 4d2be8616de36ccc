"""How the steps of a problem are put into words: one grammar, two voices.

A line of a solution reads, for instance,

    So Mia clearly has exactly 12+5=17 apples altogether now.

Opener, adverb, verb, emphasis, closer, time and the order of these are matters of taste: each is a slot with
six or more forms. The verifier's voice takes all forms alike, the drafter's mostly a few. Every form begins with
a token of its own, so the first token of a slot decides the form and is called free; all other tokens follow from
the problem and from what was said before.
"""

from dataclasses import dataclass
from random import Random

from cactus_decoding.embedded.problems import Problem
from cactus_decoding.embedded.stories import Step

OPENERS = ("So", "Then", "Now", "Next", "Here", "Thus", "Hence", "Well")
ADVERBS = ("clearly", "really", "surely", "truly", "indeed", "simply")
EMPHASES = ("exactly", "just", "precisely", "only", "fully", "a full")
TIMES = ("now", "today", "here", "already", "finally", "tonight")
CLOSERS = {
    False: ("altogether", "overall", "total", "combined", "together", "in all"),
    True: ("left", "remaining", "over", "spare", "unused", "still"),
}
"""Keyed by `Step.remains`."""

VERBS = {
    "have": (("has", "have"), ("keeps", "keep"), ("holds", "hold"), ("owns", "own"), ("counts", "count"),
             ("carries", "carry")),
    "hold": (("holds", "hold"), ("contains", "contain"), ("carries", "carry"), ("stores", "store"),
             ("brings", "bring"), ("adds", "add")),
    "get": (("gets", "get"), ("takes", "take"), ("receives", "receive"), ("collects", "collect"),
            ("keeps", "keep"), ("has", "have")),
    "earn": (("earns", "earn"), ("makes", "make"), ("gets", "get"), ("receives", "receive"),
             ("collects", "collect"), ("gains", "gain")),
    "cost": (("costs", "cost"), ("needs", "need"), ("takes", "take"), ("totals", "total"), ("makes", "make"),
             ("requires", "require")),
    "pay": (("pays", "pay"), ("spends", "spend"), ("gives", "give"), ("uses", "use"), ("owes", "owe"),
            ("needs", "need")),
    "work": (("works", "work"), ("does", "do"), ("spends", "spend"), ("serves", "serve"), ("logs", "log"),
             ("counts", "count")),
    "read": (("reads", "read"), ("finishes", "finish"), ("covers", "cover"), ("studies", "study"),
             ("enjoys", "enjoy"), ("completes", "complete")),
    "save": (("saves", "save"), ("has", "have"), ("collects", "collect"), ("keeps", "keep"), ("gains", "gain"),
             ("gets", "get")),
    "need": (("needs", "need"), ("lacks", "lack"), ("wants", "want"), ("requires", "require"), ("misses", "miss"),
             ("seeks", "seek")),
}  # fmt: skip
"""Forms of each kind of verb, as (singular, plural)."""

ORDERS = (
    ("opener", "subject", "adverb", "verb", "emphasis", "sum", "closer", "time"),
    ("opener", "adverb", "subject", "verb", "emphasis", "sum", "closer", "time"),
    ("opener", "time", "subject", "adverb", "verb", "emphasis", "sum", "closer"),
    ("opener", "subject", "adverb", "verb", "emphasis", "sum", "time", "closer"),
    ("opener", "subject", "time", "adverb", "verb", "emphasis", "sum", "closer"),
    ("subject", "adverb", "verb", "emphasis", "sum", "closer", "time"),
)
FREE_SLOTS = ("opener", "adverb", "verb", "emphasis", "closer", "time")


@dataclass(frozen=True, slots=True)
class Voice:
    """A taste in wording: the k-th favourite form of a slot has weight `decay ** -k`; decay 1 has no favourites."""

    decay: float

    def __post_init__(self) -> None:
        if self.decay < 1.0:
            raise ValueError(f"decay must be at least 1, got {self.decay}; 1 draws all forms alike")

    def choose(self, rng: Random, slot: str, count: int) -> int:
        """Index of a form out of `count`; which form is the favourite differs from slot to slot."""
        weights = [self.decay**-rank for rank in range(count)]
        ticket = rng.random() * sum(weights)
        rank = 0
        while rank < count - 1 and ticket >= weights[rank]:
            ticket -= weights[rank]
            rank += 1
        return (rank + sum(slot.encode())) % count


VERIFIER_VOICE = Voice(1.0)
DRAFTER_VOICE = Voice(2.2)


@dataclass(frozen=True, slots=True)
class Solution:
    """A solution in words; `free` holds the (start, end) character spans of the forms that were a matter of taste."""

    text: str
    free: tuple[tuple[int, int], ...]


def write_solution(problem: Problem, voice: Voice, rng: Random) -> Solution:
    """Word a problem's steps, one line each, and close with the line `#### answer`."""
    text = ""
    free: list[tuple[int, int]] = []
    for step in problem.steps:
        for slot, words in _line(step, voice, rng):
            start = len(text)
            text += words if not text or text.endswith("\n") else f" {words}"
            if slot in FREE_SLOTS:
                free.append((start, len(text)))
        text += ".\n"
    return Solution(f"{text}#### {problem.answer}", tuple(free))


def _line(step: Step, voice: Voice, rng: Random) -> list[tuple[str, str]]:
    """The (slot, words) pairs of one line, in the order drawn for it."""
    plural = step.subject.startswith("the")  # "they" and "the bags"; names and "each friend" are singular
    words = {
        "subject": step.subject,
        "sum": f"{step.left}{step.operator}{step.right}={step.result} {step.unit}",
        "verb": VERBS[step.verb][voice.choose(rng, step.verb, len(VERBS[step.verb]))][plural],
    }
    slots = {"opener": OPENERS, "adverb": ADVERBS, "emphasis": EMPHASES, "closer": CLOSERS[step.remains], "time": TIMES}
    for slot, forms in slots.items():
        words[slot] = forms[voice.choose(rng, slot, len(forms))]
    order = ORDERS[voice.choose(rng, "order", len(ORDERS))]
    line = [(slot, words[slot]) for slot in order]
    if order[0] == "subject":
        line[0] = ("subject", step.subject[0].upper() + step.subject[1:])
    return line
