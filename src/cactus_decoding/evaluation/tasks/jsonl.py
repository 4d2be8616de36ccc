"""A person's own problems: a file with one JSON object per line.

Each has ``prompt`` (text, or a list of messages) and ``answer``; it may have ``id``, and ``compare``, which says how a
response is judged (see `COMPARISONS`; "exact" where it does not say).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.evaluation.tasks.base import Item, Task

_NUMBER = re.compile(r"(?<!\d)-?\d[\d,]*(?:\.\d+)?")
_CHOICE = re.compile(r"\b([A-H])\b")  # a lone I is a word


def _exact(text: str, answer: str) -> bool:
    return _plain(text) == _plain(answer)


def _contains(text: str, answer: str) -> bool:
    return _plain(answer) in _plain(text)


def _number(text: str, answer: str) -> bool:
    found = _NUMBER.findall(text)
    return bool(found) and float(found[-1].replace(",", "")) == float(answer.replace(",", ""))


def _choice(text: str, answer: str) -> bool:
    found = _CHOICE.findall(text)
    return bool(found) and found[-1] == answer


def _regex(text: str, answer: str) -> bool:
    return re.search(answer, text) is not None


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


COMPARISONS: dict[str, Callable[[str, str], bool]] = {
    "exact": _exact,
    "contains": _contains,
    "number": _number,
    "choice": _choice,
    "regex": _regex,
}
"""exact: the response is the answer, but for case and white space; contains: the answer stands in it; number: its last
number is the answer; choice: its last letter from A to H that stands alone is; regex: the answer, a pattern, is found
in it."""
_KEYS = ("id", "prompt", "answer", "compare")


class JsonLines(Task):
    """Raises `InvalidParameter`, with the number of the line, for one that does not fit."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self.items: list[Item] = []
        self._compare: dict[str, str] = {}
        for number, line in enumerate(_lines(path), start=1):
            if line.strip():
                self._add(_parsed(line, f"{str(path)!r}, line {number}"), f"{str(path)!r}, line {number}")
        if not self.items:
            raise InvalidParameter(f"{str(path)!r} holds no problem. Write one JSON object per line.")

    def _add(self, entry: dict[str, Any], where: str) -> None:
        item = Item(str(entry.get("id", len(self.items))), entry["prompt"], str(entry["answer"]))
        if item.id in self._compare:
            raise InvalidParameter(f"{where}: the id {item.id!r} is there twice. Give every problem its own.")
        self.items.append(item)
        self._compare[item.id] = entry.get("compare", "exact")

    def score(self, item: Item, text: str) -> float:
        return float(COMPARISONS[self._compare[item.id]](text, item.answer))

    def judged_by(self, item: Item) -> str:
        return self._compare[item.id]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameter(
            f"{str(path)!r} cannot be read: {error}. A task is a UTF-8 file of JSON lines, or one of the known names."
        ) from error


def _parsed(line: str, where: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidParameter(f"{where} is no JSON: {error}. Write one object per line.") from error
    if not isinstance(entry, dict) or not {"prompt", "answer"} <= entry.keys():
        raise InvalidParameter(f"{where} is no object with a prompt and an answer. It may also have id and compare.")
    strangers = [key for key in entry if key not in _KEYS]
    if strangers:
        raise InvalidParameter(f"{where} has {strangers[0]!r}, which is none of {', '.join(_KEYS)}.")
    _require_fitting(entry, where)
    return entry


def _require_fitting(entry: dict[str, Any], where: str) -> None:
    prompt, answer, compare = entry["prompt"], entry["answer"], entry.get("compare", "exact")
    if not (isinstance(prompt, str | list) and prompt):
        raise InvalidParameter(f"{where}: prompt is {prompt!r}, but must be text or a list of messages.")
    if not isinstance(compare, str) or compare not in COMPARISONS:
        raise InvalidParameter(f"{where}: compare is {compare!r}, which is none of {', '.join(COMPARISONS)}.")
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise InvalidParameter(f"{where}: answer is {answer!r}, but must be text or a number.")
    fits = {
        "number": _NUMBER.fullmatch(str(answer)) is not None,
        "choice": re.fullmatch("[A-H]", str(answer)) is not None,
        "regex": _compiles(str(answer)),
    }
    if not fits.get(compare, str(answer).strip() != ""):
        raise InvalidParameter(f"{where}: answer is {answer!r}, which cannot be compared as {compare!r}.")


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True
