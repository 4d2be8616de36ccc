"""Where results come from: versions, machine, revision."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("cactus-decoding", "torch", "transformers", "tokenizers", "numpy", "scipy", "lm-eval")


def provenance(command: str, workers: int, threads: int) -> dict[str, Any]:
    """Of one session of a run, for `run.json`."""
    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": command,
        "workers": workers,
        "threads": threads,
        "revision": _revision(),
        "python": platform.python_version(),
        "versions": {name: found for name in _PACKAGES if (found := _version(name))},
        "machine": {"system": platform.platform(), "processor": _processor(), "cores": os.cpu_count(), **_gpu()},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _revision() -> str | None:
    """The commit of a source checkout, with a plus where files differ from it; None for an installed package."""
    folder = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()

    try:
        if not git("ls-files", "--error-unmatch", __file__):
            return None
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _gpu() -> dict[str, str]:
    import torch

    return {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
