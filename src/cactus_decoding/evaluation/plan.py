"""What an evaluation runs: settings, each a way to decode, on the same problems with the same random numbers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.generation.request import Options, whole
from cactus_decoding.rules import Rule, parse_rule, spec_of
from cactus_decoding.sampling import SamplingParams

_SHORT = {"temperature": "T"}
VERIFIER = "verifier"
"""Stands where a rule would for decoding with the verifier alone."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to decode."""

    rule: str
    """As `parse_rule` reads it, in the form `spec_of` writes it; or `VERIFIER`."""
    m: int
    sampling: SamplingParams = field(default_factory=SamplingParams)

    @staticmethod
    def of(rule: str, m: int, sampling: SamplingParams) -> Setting:
        """With the rule's spelling brought into the one form; the verifier alone drafts nothing."""
        if rule == VERIFIER:
            return Setting(VERIFIER, 0, sampling)
        return Setting(spec_of(parse_rule(rule)), whole("m", m, 1), sampling)

    @property
    def lossless(self) -> Setting:
        """What this one is compared with: the same drafts and the same laws, judged without loss."""
        return Setting("lossless", self.m, self.sampling)

    @property
    def in_question(self) -> bool:
        """Whether quality may differ from the verifier's: not that of the verifier itself, nor of a lossless rule."""
        rule = self.parsed()
        return rule is not None and not rule.lossless

    @property
    def key(self) -> str:
        """A name for files: no two settings share it."""
        plain = asdict(SamplingParams())
        laws = [f"{name}={value}" for name, value in asdict(self.sampling).items() if value != plain[name]]
        return re.sub(r"[^A-Za-z0-9.=,_-]", "_", ",".join([self.rule, f"m={self.m}", *laws]))

    def parsed(self) -> Rule | None:
        """The rule itself; None for the verifier alone."""
        return None if self.rule == VERIFIER else parse_rule(self.rule)


IDENTITY = (
    "model", "draft", "seed", "max_new_tokens", "max_relaxed", "block", "audit_every", "chat", "rows", "dtype",
    "device",
)  # fmt: skip
"""Fields of a `Plan` that must be the same for results to stand side by side."""


def with_references(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """With the lossless setting that each needs to be compared with in front, where it is not there yet."""
    drafted = [setting.lossless for setting in settings if setting.m]
    lawless = [setting for setting in settings if not setting.m]
    alone = [one.lossless for one in lawless if all(one.sampling != other.sampling for other in drafted)]
    if alone:
        raise InvalidParameter(
            "the verifier alone has nothing to be compared with. Add a rule, such as lossless, to the settings."
        )
    return *dict.fromkeys(one for one in drafted if one not in settings), *settings


def labels_of(settings: Sequence[Setting]) -> dict[Setting, str]:
    """How each is named for people: by its rule, and by what else differs among them."""
    many_m = len({setting.m for setting in settings if setting.m}) > 1
    laws = [asdict(setting.sampling) for setting in settings]
    differing = [name for name in laws[0] if any(law[name] != laws[0][name] for law in laws)] if laws else []
    labels = {}
    for setting in settings:
        parts = [setting.rule]
        if many_m and setting.m:
            parts.append(f"m={setting.m}")
        law = ((_SHORT.get(name, name), getattr(setting.sampling, name)) for name in differing)
        parts += [f"{name}={value:g}" for name, value in law]
        labels[setting] = " ".join(parts)
    return labels


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole evaluation. A folder of results belongs to one plan, but for what `identity` leaves out."""

    model: str
    draft: str | None
    settings: tuple[Setting, ...]
    tasks: tuple[str, ...]
    data: Mapping[str, str] = field(default_factory=dict)
    """Local files of tasks, by name."""
    limit: int | None = None
    """The most problems of each task."""
    samples: int = 1
    """Responses to each problem."""
    seed: int = 1
    max_new_tokens: int | None = None
    max_relaxed: int | float | None = None
    block: bool = False
    audit_every: int = 10
    """All calls of one in so many problems are measured exactly; 0: of none."""
    chat: bool | None = None
    """Whether texts get the tokenizer's chat template; None: if it has one."""
    rows: int = 32
    """Responses that decode together."""
    dtype: str | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("samples", 1), ("rows", 1), ("audit_every", 0)):
            whole(name, getattr(self, name), least)
        if self.limit is not None:
            whole("limit", self.limit, 1)
        for name, given in (("rule", self.settings), ("task", self.tasks)):
            if not given:
                raise InvalidParameter(f"there is no {name} to evaluate. Give at least one.")
            twice = [one for place, one in enumerate(given) if one in given[:place]]
            if twice:
                raise InvalidParameter(f"the {name} {getattr(twice[0], 'rule', twice[0])!r} is given twice.")
        lone = [setting for setting in with_references(self.settings) if setting not in self.settings]
        if lone:
            raise InvalidParameter(
                f"there is nothing to compare with: lossless with m={lone[0].m} is not among the settings. Add it."
            )

    @property
    def chunk(self) -> int:
        """Problems that one setting works on before the next setting has its turn at the same ones."""
        return 4 * self.rows

    def count(self, problems: int) -> int:
        """How many of a task's problems are asked."""
        return problems if self.limit is None else min(problems, self.limit)

    def chunks(self, problems: int) -> int:
        """In how many chunks, of a task of so many."""
        return -(-self.count(problems) // self.chunk)

    def identity(self) -> dict[str, Any]:
        """What must be the same for results to stand side by side. Settings, tasks, limit and samples may grow."""
        return {name: getattr(self, name) for name in IDENTITY}

    def audits(self, number: int) -> bool:
        """Whether the problem at this place is measured exactly; drawn, since tasks may deal their kinds in turns."""
        return self.audit_every > 0 and _drawn(self.seed, number) % self.audit_every == 0

    def options(self, setting: Setting, task_options: Options, number: int, sample: int) -> Options:
        """Of one response. ``number`` is the problem's place in its task: the seed hangs on it and nothing else."""
        options: dict[str, Any] = {**task_options, **asdict(setting.sampling), "m": setting.m}
        options["seed"] = seed_of(self, number, sample)
        if self.max_new_tokens is not None:
            options["max_new_tokens"] = self.max_new_tokens
        if self.chat is not None:
            options["chat"] = self.chat
        rule = setting.parsed()
        if rule is not None:
            options |= {"rule": rule, "block": self.block}
            options["audit"] = int(self.audits(number) and not rule.looks_ahead)
            options["max_relaxed"] = None if rule.lossless else self.max_relaxed
        return cast(Options, options)


def _drawn(seed: int, number: int) -> int:
    """A large number that looks drawn at random."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {number}".encode(), digest_size=8).digest(), "big")


def seed_of(plan: Plan, number: int, sample: int) -> int:
    """Each problem and sample its own, whatever the setting: the same draws meet the same places."""
    return (plan.seed + number + (sample << 32)) % 2**64
