"""How far one request may be relaxed: its parameters, checked, and what the logit shift needs of them.

A request says it in ``SamplingParams(extra_args={...})``, over HTTP in ``vllm_xargs``, with the names of `NAMES`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.rules.base import Rule, require_one_of, require_whole, require_within
from cactus_decoding.rules.bounded_ratio import BoundedRatio
from cactus_decoding.rules.cactus import Cactus

PREFIX = "cactus_"
NAMES = ("cactus_delta", "cactus_rule", "cactus_alpha", "cactus_max_ratio", "cactus_max_relaxed")
READS = {
    "second_order": ("cactus_delta", "cactus_max_ratio"),
    "exact": ("cactus_delta", "cactus_max_ratio"),
    "ratio": ("cactus_alpha",),
}
"""Which dials a rule has; the first is the one it cannot do without."""
RESOLVED = "cactus_resolved"
"""Set by the front end beside parameters that it has checked and completed, to ``{"log": whether}``."""

_MOST = 2**31 - 1

GREEDY_BELOW = 1e-5
"""vLLM samples greedily below this temperature."""


@dataclass(frozen=True, slots=True)
class Relaxation:
    """A rule that relaxes, as one request asked for it, and the most tokens of its response that may be relaxed."""

    rule: Cactus | BoundedRatio
    max_relaxed: int | None = None

    @property
    def delta(self) -> float:
        """The budget in nats; infinite for the bounded ratio, which `ceiling` alone bounds."""
        return self.rule.delta if isinstance(self.rule, Cactus) else math.inf

    @property
    def ceiling(self) -> float:
        """The most that gamma may be, in multiples of q(n)."""
        if isinstance(self.rule, BoundedRatio):
            return self.rule.alpha
        return math.inf if self.rule.max_ratio is None else self.rule.max_ratio

    @property
    def exact(self) -> bool:
        return isinstance(self.rule, Cactus) and self.rule.solver == "exact"

    def parameters(self) -> dict[str, Any]:
        """The request's parameters that say this, so that ``relaxation_of`` gives it back."""
        found: dict[str, Any] = {}
        if isinstance(self.rule, BoundedRatio):
            found |= {"cactus_rule": "ratio", "cactus_alpha": self.rule.alpha}
        else:
            found |= {"cactus_rule": self.rule.solver, "cactus_delta": self.rule.delta}
            if self.rule.max_ratio is not None:
                found["cactus_max_ratio"] = self.rule.max_ratio
        if self.max_relaxed is not None:
            found["cactus_max_relaxed"] = self.max_relaxed
        return found


def parameters_in(extra_args: Mapping[str, Any] | None) -> dict[str, Any]:
    """The ``cactus_`` parameters of a request; a name that is none of `NAMES` is refused, with the nearest."""
    found = {name: value for name, value in (extra_args or {}).items() if str(name).startswith(PREFIX)}
    for name in found:
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, 1)
            hint = f"did you mean {near[0]}?" if near else f"the names are {', '.join(NAMES)}."
            raise InvalidParameter(f"{name} is no parameter of Cactus: {hint}")
    return found


def relaxation_of(given: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Relaxation | None:
    """The relaxation that a request asks for, the server's defaults filling what it leaves out; None is lossless.

    Args:
        given: the request's own parameters, as `parameters_in` finds them.
        defaults: the server's; those that the request's rule does not read are left aside.

    Raises:
        InvalidParameter: a value out of its range, a dial that the rule does not read, or one that is missing.
    """
    defaults = defaults or {}
    name = given.get("cactus_rule", defaults.get("cactus_rule", "second_order"))
    require_one_of("cactus_rule", name, tuple(READS))
    _require_read(name, given)
    values = {key: value for key, value in defaults.items() if key in READS[name] or key == "cactus_max_relaxed"}
    values |= {key: value for key, value in given.items() if key != "cactus_rule"}
    dial = READS[name][0]
    if dial not in values:
        if not given:
            return None
        raise InvalidParameter(
            f"{', '.join(given)} needs {dial}, which neither the request nor this server gives: without it nothing is "
            f"relaxed. Add {dial}, or leave the rest out."
        )
    max_relaxed = None
    if "cactus_max_relaxed" in values:  # a null is refused as well: it would lift the server's own cap
        require_whole("cactus_max_relaxed", values["cactus_max_relaxed"], 0, "0 is lossless; leave it out for no cap")
        max_relaxed = int(values["cactus_max_relaxed"])  # plain, as it must be to go to another process
        require_within("cactus_max_relaxed", max_relaxed, 0, _MOST, "leave it out for no cap")
    rule = _rule(name, values)
    return None if rule.lossless or max_relaxed == 0 else Relaxation(rule, max_relaxed)


def resolved_relaxation(extra_args: Mapping[str, Any] | None, temperature: float) -> Relaxation | None:
    """What the front end let through; at temperature 0 the verifier's law is one token and nothing can be relaxed."""
    if not extra_args or RESOLVED not in extra_args or temperature < GREEDY_BELOW:
        return None
    return relaxation_of({name: extra_args[name] for name in NAMES if name in extra_args})


def _require_read(rule: str, given: Mapping[str, Any]) -> None:
    """Refuse a dial that the rule does not have: it would be without effect."""
    for name in given:
        if name not in (*READS[rule], "cactus_rule", "cactus_max_relaxed"):
            readers = [other for other, dials in READS.items() if name in dials]
            raise InvalidParameter(
                f"{name} is {given[name]!r}, which cactus_rule {rule!r} does not read. "
                f"Use it with {' or '.join(map(repr, readers))}, or give {READS[rule][0]}."
            )


def _rule(name: str, values: Mapping[str, Any]) -> Cactus | BoundedRatio:
    """The rule of this name, with every value named as the request names it."""
    if name == "ratio":
        require_within("cactus_alpha", values["cactus_alpha"], 1.0, None, "1 is lossless; try 4")
        return BoundedRatio(float(values["cactus_alpha"]), recovery="shift")
    require_within("cactus_delta", values["cactus_delta"], 0.0, None, "nats; 0 is lossless, try 0.25")
    ceiling = None
    if "cactus_max_ratio" in values:
        require_within(
            "cactus_max_ratio", values["cactus_max_ratio"], 1.0, None, "1 is lossless; leave it out for no cap"
        )
        ceiling = float(values["cactus_max_ratio"])
    return Cactus(float(values["cactus_delta"]), "exact" if name == "exact" else "second_order", max_ratio=ceiling)


def describe(rule: Rule) -> str:
    """The rule in the words of a log line."""
    from cactus_decoding.rules import spec_of

    return spec_of(rule)
