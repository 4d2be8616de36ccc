"""The counts of `ledger` on the metrics page, beside vLLM's own ``vllm:spec_decode_*``.

The counts arise in the processes that run the model, the page is served by another. With several API servers vLLM has
prometheus_client carry counters between processes, and these go along. Else each model runner leaves its counts in a
file of a folder that the first process made, and the page reads the files.
"""

from __future__ import annotations

import atexit
import itertools
import json
import logging
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from cactus_decoding.integrations.vllm.ledger import Counts
from cactus_decoding.integrations.vllm.settings import COUNTS

logger = logging.getLogger("vllm.cactus")

MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"  # prometheus_client's own
POSITION = "vllm:cactus_num_accepted_tokens_per_pos"
SERIES = {
    "vllm:cactus_num_drafts": "Verifications of requests that Cactus relaxes.",
    "vllm:cactus_num_draft_tokens": "Drafted tokens of requests that Cactus relaxes.",
    "vllm:cactus_num_accepted_tokens": "Accepted drafted tokens of requests that Cactus relaxes.",
    "vllm:cactus_num_examined_tokens": "Drafted tokens that were accepted or refused, by requests that Cactus relaxes.",
    "vllm:cactus_num_relaxed_tokens": "Accepted tokens that lossless verification would have refused.",
    POSITION: "Accepted drafted tokens per position, of requests that Cactus relaxes.",
}
LABELS = ("model_name", "engine")
_numbers = itertools.count()


def _labels_of(series: str) -> list[str]:
    return [*LABELS, "position"] if series == POSITION else list(LABELS)


class Export(Protocol):
    """Where a model runner's counts go."""

    def write(self, counts: Counts) -> None: ...


def values_of(counts: Counts) -> Iterator[tuple[str, str | None, int]]:
    """Series, position and value."""
    accepted = sum(counts.accepted)
    values = (counts.drafts, counts.draft_tokens, accepted, counts.examined, counts.relaxed)
    for name, value in zip(SERIES, values):
        yield name, None, value
    for place, value in enumerate(counts.accepted):
        yield POSITION, str(place), value


def export_of(labels: tuple[str, str]) -> Export | None:
    """The way from this process to the metrics page; None where there is none."""
    if os.environ.get(MULTIPROCESS):
        return CounterExport(labels)
    folder = os.environ.get(COUNTS)
    return FileExport(Path(folder), labels) if folder and Path(folder).is_dir() else None


class FileExport:
    """A file of counts, replaced whole."""

    def __init__(self, folder: Path, labels: tuple[str, str]) -> None:
        self._path = folder / f"{os.getpid()}-{next(_numbers)}.json"
        self._labels = labels
        self._failed = False

    def write(self, counts: Counts) -> None:
        """Leave the counts for the page. A full disk costs the series, not the service, and is logged once."""
        new = self._path.with_suffix(".new")
        try:
            new.write_text(json.dumps({"labels": self._labels, "values": list(values_of(counts))}))
            new.replace(self._path)
        except OSError as error:
            if not self._failed:
                logger.warning("the counts of Cactus cannot be written to %s: %s", self._path, error)
            self._failed = True


class CounterExport:
    """Counters of prometheus_client, which carries them to the page itself."""

    _counters: dict[str, Any] = {}  # noqa: RUF012 - one set per process, as prometheus_client demands

    def __init__(self, labels: tuple[str, str]) -> None:
        from prometheus_client import Counter

        self._labels = labels
        self._before: dict[tuple[str, str | None], int] = {}
        if not self._counters:
            for name, text in SERIES.items():
                self._counters[name] = Counter(name, text, _labels_of(name))

    def write(self, counts: Counts) -> None:
        for name, position, value in values_of(counts):
            labels = self._labels if position is None else (*self._labels, position)
            self._counters[name].labels(*labels).inc(value - self._before.get((name, position), 0))
            self._before[name, position] = value


class Page:
    """A collector of prometheus_client that sums the files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Any]:
        """One family per series, labelled as vLLM's own counters are."""
        from prometheus_client.core import CounterMetricFamily

        sums: dict[str, dict[tuple[str, ...], int]] = {name: defaultdict(int) for name in SERIES}
        for path in sorted(self._folder.glob("*.json")):
            try:
                found = json.loads(path.read_text())
            except FileNotFoundError:  # the folder is being removed
                continue
            for name, position, value in found["values"]:
                labels = found["labels"] + ([] if position is None else [position])
                sums[name][tuple(labels)] += value
        for name, text in SERIES.items():
            family = CounterMetricFamily(name, text, labels=_labels_of(name))
            for values, value in sums[name].items():
                family.add_metric(list(values), value)
            yield family


def open_page() -> None:
    """In the first process of a server: make the folder, tell its children, and put the series on the page."""
    folder = os.environ.get(COUNTS)
    if (folder and Path(folder).is_dir()) or os.environ.get(MULTIPROCESS):
        return
    from prometheus_client import REGISTRY

    folder = tempfile.mkdtemp(prefix="cactus-vllm-")
    os.environ[COUNTS] = folder
    REGISTRY.register(Page(Path(folder)))
    atexit.register(_close_page, folder, os.getpid())


def _close_page(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not in a child that was forked
        shutil.rmtree(folder, ignore_errors=True)
