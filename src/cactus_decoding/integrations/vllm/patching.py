"""Wrapping functions of vLLM: by the names of their arguments, all of them or none."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cactus_decoding.errors import UnsupportedEngine

Around = Callable[["Call"], Any]

_ORIGINAL = "__cactus_original__"


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a wrapped function."""

    function: Callable[..., Any]
    bound: inspect.BoundArguments

    def __getitem__(self, name: str) -> Any:
        """The argument of that name, its default where the caller gave none."""
        if name in self.bound.arguments:
            return self.bound.arguments[name]
        return self.bound.signature.parameters[name].default

    def __setitem__(self, name: str, value: Any) -> None:
        self.bound.arguments[name] = value

    def proceed(self) -> Any:
        return self.function(*self.bound.args, **self.bound.kwargs)


@dataclass(frozen=True, slots=True)
class Point:
    """A function of vLLM that is wrapped, and the arguments it must have by name."""

    module: str
    name: str
    arguments: tuple[str, ...]

    @property
    def place(self) -> str:
        return f"{self.module}.{self.name}"

    def problem(self) -> str | None:
        """Why it cannot be wrapped; None where it can."""
        try:
            owner, attribute = self._owner()
            function = getattr(owner, attribute)
        except (ImportError, AttributeError) as error:
            return f"{self.place} is gone ({error})"
        signature = inspect.signature(getattr(function, _ORIGINAL, function))
        missing = [name for name in self.arguments if name not in signature.parameters]
        if missing:
            return f"{self.place} has no argument {', '.join(missing)}: it is {self.name}{signature}"
        return None

    def wrapped(self) -> bool:
        try:
            owner, attribute = self._owner()
        except (ImportError, AttributeError):
            return False
        return hasattr(getattr(owner, attribute, None), _ORIGINAL)

    def wrap(self, around: Around) -> None:
        """Let ``around`` decide about every call from now on. A second time does nothing."""
        owner, attribute = self._owner()
        function = getattr(owner, attribute)
        if hasattr(function, _ORIGINAL):
            return
        signature = inspect.signature(function)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return around(Call(function, signature.bind(*args, **kwargs)))

        setattr(wrapper, _ORIGINAL, function)
        setattr(owner, attribute, wrapper)

    def unwrap(self) -> None:
        """Put the function back."""
        owner, attribute = self._owner()
        function = getattr(owner, attribute)
        setattr(owner, attribute, getattr(function, _ORIGINAL, function))

    def _owner(self) -> tuple[Any, str]:
        owner: Any = importlib.import_module(self.module)
        *path, attribute = self.name.split(".")
        for part in path:
            owner = getattr(owner, part)
        return owner, attribute


def require_all(points: Sequence[Point], version: str, tested: str) -> None:
    """Raise `UnsupportedEngine`, with what differs, unless every point can be wrapped."""
    problems = [problem for point in points if (problem := point.problem())]
    if problems:
        raise UnsupportedEngine(
            f"vLLM {version} differs from the versions this plugin knows ({tested}): {'; '.join(problems)}. "
            "Nothing was patched. Install a tested vLLM, or start this one without the plugin: VLLM_PLUGINS='' vllm ..."
        )
