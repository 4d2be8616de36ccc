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
_PRIOR = 0.7  # acceptance before anything was seen,
_WEIGHT = 6.0  # worth as much as this many examined tokens, at every place
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
        self._reached = [0.0] * MOST
        self._kept = [0.0] * MOST
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
        chances, acceptance, together = [], _PRIOR, 1.0
        for reached, kept in zip(self._reached, self._kept):
            acceptance = (kept + _WEIGHT * acceptance) / (reached + _WEIGHT)
            together *= acceptance
            chances.append(together)
        return chances

    @property
    def due(self) -> bool:
        """Whether drafting, switched off because it lost, should be tried again."""
        return self._waited >= self._pause

    def judge(self, pays: bool) -> None:
        """After a trial: a longer pause if drafting still loses, the shortest if it pays."""
        self._pause = _FIRST_PAUSE if pays else min(2 * self._pause, _LONGEST_PAUSE)


def expected_tokens(survival: Sequence[float], m: int) -> float:
    """What a step that drafts m tokens emits on average: ``1 + S_1 + ... + S_m``."""
    return 1.0 + sum(survival[:m])


def best_m(costs: StepCosts, survivals: Sequence[Sequence[float]]) -> int:
    """The m in 0 .. MOST with the most tokens per second of a batch of such responses."""
    tokens = accumulate((sum(chances) for chances in zip(*survivals)), initial=float(len(survivals)))
    speeds = [emitted / costs(m) for m, emitted in enumerate(tokens)]
    return speeds.index(max(speeds))


def choose_m(costs: StepCosts, histories: Sequence[AcceptanceHistory]) -> int:
    """`best_m`, or a short trial where drafting is off and one of the responses is due for one."""
    best = best_m(costs, [history.survival() for history in histories])
    due = [history for history in histories if history.due]
    for history in due:
        history.judge(best > 0)
    return best or (_TRIAL if due else 0)
