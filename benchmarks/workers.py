"""Another library in an environment of its own, as a contestant of a race here: the parent's side of `peer.py`."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cactus_decoding.embedded import ABACUS_DIR

SCRIPT = Path(__file__).with_name("peer.py")


@dataclass
class Worker:
    """``peer`` of `peer.py`, run by ``python``, on the Abacus pair. It idles but while it answers.

    Its own clock times each generation, so that the pipe between the two costs it nothing.
    """

    peer: str
    python: str
    m: int
    temperature: float
    threads: int
    versions: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        settings = {"m": self.m, "temperature": self.temperature, "threads": self.threads}
        folders = {role: ABACUS_DIR / role for role in ("verifier", "drafter")}
        options = [f"--{name}={value}" for name, value in {**folders, **settings}.items()]
        self._process = subprocess.Popen(
            [self.python, str(SCRIPT), self.peer, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.versions = self._answer()

    def __call__(self, prompts: list[list[int]], new_tokens: int, seed: int) -> tuple[int, float]:
        """(tokens, seconds) of decoding ``prompts`` together. Raises `RuntimeError` with what the library says."""
        request = {"ids": prompts, "max_new_tokens": new_tokens, "seed": seed}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        reply = self._answer()
        return sum(reply["tokens"]), reply["seconds"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        reply: dict[str, Any] = json.loads(line) if line else {"error": f"{self.python} ended: is it installed there?"}
        if "error" in reply:
            raise RuntimeError(f"{self.peer}: {reply['error']}")
        return reply

    def close(self) -> None:
        self._process.communicate()
