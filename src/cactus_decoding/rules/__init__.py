"""Acceptance rules, one file per published rule, named as its paper names it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.rules.base import Rule
from cactus_decoding.rules.bounded_ratio import BoundedRatio
from cactus_decoding.rules.cactus import Cactus
from cactus_decoding.rules.lossless import Lossless

RULES: dict[str, type[Rule]] = {rule.name: rule for rule in (Lossless, Cactus, BoundedRatio)}


def make_rule(name: str, **settings: float | str | None) -> Rule:
    """The rule of that name; settings that are None keep their defaults, one the rule does not have is refused."""
    if name not in RULES:
        raise InvalidParameter(f"rule is {name!r}, which is none of {', '.join(RULES)}.")
    given = {key: value for key, value in settings.items() if value is not None}
    known = settings_of(RULES[name])
    strangers = [key for key in given if key not in known]
    if strangers:
        raise InvalidParameter(
            f"the rule {name!r} has no setting {strangers[0]!r}; it takes {', '.join(known) or 'none'}."
        )
    return RULES[name](**given)


def settings_of(rule: type[Rule]) -> dict[str, Any]:
    """The settings a rule is made with, and their defaults."""
    return {field.name: field.default for field in fields(rule)}  # type: ignore[arg-type]


__all__ = ["RULES", "BoundedRatio", "Cactus", "Lossless", "Rule", "make_rule", "settings_of"]
