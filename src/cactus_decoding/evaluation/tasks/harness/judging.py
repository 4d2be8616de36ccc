"""One number per response, by a task's own filters and metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cactus_decoding.errors import InvalidParameter

_PREFERRED_FILTER = "flexible-extract"


class Judge:
    """Of the task's filters it takes "flexible-extract", or else the first; of its metrics the first that fits.

    A metric fits if more is better and it gives each response a number from 0 to 1.
    """

    def __init__(self, task: Any) -> None:
        self._task = task
        filters = {ensemble.name: ensemble for ensemble in task._filters}
        self.filter = _PREFERRED_FILTER if _PREFERRED_FILTER in filters else next(iter(filters))
        self._ensemble = filters[self.filter]
        self.metric = self._first_fitting()

    def score(self, doc: Mapping[str, Any], text: str) -> float:
        """Raises `InvalidParameter` where the task itself cannot judge, which is a matter of its data."""
        value = self._metrics(doc, text)[self.metric]
        if not _in_bounds(value):
            raise InvalidParameter(f"the metric {self.metric!r} gives {value!r}, which is no number from 0 to 1.")
        return float(value)

    def _first_fitting(self) -> str:
        doc = self._task.task_docs[0]
        found = [self._metrics(doc, text) for text in ("", str(self._task.doc_to_target(doc)))]
        better = self._task.higher_is_better()
        for name in found[0]:
            if better.get(name, True) and all(_in_bounds(metrics.get(name)) for metrics in found):
                return str(name)
        raise InvalidParameter(
            f"the task {self._task.config.task!r} has no metric that gives each response a number from 0 to 1, but "
            f"{', '.join(map(repr, found[0]))}. Run it with: cactus lm-eval"
        )

    def _metrics(self, doc: Mapping[str, Any], text: str) -> dict[str, Any]:
        request = self._task.construct_requests(doc=doc, ctx="", metadata=(self._task.config.task, 0, 1))
        request.resps = [text]
        try:
            self._ensemble.apply([request])
            return dict(self._task.process_results(doc, [request.filtered_resps[self.filter]]))
        except LookupError as error:
            raise InvalidParameter(
                f"the task {self._task.config.task!r} cannot judge a response to one of its problems: {_missing(error)}"
            ) from error


def _missing(error: LookupError) -> str:
    """A name in the data that a checker does not know, or data of NLTK, whose message is a box of many lines."""
    if isinstance(error, KeyError):
        return f"it knows nothing of {error}, which the data name."
    lines = [line for line in str(error).splitlines() if line.strip("* ")]
    return f"{lines[0].strip() if lines else repr(error)} Fetch it once: python -m nltk.downloader punkt_tab"


def _in_bounds(value: Any) -> bool:
    """NumPy's numbers too."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return False
    return not isinstance(value, str) and math.isfinite(number) and 0.0 <= number <= 1.0
