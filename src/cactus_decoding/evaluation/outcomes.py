"""The responses of a run as columns of numbers, one row per problem, in the same order for every setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.evaluation.plan import Plan, Setting
from cactus_decoding.evaluation.store import Record, chunk_path, read_chunk
from cactus_decoding.evaluation.tasks.base import Task
from cactus_decoding.evaluation.worker import keys_of

Column = NDArray[np.float64]
_COUNTS = ("tokens", "verifier_calls", "drafted", "relaxed", "refused", "seconds")


@dataclass(frozen=True)
class Outcomes:
    """What one setting did on one task."""

    scores: Column
    """``[n, K]`` for n problems with K samples each."""
    columns: dict[str, Column]
    """Sums over a problem's samples, ``[n]`` each: the counts of `Statistics`, ``answers`` (K), ``cut`` (those that
    ran into the cap on their tokens), ``kl`` (nats, over the tokens of audited responses) and ``audited_tokens``."""
    places: NDArray[np.int64]
    """``[m, 3]``: examined, accepted and relaxed, by place in the block."""
    chunk: int = 1
    """Problems that were decoded side by side: their times hang together."""

    def pair(self, part: str, whole: str) -> tuple[Column, Column]:
        """Two columns for a ratio, in units that are independent: problems, or chunks where time is among them."""
        columns = self.columns[part], self.columns[whole]
        if "seconds" not in (part, whole):
            return columns
        starts = range(0, len(columns[0]), self.chunk)
        return np.add.reduceat(columns[0], starts), np.add.reduceat(columns[1], starts)


def outcomes_of(records: Sequence[Record], samples: int, chunk: int = 1) -> Outcomes:
    """Of records in the order of problems, a problem's samples one behind the other; ``chunk`` as in `Outcomes`."""
    rows = [_row(record) for record in records]
    columns = {name: np.asarray([row[name] for row in rows], dtype=np.float64) for name in rows[0]}
    return Outcomes(
        scores=np.asarray([record["score"] for record in records], dtype=np.float64).reshape(-1, samples),
        columns={name: column.reshape(-1, samples).sum(1) for name, column in columns.items()},
        places=_added([record["places"] for record in records]),
        chunk=chunk,
    )


def _row(record: Record) -> dict[str, float]:
    stats = record["stats"]
    accepted = stats["kept"] + stats["relaxed"]
    audit = stats["audit"] or {"total_kl": 0.0, "tokens": 0}
    return {
        **{name: stats[name] for name in _COUNTS},
        "accepted": accepted,
        "examined": accepted + stats["refused"],
        "answers": 1,
        "cut": record["finish_reason"] == "length",
        "kl": audit["total_kl"],
        "audited_tokens": audit["tokens"],
    }


def _added(places: Sequence[Sequence[Sequence[int]]]) -> NDArray[np.int64]:
    added = np.zeros((max((len(one) for one in places), default=0), 3), dtype=np.int64)
    for one in places:
        added[: len(one)] += np.asarray(one, dtype=np.int64).reshape(-1, 3)
    return added


def records_of(plan: Plan, folder: Path, name: str, task: Task, setting: Setting) -> list[Record]:
    """All responses of one setting to one task that the plan asks for, in order, without their events.

    Raises `InvalidParameter` where some are missing.
    """
    records: list[Record] = []
    for chunk in range(plan.chunks(len(task.items))):
        found = read_chunk(chunk_path(folder, name, setting, chunk))
        wanted = keys_of(plan, task, chunk)
        missing = [key for key in wanted if key not in found]
        if missing:
            raise InvalidParameter(
                f"{str(folder)!r} has no response of {setting.rule!r} to problem {missing[0][0]!r} of {name!r}. Run "
                "the evaluation to its end first: it goes on where it stopped."
            )
        for key in wanted:
            del found[key]["events"]  # most of it, and nothing here asks for them
            records.append(found[key])
    return records
