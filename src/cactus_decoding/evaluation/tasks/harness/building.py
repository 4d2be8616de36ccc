"""From a config to a task of lm-eval that holds its problems, the same ones every time."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any

from cactus_decoding.errors import InvalidParameter, MissingExtra
from cactus_decoding.evaluation.tasks.harness.data import SPLIT

_SEED = 0
_FEWSHOT_SEED = 1234
"""Those of lm-eval's own command line."""


def built(config: Mapping[str, Any], rows: list[dict[str, Any]] | None) -> Any:
    """A `ConfigurableTask` over the data set of the config, or over ``rows``. Its ``task_docs`` are the problems."""
    cleared = {name: value for name, value in config.items() if name not in ("tag", "group", "task_list")}
    try:
        with _the_same_every_time():
            task = _class_over(rows)(config=cleared)
    except ImportError as error:
        raise MissingExtra(f"the task {config['task']!r} needs a package that is not installed: {error}") from error
    task.set_fewshot_seed(_FEWSHOT_SEED)
    return task


def _class_over(rows: list[dict[str, Any]] | None) -> Any:
    from datasets import Dataset, DatasetDict
    from lm_eval.api.task import ConfigurableTask

    class OverData(ConfigurableTask):  # type: ignore[misc]
        def download(self, dataset_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> None:
            if rows is not None:
                self.dataset = DatasetDict({SPLIT: _dataset(Dataset, rows)})
                return
            try:
                super().download(dataset_kwargs, **kwargs)
            except Exception as error:  # of many libraries: no network, a gate, an unknown name, a broken file
                raise InvalidParameter(
                    f"the data of {self.config.task!r}, {self.DATASET_PATH}, cannot be had: {_first_line(error)} Give "
                    "a local file of the same columns as its data."
                ) from error

    return OverData


def _dataset(kind: Any, rows: list[dict[str, Any]]) -> Any:
    from pyarrow import ArrowException

    try:
        return kind.from_list(rows)
    except ArrowException as error:
        raise InvalidParameter(
            f"the rows of the data do not fit each other: {error}. Give a column one type."
        ) from error


@contextmanager
def _the_same_every_time() -> Iterator[None]:
    """Some tasks shuffle with the global generators, and datasets caches what came of it, behind bars of progress.

    What they print on the way goes to stderr.
    """
    import datasets
    import numpy as np

    states, cached = (random.getstate(), np.random.get_state()), datasets.is_caching_enabled()
    bars = datasets.is_progress_bar_enabled()
    random.seed(_SEED)
    np.random.seed(_SEED)
    datasets.disable_caching()
    datasets.disable_progress_bars()
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if cached:
            datasets.enable_caching()
        if bars:
            datasets.enable_progress_bars()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".") + "."
