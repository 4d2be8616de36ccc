"""From ids to text, piece by piece."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

_UNFINISHED = "\ufffd"  # what a tokenizer decodes the first bytes of an unfinished character to


class Detokenizer:
    """Turns ids into text as they come.

    The pieces joined are what decoding all ids at once gives, and no piece ends inside a character: bytes of an
    unfinished one are held back until it is whole, or until `finish`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._core = getattr(tokenizer, "backend_tokenizer", None) or _Slow(tokenizer)
        self._ids: list[int] = []  # the last finished piece, for the spacing of what follows, and what is held back
        self._finished = 0  # how many of them are in the text already

    def push(self, token: int) -> str:
        """The text that ``token`` finishes; often its own, sometimes none."""
        self._ids.append(token)
        piece = self._unsaid()
        if not piece or piece.endswith(_UNFINISHED):
            return ""
        self._ids = self._ids[self._finished :]
        self._finished = len(self._ids)
        return piece

    def finish(self) -> str:
        """What is still held back: bytes that never became a character."""
        return self._unsaid()

    def _unsaid(self) -> str:
        return self._decode(self._ids)[len(self._decode(self._ids[: self._finished])) :]

    def _decode(self, ids: list[int]) -> str:
        return str(self._core.decode(ids, skip_special_tokens=True))


class _Slow:
    """A tokenizer without a Rust core, behind the same call."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return str(
            self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)
        )
