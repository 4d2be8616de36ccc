"""How many tokens to draft: the number that makes the most tokens per second, as far as is known.

A step that drafts m tokens emits 1 + S_1 + ... + S_m tokens on average, S_j being the chance that the first j are
all kept; where every place is kept with the same chance a, that is (1 - a^(m+1)) / (1 - a). It costs C(m) seconds:
m drafts, one verifier call over m + 1 tokens, and what surrounds them. Both are looked up, S in what this response
has seen so far, C in measurements at this batch size, and m maximises the quotient.

The choice looks at the past only. A drafted token is never dropped for its own probability: that would change the
law of what is examined, and with it the law of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from cactus_decoding.generation.events import Event
from cactus_decoding.verify import Verdict

MOST = 16  # the longest block that is considered
_PRIOR = 0.7  # acceptance at the first place before anything was seen,
_RISE = 0.15  # share of what is missing to 1 that each further place is better by: easy text goes on being easy
_WEIGHT = 6.0  # both are worth as much as this many examined tokens
_LOSING = 0.95  # drafting goes on down to this share of the speed without it: only by drafting one learns
_FORGET = 0.95  # per step with a draft: a response remembers about its last twenty
_FIRST_PAUSE, _LONGEST_PAUSE = 8, 128  # tokens without drafts before drafting is tried again; doubles while it fails
_TRIAL = 2  # how many are drafted then


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of one step of a whole batch that drafts m tokens per row, measured for a few m."""

    seconds: tuple[tuple[int, float], ...]
    """(m, seconds), by rising m from 0."""

    def __call__(self, m: int) -> float:
        """Between two measured m on the line through them; behind the last on the line through the last two."""
        if m == 0:
            return self.seconds[0][1]
        above = next((i for i, (measured, _) in enumerate(self.seconds) if measured >= m), len(self.seconds) - 1)
        (m_a, s_a), (m_b, s_b) = self.seconds[above - 1], self.seconds[above]
        return s_a + (s_b - s_a) * (m - m_a) / (m_b - m_a)


class AcceptanceHistory:
    """What one response has seen of its drafts, by their place in the block; older steps count for less."""

    def __init__(self) -> None:
        self._reached = [_WEIGHT] + [0.0] * (MOST - 1)  # the first place begins with a prior, which fades too
        self._kept = [_WEIGHT * _PRIOR] + [0.0] * (MOST - 1)
        self._pause = _FIRST_PAUSE
        self._waited = 0

    def note(self, event: Event) -> None:
        """Take in a step. Ignored and unexamined drafts say nothing."""
        if not event.draft:
            self._waited += 1
            return
        self._waited = 0
        for place in range(MOST):
            self._reached[place] *= _FORGET
            self._kept[place] *= _FORGET
        for place, verdict in enumerate(event.verdicts[:MOST]):
            if verdict in (Verdict.UNEXAMINED, Verdict.IGNORED):
                break
            self._reached[place] += 1
            self._kept[place] += verdict is not Verdict.REFUSED

    def survival(self) -> list[float]:
        """S_1, S_2, ... A place that was seldom reached leans on the one before it."""
        acceptance = self._kept[0] / self._reached[0]
        chances = [acceptance]
        for reached, kept in zip(self._reached[1:], self._kept[1:]):
            expected = acceptance + _RISE * (1.0 - acceptance)
            acceptance = (kept + _WEIGHT * expected) / (reached + _WEIGHT)
            chances.append(chances[-1] * acceptance)
        return chances

    @property
    def due(self) -> bool:
        """Whether drafting, switched off because it lost, should be tried again."""
        return self._waited >= self._pause

    def judge(self, pays: bool) -> None:
        """How long to wait before the next trial: briefly again if drafting pays, twice as long if a trial is due."""
        if pays:
            self._pause = _FIRST_PAUSE
        elif self.due:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)


def expected_tokens(survival: Sequence[float], m: int) -> float:
    """What a step that drafts m tokens emits on average: ``1 + S_1 + ... + S_m``."""
    return 1.0 + sum(survival[:m])


def best_m(costs: StepCosts, survivals: Sequence[Sequence[float]]) -> int:
    """The m with the most tokens per second of a batch of such responses; 0 where every other one clearly loses."""
    tokens = accumulate((sum(chances) for chances in zip(*survivals)), initial=float(len(survivals)))
    alone, *speeds = (emitted / costs(m) for m, emitted in enumerate(tokens))
    fastest = max(speeds)
    return speeds.index(fastest) + 1 if fastest >= _LOSING * alone else 0


def choose_m(costs: StepCosts, histories: Sequence[AcceptanceHistory]) -> int:
    """`best_m` while that does not lose; else 0, or a short trial where one of the responses is due for one."""
    survivals = [history.survival() for history in histories]
    best = best_m(costs, survivals)
    trial = not best and any(history.due for history in histories)
    for history in histories:
        history.judge(best > 0)
    return best or (_TRIAL if trial else 0)
