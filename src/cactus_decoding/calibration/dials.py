"""The one setting that makes a rule more or less lenient, and how far it reaches."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.rules import (
    BoundedRatio,
    Cactus,
    Cascade,
    Ears,
    Frontier,
    Fuzzy,
    Interpolation,
    Mentored,
    Rule,
    TopK,
    Typical,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Dial:
    """Values of one setting, from strict to lenient, a coarse grid of them."""

    setting: str
    grid: tuple[float, ...]
    whole: bool = False
    """Whether only whole numbers are values."""

    def turned(self, rule: Rule, value: float) -> Rule:
        """The rule with this value of the setting. Typical acceptance follows the Cactus paper: a = sqrt(epsilon)."""
        changed: dict[str, float] = {self.setting: round(value) if self.whole else value}
        if isinstance(rule, Typical):
            changed["a"] = value**0.5
        return replace(rule, **changed)  # type: ignore[type-var]

    def between(self, strict: float, lenient: float, share: float) -> float:
        """So far on the way from one value to the other; by ratio where both are above 0."""
        if min(strict, lenient) > 0.0:
            value = strict * (lenient / strict) ** share
        else:
            value = strict + (lenient - strict) * share
        return float(round(value)) if self.whole else value


def _log(strict: float, lenient: float, count: int = 14) -> tuple[float, ...]:
    return tuple(float(x) for x in np.geomspace(strict, lenient, count))


def _linear(strict: float, lenient: float, count: int = 14) -> tuple[float, ...]:
    return tuple(float(x) for x in np.linspace(strict, lenient, count))


def _above_one(distance: float) -> tuple[float, ...]:
    return tuple(1.0 + x for x in _log(1e-3, distance))


_DIALS: dict[type[Rule], Dial] = {
    Cactus: Dial("delta", _log(1e-5, 10.0)),
    BoundedRatio: Dial("alpha", _above_one(1e4)),
    Mentored: Dial("budget", _log(1e-5, 10.0)),
    Frontier: Dial("rho", _above_one(1e6)),
    Interpolation: Dial("w", _linear(1e-3, 1.0)),
    Ears: Dial("b", _log(1e-3, 10.0)),
    Fuzzy: Dial("threshold", _log(1e-5, 10.0)),
    Typical: Dial("epsilon", _log(1.0, 1e-4)),
    TopK: Dial("k", (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 64, 128), whole=True),
}
_CASCADES: dict[str, Dial] = {
    "chow": Dial("a", _log(1e-4, 1.0)),
    "diff": Dial("a", _linear(-1.0, 1.0)),
    "opt": Dial("a", _linear(-3.0, 3.0)),
    "token-v1": Dial("a", _linear(-1.0, 1.0)),
    "token-v2": Dial("a", _linear(-1.0, 1.0)),
    "token-v3": Dial("a", _log(1e-4, 1.0)),
}


def dial_of(rule: Rule) -> Dial:
    """The dial of this rule. Raises `InvalidParameter` for rules without one: lossless, and those that look ahead."""
    if isinstance(rule, Cascade):
        return _CASCADES[rule.deferral]
    if type(rule) not in _DIALS:
        why = "it decides with tokens behind a position" if rule.looks_ahead else "it has no setting to turn"
        raise InvalidParameter(
            f"the rule {rule.name!r} cannot be calibrated: {why}. Choose among "
            f"{', '.join(sorted([*(kind.name for kind in _DIALS), Cascade.name]))}."
        )
    return _DIALS[type(rule)]
