"""``run.json``: what a folder of results is, so that no other run is mixed into it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.evaluation.plan import Plan
from cactus_decoding.evaluation.store import RUN, replace_file
from cactus_decoding.evaluation.tasks.base import Task
from cactus_decoding.evaluation.tasks.registry import make_task

_FORMAT = 1


def claim(plan: Plan, tasks: Mapping[str, Task], folder: Path, session: dict[str, Any]) -> None:
    """Write down what this run is, or make sure that it is the one that is there."""
    new: dict[str, Any] = {"format": _FORMAT, "sessions": [], "tasks": {}}
    found = read_run(folder) if (folder / RUN).exists() else new
    if "plan" in found:
        _require_same(found, plan, tasks, folder)
    described = {name: _described(task, plan) for name, task in tasks.items()}
    for name, old in found["tasks"].items():
        if name not in described or described[name]["count"] < old["count"]:
            described[name] = old  # this session asks for less; what was done stays
    settings = [setting.key for setting in plan.settings]
    document = {
        "format": _FORMAT,
        "plan": plan.identity(),
        "settings": [*dict.fromkeys([*found.get("settings", ()), *settings])],
        "tasks": described,
        "sessions": [*found["sessions"], session],
    }
    replace_file(folder / RUN, json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n")


def read_run(folder: Path) -> dict[str, Any]:
    """What ``run.json`` says."""
    path = folder / RUN
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != _FORMAT:
            raise InvalidParameter(f"{str(path)!r} has format {found['format']}, but this version reads {_FORMAT}.")
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, InvalidParameter):
            raise
        raise InvalidParameter(f"{str(path)!r} does not describe a run: {error}. Name another folder.") from error
    return found


def _require_same(found: dict[str, Any], plan: Plan, tasks: Mapping[str, Task], folder: Path) -> None:
    mine = plan.identity()
    others = [name for name in mine if found["plan"].get(name) != mine[name]]
    if others:
        was = ", ".join(f"{name} {found['plan'].get(name)!r}, not {mine[name]!r}" for name in others)
        raise InvalidParameter(
            f"the folder {str(folder)!r} holds another run: it has {was}. Name a new folder, or ask for the same."
        )
    for name, task in tasks.items():
        old = found["tasks"].get(name)
        if old is not None and _whole(task, name, plan, old["count"]).fingerprint(old["count"]) != old["fingerprint"]:
            raise InvalidParameter(
                f"the folder {str(folder)!r} holds a run on other problems of the task {name!r}. Name a new folder."
            )


def _whole(task: Task, name: str, plan: Plan, count: int) -> Task:
    """With the problems that were there; of a task that is made to measure, fewer may have been made this time."""
    if len(task.items) >= count:
        return task
    return make_task(name, {name: Path(path) for name, path in plan.data.items()}, count)


def _described(task: Task, plan: Plan) -> dict[str, Any]:
    count = plan.count(len(task.items))
    return {"count": count, "fingerprint": task.fingerprint(count)}
