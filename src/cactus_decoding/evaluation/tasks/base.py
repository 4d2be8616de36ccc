"""A task: problems, and a judgement of what comes back. Knows nothing of rules or models."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from cactus_decoding.generation.prompt import Prompt
from cactus_decoding.generation.request import Options


@dataclass(frozen=True, slots=True)
class Item:
    """One problem."""

    id: str
    """Its name within the task, the same in every run."""
    prompt: Prompt
    """A text, which gets the tokenizer's chat template if there is one, or messages."""
    answer: str
    """What would be right, for people to read."""
    options: Options = field(default_factory=Options)
    """What the task itself asks of a response: stop strings, the most tokens. A run's own options go before these."""


class Task(ABC):
    """Problems and their judge. Made anew, by `make_task`, in every process that works on a run."""

    name: str
    items: Sequence[Item]

    @abstractmethod
    def score(self, item: Item, text: str) -> float:
        """From 0 to 1: how right this response is. Depends on nothing but the two."""

    def judged_by(self, item: Item) -> str:
        """What the judgement of this problem hangs on besides its answer."""
        return self.name

    def fingerprint(self, count: int) -> str:
        """Of the first ``count`` problems: changes with any word of theirs, and with how they are judged."""
        parts = [
            [item.id, item.prompt, item.answer, sorted(item.options.items()), self.judged_by(item)]
            for item in self.items[:count]
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
