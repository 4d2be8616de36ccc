"""The generating tasks of lm-evaluation-harness: its prompts, its filters, its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import UndefinedError

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.evaluation.tasks.base import Item, Task
from cactus_decoding.evaluation.tasks.harness.building import built
from cactus_decoding.evaluation.tasks.harness.catalogue import config_of, require_lm_eval
from cactus_decoding.evaluation.tasks.harness.data import columns_of, on_local_data, rows_of
from cactus_decoding.evaluation.tasks.harness.judging import Judge
from cactus_decoding.generation.request import Options, whole

_CAPS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


class LmEvalTask(Task):
    """A prompt is the text that lm-eval sends without a chat template, few-shot examples included.

    Args:
        name: "gsm8k", "ifeval", "gpqa" (the diamond set, step by step), or what lm-eval calls it.
        data: a local file of JSON lines, or of one JSON list, in place of the task's data set. Few-shot examples
            are drawn from it too, never the problem itself.
        shots: how many of them; by default what the task says.

    Raises:
        InvalidParameter: an unknown name, a task that generates no text or cannot be judged one response at a time,
            data that cannot be had or do not fit.
        MissingExtra: lm-eval, or what this task needs besides, is not installed.
    """

    def __init__(self, name: str, data: Path | str | None = None, shots: int | None = None) -> None:
        require_lm_eval()
        self.name = name
        config = config_of(name)
        self._shots = _shots(config, shots)
        rows = None
        if data is not None:
            rows = rows_of(Path(data), columns_of(config))
            config = on_local_data(config)
            self._require_enough(rows)
        self._task = self._asking(lambda: built({**config, "num_fewshot": self._shots}, rows))
        self._docs = list(self._task.task_docs)
        self.items = self._asking(lambda: [self._item(number, doc) for number, doc in enumerate(self._docs)])
        self._judge = Judge(self._task)
        if rows is not None and config.get("process_results") is not None:
            for item in self.items:  # a row that names what the task's own code does not know is found before the work
                self.score(item, "")

    def score(self, item: Item, text: str) -> float:
        return self._judge.score(self._docs[int(item.id)], text)

    def judged_by(self, item: Item) -> str:
        return f"{self.name}, {self._judge.metric} by {self._judge.filter}, lm-eval {version('lm-eval')}"

    def _item(self, number: int, doc: Mapping[str, Any]) -> Item:
        context = self._task.fewshot_context(doc=doc, num_fewshot=self._shots, gen_prefix=self._task.doc_to_prefix(doc))
        if not isinstance(context, str):
            raise InvalidParameter(f"the task {self.name!r} asks each problem in several ways, which is not done here.")
        return Item(str(number), context, str(self._task.doc_to_target(doc)), self._options())

    def _options(self) -> Options:
        """Stop strings and cap. Whether to sample is for the run to say."""
        asked = self._task.config.generation_kwargs
        until = asked.get("until") or []
        stops = [until] if isinstance(until, str) else list(until)
        options: Options = {"stop": [stop for stop in stops if stop]}
        for name in _CAPS:
            if asked.get(name) is not None:
                return {**options, "max_new_tokens": int(asked[name])}
        return options

    def _require_enough(self, rows: list[Any]) -> None:
        if self._shots >= len(rows):
            raise InvalidParameter(
                f"the task {self.name!r} shows {self._shots} examples before each problem, but the data have only "
                f"{len(rows)} rows, the problem among them. Give more rows, or shots=0."
            )

    def _asking(self, work: Any) -> Any:
        try:
            return work()
        except (KeyError, UndefinedError) as error:
            raise InvalidParameter(
                f"the data of {self.name!r} lack a column that the task reads: {error}. Give it in every row."
            ) from error


def _shots(config: Mapping[str, Any], shots: int | None) -> int:
    return whole("shots", config.get("num_fewshot") or 0 if shots is None else shots, 0)
