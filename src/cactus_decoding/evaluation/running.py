"""Carrying a plan out: every setting on the same problems, chunk by chunk, resumable, on one or several processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from cactus_decoding.errors import InvalidParameter, OutputFailed
from cactus_decoding.evaluation.plan import Plan
from cactus_decoding.evaluation.provenance import provenance
from cactus_decoding.evaluation.store import RUN, read_chunk, replace_file
from cactus_decoding.evaluation.tasks.base import Task
from cactus_decoding.evaluation.tasks.registry import make_task
from cactus_decoding.evaluation.worker import Unit, Worker, keys_of
from cactus_decoding.generation.loading import load_pair

Watch = Callable[[int, int], None]
"""Told how many responses there are, and how many there will be."""
_FORMAT = 1
_LOCK = "lock"
_LOOK = 0.3  # seconds between two looks at how far the workers are


def tasks_of(plan: Plan) -> dict[str, Task]:
    """The plan's tasks, made anew."""
    data = {name: Path(path) for name, path in plan.data.items()}
    strangers = [name for name in data if name not in plan.tasks]
    if strangers:
        raise InvalidParameter(f"a data file is given for {strangers[0]!r}, which is none of the tasks of this run.")
    return {name: make_task(name, data, plan.limit) for name in plan.tasks}


def run(
    plan: Plan,
    folder: Path,
    *,
    workers: int = 1,
    threads: int | None = None,
    command: str = "",
    watch: Watch = lambda done, parts: None,
) -> dict[str, Task]:
    """Do what is missing of ``plan`` in ``folder``, and return the tasks.

    Args:
        workers: processes, each with a pair of its own.
        threads: CPU threads of each; by default the cores are shared out.
        command: how the run was asked for, for the record.

    Raises:
        InvalidParameter, InvalidPrompt, ModelRefused...: what is asked for cannot be run; nothing was written.
        OutputFailed: a response could not be written; those before it are safe.
    """
    require_own(folder)
    tasks = tasks_of(plan)
    if threads is not None or workers > 1:
        torch.set_num_threads(threads or max(1, (os.cpu_count() or 1) // workers))
    worker = Worker(plan, load_pair(plan.model, plan.draft, dtype=plan.dtype, device=plan.device), tasks, folder)
    worker.check()
    with _locked(folder):
        _claim(plan, tasks, folder, provenance(command, workers))
        units = _units(plan, tasks)
        todo, there, whole = _missing(plan, tasks, folder, units)
        watch(there, whole)
        if workers == 1:
            _alone(worker, todo, there, whole, watch)
        else:
            del worker
            _together(plan, folder, todo, workers, there, whole, watch)
    return tasks


def require_own(folder: Path) -> None:
    """Refuse a folder that holds something else than a run."""
    if folder.exists() and not folder.is_dir():
        raise InvalidParameter(f"{str(folder)!r} is a file. Name a folder for the results.")
    there = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if there - {_LOCK} and RUN not in there:
        raise InvalidParameter(f"the folder {str(folder)!r} holds other things. Name a new one for the results.")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / _LOCK, timeout=0):
            yield
    except Timeout as error:
        raise InvalidParameter(f"another process is working on {str(folder)!r}. Wait for it or stop it.") from error
    except OSError as error:
        raise OutputFailed(f"{str(folder)!r} cannot be written to: {error.strerror}. Choose another folder.") from error


def _claim(plan: Plan, tasks: dict[str, Task], folder: Path, session: dict[str, Any]) -> None:
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


def _require_same(found: dict[str, Any], plan: Plan, tasks: dict[str, Task], folder: Path) -> None:
    mine = plan.identity()
    others = [name for name in mine if found["plan"].get(name) != mine[name]]
    if others:
        was = ", ".join(f"{name} {found['plan'].get(name)!r}, not {mine[name]!r}" for name in others)
        raise InvalidParameter(
            f"the folder {str(folder)!r} holds another run: it has {was}. Name a new folder, or ask for the same."
        )
    for name, task in tasks.items():
        old = found["tasks"].get(name)
        known = old is not None and len(task.items) >= old["count"]  # of a task that is made to measure, less is made
        if known and task.fingerprint(old["count"]) != old["fingerprint"]:
            raise InvalidParameter(
                f"the folder {str(folder)!r} holds a run on other problems of the task {name!r}. Name a new folder."
            )


def _described(task: Task, plan: Plan) -> dict[str, Any]:
    count = _count(task, plan)
    return {"count": count, "fingerprint": task.fingerprint(count)}


def _count(task: Task, plan: Plan) -> int:
    return len(task.items[: plan.limit])


def _units(plan: Plan, tasks: dict[str, Task]) -> list[Unit]:
    """By chunk first: whenever the run is looked at, all settings have worked on nearly the same problems."""
    return [
        Unit(name, setting, chunk)
        for name, task in tasks.items()
        for chunk in range(-(-_count(task, plan) // plan.chunk))
        for setting in plan.settings
    ]


def _missing(plan: Plan, tasks: dict[str, Task], folder: Path, units: Sequence[Unit]) -> tuple[list[Unit], int, int]:
    """Units with something to do, and how many responses there are and will be."""
    todo, there, whole = [], 0, 0
    for unit in units:
        wanted = keys_of(plan, tasks[unit.task], unit.chunk)
        found = read_chunk(unit.path(folder))
        done = sum(key in found for key in wanted)
        there, whole = there + done, whole + len(wanted)
        if done < len(wanted) or not unit.path(folder).exists():
            todo.append(unit)
    return todo, there, whole


def _alone(worker: Worker, todo: Sequence[Unit], there: int, whole: int, watch: Watch) -> None:
    def finished() -> None:
        nonlocal there
        there += 1
        watch(there, whole)

    for unit in todo:
        worker.work(unit, finished)


def _together(
    plan: Plan, folder: Path, todo: Sequence[Unit], workers: int, there: int, whole: int, watch: Watch
) -> None:
    context = multiprocessing.get_context("spawn")
    count = context.Value("Q", 0)
    starting = (plan, folder, torch.get_num_threads(), count)
    pool = ProcessPoolExecutor(workers, context, initializer=_start, initargs=starting)
    try:
        pending: set[Future[None]] = {pool.submit(_work, unit) for unit in todo}
        while pending:
            ended, pending = wait(pending, timeout=_LOOK, return_when=FIRST_COMPLETED)
            watch(there + count.value, whole)
            for future in ended:
                future.result()
    except BrokenProcessPool as error:
        raise OutputFailed(
            "a worker process ended unexpectedly, perhaps for want of memory. Every response that was finished is "
            "safe: run the same command again, with fewer workers or rows."
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_here: tuple[Worker, Callable[[], None]] | None = None  # of a worker process: set once, when it starts


def _start(plan: Plan, folder: Path, threads: int, count: Any) -> None:
    """Make a process ready to work. It ends with its parent, so that nobody writes behind a killed run."""
    global _here  # noqa: PLW0603
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(threads)

    def finished() -> None:
        with count.get_lock():
            count.value += 1

    pair = load_pair(plan.model, plan.draft, dtype=plan.dtype, device=plan.device)
    _here = Worker(plan, pair, tasks_of(plan), folder), finished


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(unit: Unit) -> None:
    assert _here is not None
    worker, finished = _here
    worker.work(unit, finished)
