"""Rules by name, and how a rule and its settings are written in one word: ``cactus:delta=0.25,solver=exact``."""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.rules.base import Rule
from cactus_decoding.rules.bounded_ratio import BoundedRatio
from cactus_decoding.rules.cactus import Cactus
from cactus_decoding.rules.cascade import Cascade
from cactus_decoding.rules.ears import Ears
from cactus_decoding.rules.fly import Fly
from cactus_decoding.rules.frontier import Frontier
from cactus_decoding.rules.fuzzy import Fuzzy
from cactus_decoding.rules.interpolation import Interpolation
from cactus_decoding.rules.lossless import Lossless
from cactus_decoding.rules.mentored import Mentored
from cactus_decoding.rules.top_k import TopK
from cactus_decoding.rules.typical import Typical

_EVERY: tuple[type[Rule], ...] = (
    Lossless, Cactus, BoundedRatio, Mentored, Frontier, Typical, Cascade, TopK, Interpolation, Ears, Fuzzy, Fly,
)  # fmt: skip
RULES: dict[str, type[Rule]] = {rule.name: rule for rule in _EVERY}
RECOMMENDED = Cactus(delta=0.25, max_ratio=4.0)
"""What the commands use where nobody says otherwise; docs/quality.md tells why. In Python nothing is lossy unless asked
for."""

Setting = float | int | str | None


def make_rule(name: str, **settings: Setting) -> Rule:
    """The rule of that name; settings that are None keep their defaults, one the rule does not have is refused."""
    known = settings_of(_rule_named(name))
    given = {key: value for key, value in settings.items() if value is not None}
    strangers = [key for key in given if key not in known]
    if strangers:
        raise InvalidParameter(
            f"the rule {name!r} has no setting {strangers[0]!r}; it takes {', '.join(known) or 'none'}."
        )
    return RULES[name](**given)


def _rule_named(name: str) -> type[Rule]:
    if name in RULES:
        return RULES[name]
    near = get_close_matches(name, RULES, n=1)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    raise InvalidParameter(f"rule is {name!r}, which is none of {', '.join(RULES)}.{guess}")


def parse_rule(spec: str, **settings: Setting) -> Rule:
    """The rule written as ``name`` or ``name:setting=value,...``; ``settings`` as in `make_rule`, not given twice.

    A number alone is the value of the rule's first setting: ``cactus:0.25``, ``ratio:2,recovery=shift``.
    """
    name, _, written = (piece.strip() for piece in spec.partition(":"))
    first = next(iter(settings_of(_rule_named(name))), "setting")
    parsed: dict[str, Setting] = {}
    for place, part in enumerate(written.split(",") if written else ()):
        alone = place == 0 and "=" not in part and not isinstance(_value(part), str | None)
        key, equals, value = (piece.strip() for piece in (f"{first}={part}" if alone else part).partition("="))
        if not (key and equals and value):
            raise InvalidParameter(f"the rule {spec!r} has {part!r}, but settings are written setting=value.")
        if key in parsed or settings.get(key) is not None:
            raise InvalidParameter(f"the rule {spec!r} is given {key!r} twice. Give one value.")
        parsed[key] = _value(value)
    return make_rule(name, **{**settings, **parsed})


def _value(text: str) -> Setting:
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return None if text.lower() == "none" else text


def spec_of(rule: Rule) -> str:
    """How `parse_rule` reads this rule: settings that differ from their defaults, and the first one always.

    Equal rules are written alike: 1.0 as 1.
    """
    defaults = settings_of(type(rule))
    values = {key: getattr(rule, key) for key in defaults}
    shown = [
        f"{key}={int(value) if isinstance(value, float) and value.is_integer() else value}"
        for place, (key, value) in enumerate(values.items())
        if value is not None and (place == 0 or value != defaults[key])
    ]
    return f"{rule.name}:{','.join(shown)}" if shown else rule.name


def settings_of(rule: type[Rule]) -> dict[str, Any]:
    """The settings a rule is made with, and their defaults."""
    return {field.name: field.default for field in fields(rule)}  # type: ignore[arg-type]


def split_specs(text: str) -> list[str]:
    """The rules in a list such as ``lossless,cactus:delta=0.1,max_ratio=4,typical``: a setting follows its rule."""
    specs: list[str] = []
    for part in text.split(","):
        if specs and "=" in part and ":" not in part:
            specs[-1] += f",{part}"
        else:
            specs.append(part)
    return [spec.strip() for spec in specs if spec.strip()]
