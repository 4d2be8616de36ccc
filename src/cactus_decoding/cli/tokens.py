"""A response token by token, each with how it came about; brackets say it without colour."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from cactus_decoding.generation.events import Event, Mark
from cactus_decoding.generation.pair import Pair

STYLES = {
    Mark.KEPT: ("", "", ""),
    Mark.RELAXED: ("(", ")", "bold yellow"),
    Mark.RECOVERED: ("[", "]", "bold red"),
    Mark.BONUS: ("{", "}", "bold cyan"),
}
MEANINGS = {
    Mark.KEPT: "drafted and kept, as lossless decoding would have too",
    Mark.RELAXED: "drafted and kept only thanks to the rule",
    Mark.RECOVERED: "the drafted token was refused and this one drawn instead",
    Mark.BONUS: "drawn from the verifier behind a block kept whole (or none)",
}


def painted(events: Iterable[Event], pair: Pair) -> Text:
    """The text with every token in the colour and brackets of its mark; special tokens have no text.

    A character of several tokens shows with the mark of its last one.
    """
    text, detokenizer = Text(), pair.detokenizer()
    for event in events:
        for token, mark in event.tokens():
            word = detokenizer.push(token)
            before, after, style = STYLES[mark]
            text.append(_bracketed(word, before, after) if word and before else word, style=style)
    text.append(detokenizer.finish())
    return text


def _bracketed(word: str, before: str, after: str) -> str:
    """The word in brackets, its white space outside; white space alone is made visible in them."""
    core = word.strip()
    if core:
        return word.replace(core, f"{before}{core}{after}", 1)
    return before + word.replace("\n", "⏎") + after + "\n" * word.count("\n")


def legend() -> Text:
    """What the marks mean, one per line."""
    text = Text()
    for mark, (before, after, style) in STYLES.items():
        text.append(f"  {before}{mark.value}{after}".ljust(14), style=style)
        text.append(f"{MEANINGS[mark]}\n")
    return text
