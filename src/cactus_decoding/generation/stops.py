"""When a response ends, decided token by token in the order of the text.

Whatever comes first decides: an end-of-text id, a stop string or stop id, the cap on new tokens. Everything behind that
token is cut from ids, text and counts alike. The id that ended the response stays in the ids; the text has
neither an end-of-text token nor the stop string.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from cactus_decoding.generation.text import Detokenizer

FinishReason = Literal["eos", "stop", "length"]
EOS: FinishReason = "eos"
STOP: FinishReason = "stop"
LENGTH: FinishReason = "length"


class Stops:
    """Follows one response. `push` takes its ids one at a time; `text` is what may be shown of it so far."""

    def __init__(
        self,
        eos: frozenset[int],
        stop_ids: frozenset[int],
        strings: Sequence[str],
        cap: int,
        detokenizer: Detokenizer | None,
    ) -> None:
        self._ends: dict[int, FinishReason] = {**dict.fromkeys(stop_ids, STOP), **dict.fromkeys(eos, EOS)}
        self._strings = tuple(strings)
        self._cap = cap
        self._detokenizer = detokenizer
        self._count = 0
        self._text = ""
        self._shown = 0
        self.reason: FinishReason | None = None

    def push(self, token: int) -> FinishReason | None:
        """Take the next id; the reason if the response ends with it."""
        self._count += 1
        self.reason = self._ends.get(token)
        if self._detokenizer is not None and self.reason is None and self._append(self._detokenizer.push(token)):
            self.reason = STOP
            return self.reason
        if self.reason is None and self._count >= self._cap:
            self.reason = LENGTH
        if self._detokenizer is not None and self.reason and self._append(self._detokenizer.finish()):
            self.reason = STOP
        return self.reason

    def _append(self, piece: str) -> bool:
        """Add to the text; if that completes a stop string, cut the text before the first one."""
        longest = max(map(len, self._strings), default=0)
        since = max(0, len(self._text) - longest + 1)
        self._text += piece
        found = [at for at in (self._text.find(string, since) for string in self._strings) if at >= 0]
        if found:
            self._text = self._text[: min(found)]
        return bool(found)

    @property
    def text(self) -> str:
        return self._text

    def take_piece(self) -> str:
        """The text that is new since the last call, less an ending that may turn out to begin a stop string."""
        safe = len(self._text)
        if self.reason is None:
            safe -= max((self._begun(string) for string in self._strings), default=0)
        piece = self._text[self._shown : safe]
        self._shown = max(self._shown, safe)
        return piece

    def _begun(self, string: str) -> int:
        """How many characters at the end of the text begin ``string``."""
        sizes = range(min(len(string) - 1, len(self._text)), 0, -1)
        return next((size for size in sizes if self._text.endswith(string[:size])), 0)
