"""From ids to text, piece by piece."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

_UNFINISHED = "\ufffd"  # what a tokenizer decodes the first bytes of an unfinished character to


class Detokenizer:
    """Turns ids into text as they come.

    No piece ends inside a character: the bytes of an unfinished one are held back until it is whole, or until
    `finish`. With byte-level tokenizers the pieces joined are what decoding all ids at once gives; tokenizers that
    fall back to bytes singly may, on bytes that are no text, decode the whole differently.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._core = getattr(tokenizer, "backend_tokenizer", None) or _Slow(tokenizer)
        self._ids: list[int] = []  # what was said last, for the spacing of what follows, and what came since
        self._context = 0  # how many of them were said before
        self._said = 0  # how many characters of their text are out

    def push(self, token: int) -> str:
        """The text that ``token`` finishes; often its own, sometimes none."""
        self._ids.append(token)
        text = self._decode(self._ids)
        whole = text.rstrip(_UNFINISHED)
        piece = whole[self._said :]
        self._said += len(piece)
        if not piece and whole == text:  # a token without text, a special one: nothing behind it depends on it
            self._ids.pop()
        elif whole == text:
            self._ids = self._ids[self._context :]
            self._context = len(self._ids)
            self._said = len(self._decode(self._ids))
        return piece

    def finish(self) -> str:
        """What is still held back: bytes that never became a character."""
        return self._decode(self._ids)[self._said :]

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
