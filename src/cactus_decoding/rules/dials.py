"""The one setting that makes a rule more or less lenient, and how far it reaches."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.rules.base import Rule
from cactus_decoding.rules.bounded_ratio import BoundedRatio
from cactus_decoding.rules.cactus import Cactus
from cactus_decoding.rules.cascade import Cascade
from cactus_decoding.rules.ears import Ears
from cactus_decoding.rules.frontier import Frontier
from cactus_decoding.rules.fuzzy import Fuzzy
from cactus_decoding.rules.interpolation import Interpolation
from cactus_decoding.rules.mentored import Mentored
from cactus_decoding.rules.top_k import TopK
from cactus_decoding.rules.typical import Typical


@dataclass(frozen=True, slots=True)
class Dial:
    """A setting and its range, from strict to lenient.

    Distances from ``origin`` are spaced by ratio; where there is none, values are spaced evenly.
    """

    setting: str
    strict: float
    lenient: float
    origin: float | None = 0.0
    whole: bool = False
    """Whether only whole numbers are values."""

    def turned(self, rule: Rule, value: float) -> Rule:
        """The rule with this value of the setting, the others as they are.

        Typical acceptance with the default a follows the Cactus paper: a = sqrt(epsilon).
        """
        changed: dict[str, float] = {self.setting: round(value) if self.whole else value}
        if is_tied(rule):
            changed["a"] = value**0.5
        return replace(rule, **changed)  # type: ignore[type-var]

    def between(self, strict: float, lenient: float, share: float) -> float:
        """So far on the way from one value to the other."""
        if self.origin is None:
            value = strict + (lenient - strict) * share
        else:
            value = self.origin + (strict - self.origin) * ((lenient - self.origin) / (strict - self.origin)) ** share
        return float(round(value)) if self.whole else value

    def values(self, count: int) -> tuple[float, ...]:
        """So many values over the whole range (fewer where whole numbers coincide), the ends included."""
        places = [self.between(self.strict, self.lenient, i / (count - 1)) for i in range(count)]
        return tuple(dict.fromkeys(places))


def is_tied(rule: Rule) -> bool:
    """Whether a second setting follows the dial: a of typical acceptance, where none is given."""
    return isinstance(rule, Typical) and rule.a == Typical().a


_DIALS: dict[type[Rule], Dial] = {
    Cactus: Dial("delta", 1e-5, 10.0),
    BoundedRatio: Dial("alpha", 1.001, 1e4, origin=1.0),
    Mentored: Dial("budget", 1e-5, 10.0),
    Frontier: Dial("rho", 1.001, 1e6, origin=1.0),
    Interpolation: Dial("w", 0.001, 1.0, origin=None),
    Ears: Dial("b", 1e-3, 10.0),
    Fuzzy: Dial("threshold", 1e-5, 10.0),
    Typical: Dial("epsilon", 1.0, 1e-4),
    TopK: Dial("k", 1.0, 128.0, whole=True),
}
_CASCADES: dict[str, Dial] = {
    "chow": Dial("a", 1e-4, 1.0),
    "diff": Dial("a", -1.0, 1.0, origin=None),
    "opt": Dial("a", -3.0, 3.0, origin=None),
    "token-v1": Dial("a", -1.0, 1.0, origin=None),
    "token-v2": Dial("a", -1.0, 1.0, origin=None),
    "token-v3": Dial("a", 1e-4, 1.0),
}


def dial_of(rule: Rule) -> Dial:
    """The dial of this rule.

    Raises `InvalidParameter` for rules without one: lossless, and those that look ahead, of which no position has a
    law that a dial could be turned by.
    """
    if isinstance(rule, Cascade):
        return _CASCADES[rule.deferral]
    if type(rule) not in _DIALS:
        why = "it decides with tokens behind a position" if rule.looks_ahead else "it has no setting to turn"
        raise InvalidParameter(
            f"the rule {rule.name!r} cannot be set by measurement: {why}. Choose among "
            f"{', '.join(sorted([*(kind.name for kind in _DIALS), Cascade.name]))}."
        )
    return _DIALS[type(rule)]
