"""What an operator sets for a whole server: defaults, maxima and whether each request is logged.

Environment variables, which win, and a YAML file that ``CACTUS_VLLM_CONFIG`` names:

    defaults: {delta: 0.25, max_ratio: 4}
    maximum: {delta: 1, alpha: 4, max_relaxed: 100}
    log_requests: true
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.integrations.vllm.relaxation import NAMES, PREFIX, READS, Relaxation, parameters_in, relaxation_of
from cactus_decoding.rules.base import require_whole, require_within

ENVIRONMENT = "CACTUS_VLLM_"
COUNTS = "CACTUS_VLLM_COUNTS"
"""Set by the plugin itself: the folder in which worker processes leave their counts for the metrics page."""
BOUNDED = ("delta", "alpha", "max_relaxed")
_OF_A_SERVICE = re.compile(r"_(SERVICE_(HOST|PORT\w*)|PORT(_\w+)?)$")
"""What Kubernetes adds to the environment of a pod beside a service that is called cactus-vllm."""
_DEFAULTED = tuple(name.removeprefix(PREFIX) for name in NAMES)
_SECTIONS = ("defaults", "maximum", "log_requests")
_VARIABLES = (
    "CONFIG", "LOG_REQUESTS", "COUNTS", *(name.upper() for name in _DEFAULTED),
    *(f"MAXIMUM_{name.upper()}" for name in BOUNDED),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """A server's settings, checked; `of_environment` reads them.

    Args:
        defaults: parameters of a request, with their full names, that hold where the request leaves them out.
        maximum: bounds on "delta", "alpha" and "max_relaxed". What lies above is refused and nothing is lowered; a
            rule whose dial has no bound is closed where the other one has. A bound on "max_relaxed" is also its
            default.
        log_requests: whether a line is logged for every request that was relaxed, when it ends.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    maximum: Mapping[str, float] = field(default_factory=dict)
    log_requests: bool = False

    def __post_init__(self) -> None:
        for name, value in self.maximum.items():
            if name == "max_relaxed":
                require_whole("maximum max_relaxed", value, 1, "leave it out for no bound")
            else:
                require_within(f"maximum {name}", value, 0.0 if name == "delta" else 1.0, None, "leave it out for none")
        for rule, (dial, *_) in READS.items():  # each default, also where the default rule does not read it
            relaxation_of({"cactus_rule": rule, dial: self.defaults.get(dial, 1.0)}, self.defaults)
        self.relaxation_of({})

    def relaxation_of(self, extra_args: Mapping[str, Any] | None) -> Relaxation | None:
        """What a request with these ``extra_args`` gets of this server; None is lossless.

        Raises `InvalidParameter` for what it may not have, with the bound.
        """
        given = parameters_in(extra_args)
        defaults = dict(self.defaults)
        if "max_relaxed" in self.maximum:
            defaults.setdefault("cactus_max_relaxed", self.maximum["max_relaxed"])
        relaxation = relaxation_of(given, defaults)
        if relaxation is not None:
            self._require_within_maximum(relaxation)
        return relaxation

    def _require_within_maximum(self, relaxation: Relaxation) -> None:
        values = relaxation.parameters()
        dial = READS[values["cactus_rule"]][0].removeprefix(PREFIX)
        if self.maximum.keys() & {"delta", "alpha"} and dial not in self.maximum:
            bounded = next(name for name in ("delta", "alpha") if name in self.maximum)
            raise InvalidParameter(
                f"cactus_rule is {values['cactus_rule']!r}, which this server does not offer: it bounds "
                f"cactus_{bounded} at {self.maximum[bounded]:g} and has no bound for cactus_{dial}. "
                f"Use cactus_{bounded}."
            )
        for name, most in self.maximum.items():
            value = values.get(f"cactus_{name}")
            if value is not None and value > most:
                raise InvalidParameter(f"cactus_{name} is {value:g}, and this server allows at most {most:g}.")


def of_environment(environment: Mapping[str, str]) -> Settings:
    """The settings that the variables and their file give.

    Raises:
        InvalidParameter: an unknown name, a value that is no number or out of its range, or no such file.
    """
    variables = {
        name.removeprefix(ENVIRONMENT): value
        for name, value in environment.items()
        if name.startswith(ENVIRONMENT) and value and not _OF_A_SERVICE.search(name)
    }
    _require_known("the variable", variables, _VARIABLES, ENVIRONMENT)
    file = _file(variables.get("CONFIG"))
    defaults = {name: _read(value) for name, value in file.get("defaults", {}).items()}
    defaults |= {name: _value(name.upper(), variables) for name in _DEFAULTED if name.upper() in variables}
    maximum = {name: _read(value) for name, value in file.get("maximum", {}).items()}
    for name in BOUNDED:
        if (variable := f"MAXIMUM_{name.upper()}") in variables:
            maximum[name] = _value(variable, variables)
    log_requests = file.get("log_requests", False)
    if "LOG_REQUESTS" in variables:
        log_requests = _value("LOG_REQUESTS", variables)
    if log_requests not in (True, False, 0, 1):
        raise InvalidParameter(f"log_requests is {log_requests!r}, but must be true or false.")
    return Settings({f"{PREFIX}{name}": value for name, value in defaults.items()}, maximum, bool(log_requests))


def _file(path: str | None) -> dict[str, Any]:
    if not path:
        return {}
    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidParameter(f"{ENVIRONMENT}CONFIG is {path!r}, which cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise InvalidParameter(f"{path} holds {found!r}, but must be a mapping of {', '.join(_SECTIONS)}.")
    _require_known(f"{path}:", found, _SECTIONS)
    for section, names in (("defaults", _DEFAULTED), ("maximum", BOUNDED)):
        inside = found.setdefault(section, {})
        if inside is None:
            inside = found[section] = {}
        if not isinstance(inside, dict):
            raise InvalidParameter(f"{path}: {section} is {inside!r}, but must be a mapping.")
        _require_known(f"{path}: {section}:", inside, names)
    return found


def _require_known(where: str, found: Mapping[str, Any], names: tuple[str, ...], prefix: str = "") -> None:
    for name in found:
        if name not in names:
            near = difflib.get_close_matches(str(name), names, 1)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"the names are {', '.join(names)}."
            raise InvalidParameter(f"{where} {prefix}{name} is no setting of Cactus for vLLM: {hint}")


def _value(name: str, variables: Mapping[str, str]) -> Any:
    """A variable's text as YAML reads it: 0.25 is a number, "exact" a name."""
    try:
        return _read(yaml.safe_load(variables[name]))
    except yaml.YAMLError as error:
        raise InvalidParameter(f"{ENVIRONMENT}{name} is {variables[name]!r}, which cannot be read: {error}") from error


def _read(value: Any) -> Any:
    """1e-1, which YAML takes for a text, as the number it is."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value
