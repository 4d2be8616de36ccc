"""The problems on which settings differ most, with every response token by token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cactus_decoding.evaluation.plan import Setting
from cactus_decoding.evaluation.store import Record
from cactus_decoding.evaluation.tasks.base import Task

SHOWN = 5


@dataclass(frozen=True)
class Response:
    """One text, and the settings that wrote it."""

    labels: tuple[str, ...]
    score: float
    tokens: tuple[tuple[str, str], ...]
    """Text and mark (see `Mark`) of each, as the first of the settings has them."""


@dataclass(frozen=True)
class Differing:
    """One problem and what the settings made of it."""

    item: str
    prompt: str
    answer: str
    scores: Mapping[str, float]
    responses: tuple[Response, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        responses = [{"settings": one.labels, "score": one.score, "tokens": one.tokens} for one in self.responses]
        return {
            "item": self.item,
            "prompt": self.prompt,
            "answer": self.answer,
            "scores": dict(self.scores),
            "responses": responses,
        }


def most_differing(
    task: Task, records: Mapping[Setting, Sequence[Record]], labels: Mapping[Setting, str], samples: int
) -> tuple[Differing, ...]:
    """Those whose scores vary most between settings, the first of equals; fewer where all agree."""
    scores = np.asarray([[record["score"] for record in rows] for rows in records.values()])
    means = scores.reshape(len(records), -1, samples).mean(2)
    spread = means.var(0)
    order = np.argsort(-spread, kind="stable")[:SHOWN]
    return tuple(
        _differing(task, records, labels, int(number), samples, means[:, number])
        for number in order
        if spread[number] > 0
    )


def _differing(
    task: Task,
    records: Mapping[Setting, Sequence[Record]],
    labels: Mapping[Setting, str],
    number: int,
    samples: int,
    scores: Sequence[float],
) -> Differing:
    """Each setting with its first sample, those with the same text together."""
    item = task.items[number]
    together: dict[str, list[Setting]] = {}
    for setting, rows in records.items():
        together.setdefault(rows[number * samples]["text"], []).append(setting)
    responses = []
    for settings in together.values():
        record = records[settings[0]][number * samples]
        tokens = tuple((piece, mark) for piece, mark in record["tokens"])
        responses.append(Response(tuple(labels[setting] for setting in settings), record["score"], tokens))
    named = {labels[setting]: float(score) for setting, score in zip(records, scores)}
    return Differing(item.id, _told(item.prompt), item.answer, named, tuple(responses))


def _told(prompt: object) -> str:
    """Messages as lines of text."""
    if isinstance(prompt, list):
        return "\n".join(f"{message['role']}: {message['content']}" for message in prompt if isinstance(message, dict))
    return str(prompt)
