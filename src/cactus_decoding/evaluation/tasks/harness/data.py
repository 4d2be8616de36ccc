"""A local file in place of a task's data set, for where no hub can be reached."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cactus_decoding.errors import InvalidParameter

_COLUMNS = {
    "google/IFEval": ("key", "prompt", "instruction_id_list", "kwargs"),
    "Idavidrein/gpqa": (
        "Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3",
    ),
}  # fmt: skip
"""Of data sets whose columns are read by functions. Where templates read them, they name the columns."""
_SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")
SPLIT = "local"


def columns_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """What each row must have, as far as the config tells."""
    if config.get("dataset_path") in _COLUMNS:
        return _COLUMNS[config["dataset_path"]]
    if config.get("process_docs") is not None:  # makes columns of its own
        return ()
    from jinja2 import Environment, meta

    templates = [config.get(name) for name in ("doc_to_text", "doc_to_target")]
    trees = [Environment().parse(template) for template in templates if isinstance(template, str)]
    return tuple(sorted({name for tree in trees for name in meta.find_undeclared_variables(tree)}))


def on_local_data(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with every split it names being the one of the file.

    Few-shot examples are then drawn from the same split as the problems, which is how lm-eval knows to leave the
    problem itself out of them.
    """
    splits = {name: SPLIT for name in _SPLITS if config.get(name) is not None}
    fewshot = config.get("fewshot_config")
    if isinstance(fewshot, Mapping) and fewshot.get("split") is not None:
        splits["fewshot_config"] = {**fewshot, "split": SPLIT}  # type: ignore[assignment]
    return {**config, **splits}


def rows_of(path: Path, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines, or of one JSON list. Raises `InvalidParameter`, with the number of the bad."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameter(f"the data {str(path)!r} cannot be read: {error}. Give a UTF-8 file of JSON.") from error
    rows = []
    for where, row in _parsed(text, str(path)):
        missing = [name for name in columns if not isinstance(row, dict) or name not in row]
        if missing or not isinstance(row, dict):
            raise InvalidParameter(f"{where} has no {', '.join(map(repr, missing)) or 'columns'}. Each row needs them.")
        rows.append(row)
    if not rows:
        raise InvalidParameter(f"the data {str(path)!r} holds no problem. Write one JSON object per line.")
    return rows


def _parsed(text: str, path: str) -> Iterator[tuple[str, Any]]:
    if text.lstrip().startswith("["):
        whole = _json(text, path)
        yield from ((f"{path}, entry {number}", row) for number, row in enumerate(whole, start=1))
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            yield where, _json(line, where)


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidParameter(f"{where} is no JSON: {error}. Write one object per line, or one list.") from error
