"""Carrying a plan out: every setting on the same problems, chunk by chunk, resumable, on one or several processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from cactus_decoding.errors import InvalidParameter, OutputFailed
from cactus_decoding.evaluation.claim import claim
from cactus_decoding.evaluation.plan import Plan
from cactus_decoding.evaluation.provenance import provenance
from cactus_decoding.evaluation.store import RUN, read_chunk, scratch_of
from cactus_decoding.evaluation.tasks.base import Task
from cactus_decoding.evaluation.team import Alone, Together, load_pair_of, tasks_of
from cactus_decoding.evaluation.worker import Unit, Worker, keys_of
from cactus_decoding.generation.request import whole

Watch = Callable[[int, int], None]
"""Told how many responses there are, and how many there will be."""
_LOCK = "lock"


class Run:
    """A plan in its folder. Within ``with``, nobody else writes there and the models are loaded.

    Args:
        workers: processes, each with a pair of its own.
        threads: CPU threads of each; by default the cores are shared out, or torch's own choice for one worker.
        command: how the run was asked for, for the record.
    """

    def __init__(
        self, plan: Plan, folder: Path, *, workers: int = 1, threads: int | None = None, command: str = ""
    ) -> None:
        self.plan, self.folder, self.workers = plan, folder, whole("workers", workers, 1)
        self.tasks: dict[str, Task] = {}
        self._threads, self._command = threads, command
        self._team: Alone | Together | None = None
        self._open = ExitStack()

    def __enter__(self) -> Run:
        """Raises InvalidParameter, InvalidPrompt, ModelRefused, ... before anything is written."""
        require_own(self.folder)
        self.tasks = tasks_of(self.plan)
        if self._threads is not None or self.workers > 1:
            torch.set_num_threads(self._threads or max(1, (os.cpu_count() or 1) // self.workers))
        worker = Worker(self.plan, load_pair_of(self.plan), self.tasks, self.folder)
        worker.check()
        with ExitStack() as opening:
            opening.enter_context(_locked(self.folder))
            claim(self.plan, self.tasks, self.folder, provenance(self._command, self.workers, torch.get_num_threads()))
            self._team = Alone(worker) if self.workers == 1 else Together(self.plan, self.folder, self.workers)
            opening.callback(self._team.close)
            self._open = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def units(self) -> list[Unit]:
        """By chunk first: whenever the run is looked at, all settings have worked on nearly the same problems."""
        return [
            Unit(name, setting, chunk)
            for name, task in self.tasks.items()
            for chunk in range(self.plan.chunks(len(task.items)))
            for setting in self.plan.settings
        ]

    def carry_out(self, units: Sequence[Unit], watch: Watch = lambda done, parts: None) -> None:
        """Do what is missing of these. Raises `OutputFailed` where a response cannot be written."""
        assert self._team is not None
        todo, there, parts = self._missing(units)
        watch(there, parts)
        self._team.work(todo, lambda done: watch(there + done, parts))

    def _missing(self, units: Sequence[Unit]) -> tuple[list[Unit], int, int]:
        """Units with something to do, and how many responses there are and will be."""
        todo, there, parts = [], 0, 0
        for unit in units:
            wanted, path = keys_of(self.plan, self.tasks[unit.task], unit.chunk), unit.path(self.folder)
            found = read_chunk(path)
            done = sum(key in found for key in wanted)
            there, parts = there + done, parts + len(wanted)
            if done < len(wanted) or not path.exists():
                todo.append(unit)
        return todo, there, parts


def require_own(folder: Path) -> None:
    """Refuse a folder that holds something else than a run."""
    if folder.exists() and not folder.is_dir():
        raise InvalidParameter(f"{str(folder)!r} is a file. Name a folder for the results.")
    there = {path.name for path in folder.iterdir()} if folder.exists() else set()
    begun = {_LOCK, scratch_of(folder / RUN).name}  # all that a run leaves that was killed as it began
    if there - begun and RUN not in there:
        raise InvalidParameter(f"the folder {str(folder)!r} holds other things. Name a new one for the results.")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock = FileLock(folder / _LOCK, timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise InvalidParameter(f"another process is working on {str(folder)!r}. Wait for it or stop it.") from error
    except OSError as error:
        raise OutputFailed(f"{str(folder)!r} cannot be written to: {error.strerror}. Choose another folder.") from error
    try:
        yield
    finally:
        lock.release()
