"""The tasks that lm-evaluation-harness ships with, by name, as their YAML files describe them.

Its own index parses thousands of files to YAML, which takes a quarter of a minute. Here the names are looked for as
lines of text, and only the file that is wanted is parsed.
"""

from __future__ import annotations

import re
import sys
from contextlib import redirect_stdout
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from cactus_decoding.errors import InvalidParameter, MissingExtra

ALIASES = {"gpqa": "gpqa_diamond_cot_zeroshot"}
"""Names that say less than lm-eval wants to know."""
_NAMED = re.compile(r"^(task|group):[ \t]*[\"']?([^\s\"'#\[]+)", re.MULTILINE)
_SIBLINGS = 40  # files that are opened in search of one


def require_lm_eval() -> None:
    """Raise `MissingExtra`, which names the command that brings it, where lm-eval is not installed."""
    try:
        import lm_eval  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            'tasks other than "abacus" and files need lm-evaluation-harness: pip install "cactus-decoding[eval]"'
        ) from error


def config_of(name: str) -> dict[str, Any]:
    """The config of the generating task of that name, functions and all.

    Raises `InvalidParameter` for names that lm-eval does not know, for groups, and for tasks that generate no text.
    """
    name = ALIASES.get(name, name)
    kind, path = _named(name)
    if kind == "group":
        inside = [other for other in _tasks() if other.startswith(name)][:3]
        such = f", such as {', '.join(inside)}" if inside else ""
        raise InvalidParameter(f"{name!r} is a group of tasks. Name one of them{such}.")
    config = _parsed(path, functions=False)
    if _output_type(config) != "generate_until":
        sibling = _generating_sibling(name)
        raise InvalidParameter(
            f"the task {name!r} is of the kind {_output_type(config)!r}: it compares likelihoods of given texts, which "
            "no rule changes, and generates none." + (f" {sibling!r} does." if sibling else "")
        )
    _require_text_only(name, config)
    return _with_functions(name, path)


def _require_text_only(name: str, config: dict[str, Any]) -> None:
    """Refuse what takes more than one text in and one text out."""
    refusals = {
        "is made by a Python class of its own": "class" in config,
        "shows pictures": config.get("doc_to_image") is not None,
        "plays sounds": bool(config.get("doc_to_audio")),
        "runs the programs that a model writes": bool(config.get("unsafe_code")),
        f"judges {config.get('repeats')} responses to each problem together": config.get("repeats", 1) != 1,
    }
    for what, true in refusals.items():
        if true:
            raise InvalidParameter(f"the task {name!r} {what}, which is not done here. Run it with: cactus lm-eval")


def _named(name: str) -> tuple[str, Path]:
    if name in _catalogue():
        return _catalogue()[name]
    near = get_close_matches(name, _tasks(), n=3)
    guess = f" The nearest names are {', '.join(near)}." if near else ""
    raise InvalidParameter(f"the task is {name!r}, which lm-eval does not know.{guess}")


@cache
def _catalogue() -> dict[str, tuple[str, Path]]:
    """Whether a name is that of a task or a group, and the file that describes it."""
    import lm_eval.tasks

    found: dict[str, tuple[str, Path]] = {}
    for path in sorted(Path(lm_eval.tasks.__file__).parent.rglob("*.yaml")):
        for kind, name in _NAMED.findall(path.read_text(encoding="utf-8", errors="replace")):
            found.setdefault(name, (kind, path))
    return found


def _tasks() -> list[str]:
    return [name for name, (kind, _) in _catalogue().items() if kind == "task"]


def _parsed(path: Path, functions: bool) -> dict[str, Any]:
    from lm_eval.tasks._yaml_loader import load_yaml

    return dict(load_yaml(path, resolve_func=functions))


def _with_functions(name: str, path: Path) -> dict[str, Any]:
    """The code beside a task is run for that: it may want packages and files, and print."""
    try:
        with redirect_stdout(sys.stderr):
            return _parsed(path, functions=True)
    except ImportError as error:
        raise MissingExtra(f"the task {name!r} needs a package that is not installed: {error}") from error
    except OSError as error:
        raise InvalidParameter(f"the task {name!r} needs what cannot be had here: {error}") from error


def _output_type(config: dict[str, Any]) -> str:
    return str(config.get("output_type", "generate_until"))  # lm-eval's own default


def _generating_sibling(name: str) -> str | None:
    """The task of the same family with the nearest name that generates text."""
    family = name.partition("_")[0]
    others = [other for other in _tasks() if other.partition("_")[0] == family and other != name]
    others.sort(key=lambda other: -SequenceMatcher(None, name, other).ratio())
    for other in others[:_SIBLINGS]:
        if _output_type(_parsed(_catalogue()[other][1], functions=False)) == "generate_until":
            return other
    return None
