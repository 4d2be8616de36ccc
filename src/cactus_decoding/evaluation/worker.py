"""One process's share of a run: it decodes chunks of problems and writes each response as it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cactus_decoding.evaluation.plan import Plan, Setting
from cactus_decoding.evaluation.store import ChunkWriter, Key, Record, chunk_path, read_chunk
from cactus_decoding.evaluation.tasks.base import Item, Task
from cactus_decoding.generation.output import Output
from cactus_decoding.generation.pair import Pair
from cactus_decoding.generation.session import Stream
from cactus_decoding.generation.statistics import places_of

_DIGITS = 6  # of the numbers in stored events: what float32 holds


@dataclass(frozen=True, slots=True)
class Unit:
    """What one worker does without a break: one setting on one chunk of one task's problems."""

    task: str
    setting: Setting
    chunk: int

    def path(self, folder: Path) -> Path:
        return chunk_path(folder, self.task, self.setting, self.chunk)


class Worker:
    """A pair, the tasks, and the folder that the responses go to."""

    def __init__(self, plan: Plan, pair: Pair, tasks: dict[str, Task], folder: Path) -> None:
        self._plan, self._pair, self._tasks, self._folder = plan, pair, tasks, folder

    def check(self) -> None:
        """Refuse, before anything is written, what could not be decoded: a long prompt, a rule that does not fit."""
        for task in self._tasks.values():
            for number, item in enumerate(task.items[: self._plan.limit]):
                for setting in self._plan.settings if number == 0 else self._plan.settings[:1]:
                    self._prepare(setting, item, number, 0)

    def work(self, unit: Unit, finished: Callable[[], None]) -> None:
        """Decode what is missing of a unit, then pack it; ``finished`` is told of every response written."""
        path = unit.path(self._folder)
        there = read_chunk(path)
        items = chunk_of(self._plan, self._tasks[unit.task], unit.chunk)
        missing = [
            (number, item, sample)
            for number, item in items
            for sample in range(self._plan.samples)
            if (item.id, sample) not in there
        ]
        if not missing and path.exists():
            return
        with ChunkWriter(path) as writer:
            self._decode(unit, missing, writer, finished)
            writer.pack()

    def _decode(
        self, unit: Unit, missing: Sequence[tuple[int, Item, int]], writer: ChunkWriter, finished: Callable[[], None]
    ) -> None:
        with self._pair.session(rows=self._plan.rows, waiting=len(missing)) as session:
            open_ = []
            for number, item, sample in missing:
                decoding = self._prepare(unit.setting, item, number, sample)
                open_.append((item, sample, session.submit_prepared(decoding)))
            while open_:
                session.step()
                ended = [one for one in open_ if one[2].done]
                open_ = [one for one in open_ if not one[2].done]
                for item, sample, stream in ended:
                    writer.write(self._record(unit.task, item, sample, stream))
                    finished()

    def _prepare(self, setting: Setting, item: Item, number: int, sample: int) -> Any:
        return self._pair.prepare(item.prompt, **self._plan.options(setting, item.options, number, sample))

    def _record(self, task: str, item: Item, sample: int, stream: Stream) -> Record:
        output = stream.output
        return {
            "item": item.id,
            "sample": sample,
            "seed": output.seed,
            "score": self._tasks[task].score(item, output.text),
            "text": output.text,
            "finish_reason": output.finish_reason,
            "stats": output.stats.to_dict(),
            "places": places_of(output.events),
            "tokens": self._marked(output),
            "events": _rounded([event.to_dict() for event in output.events]),
        }

    def _marked(self, output: Output) -> list[tuple[str, str]]:
        """The text, token by token, and how each came about."""
        detokenizer = self._pair.detokenizer()
        marked = [(detokenizer.push(token), mark.value) for event in output.events for token, mark in event.tokens()]
        rest = detokenizer.finish()
        return [*marked[:-1], (marked[-1][0] + rest, marked[-1][1])]


def chunk_of(plan: Plan, task: Task, chunk: int) -> list[tuple[int, Item]]:
    """The problems of a chunk, each with its place in the task."""
    first, count = chunk * plan.chunk, plan.count(len(task.items))
    return [(number, task.items[number]) for number in range(first, min(first + plan.chunk, count))]


def keys_of(plan: Plan, task: Task, chunk: int) -> list[Key]:
    """What a finished unit of this chunk holds."""
    return [(item.id, sample) for _, item in chunk_of(plan, task, chunk) for sample in range(plan.samples)]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, list | tuple):
        return [_rounded(part) for part in value]
    return {key: _rounded(part) for key, part in value.items()} if isinstance(value, dict) else value
