"""Tasks by name: "abacus", a file of JSON lines, or a generating task of lm-evaluation-harness."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.evaluation.tasks.abacus import COUNT, Abacus
from cactus_decoding.evaluation.tasks.base import Task
from cactus_decoding.evaluation.tasks.jsonl import JsonLines

_SUFFIXES = (".jsonl", ".ndjson", ".json")


def make_task(name: str, data: Mapping[str, Path] | None = None, count: int | None = None) -> Task:
    """The task of that name.

    Args:
        data: local files, by task, for those of lm-evaluation-harness that would else be fetched from a hub.
        count: about how many problems are wanted, for tasks that can make any number of them.

    Raises:
        InvalidParameter: an unknown name (with the nearest ones), or a file that does not fit.
        MissingExtra: lm-evaluation-harness is needed and not installed.
    """
    made_here = name == Abacus.name or name.endswith(_SUFFIXES) or "/" in name
    if made_here and name in (data or {}):
        raise InvalidParameter(f"a data file is given for {name!r}, which needs none: it is for tasks of the harness.")
    if name == Abacus.name:
        return Abacus(COUNT if count is None else count)
    if made_here:
        return JsonLines(Path(name))
    from cactus_decoding.evaluation.tasks.lm_eval import LmEvalTask

    return LmEvalTask(name, (data or {}).get(name))
