"""Who does the work: this process alone, or several."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import torch

from cactus_decoding.errors import InvalidParameter, OutputFailed
from cactus_decoding.evaluation.plan import Plan
from cactus_decoding.evaluation.tasks.base import Task
from cactus_decoding.evaluation.tasks.registry import make_task
from cactus_decoding.evaluation.worker import Unit, Worker
from cactus_decoding.generation.loading import load_pair
from cactus_decoding.generation.pair import Pair

Watch = Callable[[int], None]
"""Told how many responses were written by now."""
_LOOK = 0.3  # seconds between two looks at how far the processes are


def load_pair_of(plan: Plan) -> Pair:
    """The models of a plan."""
    return load_pair(plan.model, plan.draft, dtype=plan.dtype, device=plan.device)


def tasks_of(plan: Plan) -> dict[str, Task]:
    """The plan's tasks, made anew."""
    data = {name: Path(path) for name, path in plan.data.items()}
    strangers = [name for name in data if name not in plan.tasks]
    if strangers:
        raise InvalidParameter(f"a data file is given for {strangers[0]!r}, which is none of the tasks of this run.")
    return {name: make_task(name, data, plan.limit) for name in plan.tasks}


class Alone:
    """This process."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def work(self, units: Sequence[Unit], watch: Watch) -> None:
        """All of them, one after the other."""
        done = 0

        def finished() -> None:
            nonlocal done
            done += 1
            watch(done)

        for unit in units:
            self._worker.work(unit, finished)

    def close(self) -> None:
        pass


class Together:
    """Several processes, each with the models in its memory, which end with this one."""

    def __init__(self, plan: Plan, folder: Path, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._count = context.Value("Q", 0)
        starting = (plan, folder, torch.get_num_threads(), self._count)
        self._pool = ProcessPoolExecutor(workers, context, initializer=_start, initargs=starting)

    def work(self, units: Sequence[Unit], watch: Watch) -> None:
        """All of them, in this order, as processes become free."""
        before = self._count.value
        try:
            pending: set[Future[None]] = {self._pool.submit(_work, unit) for unit in units}
            while pending:
                ended, pending = wait(pending, timeout=_LOOK, return_when=FIRST_COMPLETED)
                watch(self._count.value - before)
                for future in ended:
                    future.result()
        except BrokenProcessPool as error:
            raise OutputFailed(
                "a worker process ended unexpectedly, perhaps for want of memory. Every response that was finished is "
                "safe: run the same command again, with fewer workers."
            ) from error

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


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

    _here = Worker(plan, load_pair_of(plan), tasks_of(plan), folder), finished


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(unit: Unit) -> None:
    assert _here is not None
    worker, finished = _here
    worker.work(unit, finished)
