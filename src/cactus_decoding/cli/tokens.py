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
    Mark.BONUS: "drawn from the verifier behind a block that was kept whole",
}


def painted(events: Iterable[Event], pair: Pair) -> Text:
    """The text with every token in the colour and brackets of its mark."""
    text = Text()
    for event in events:
        for token, mark in event.tokens():
            before, after, style = STYLES[mark]
            word = pair.text_of(token)
            bare = word.strip() or word.replace("\n", "⏎")
            lead, _, tail = word.partition(word.strip()) if word.strip() else ("", "", "\n" if "\n" in word else "")
            text.append(lead)
            text.append(f"{before}{bare}{after}", style=style)
            text.append(tail)
    return text


def legend() -> Text:
    """What the marks mean, one per line."""
    text = Text()
    for mark, (before, after, style) in STYLES.items():
        text.append(f"  {before}{mark.value}{after}".ljust(14), style=style)
        text.append(f"{MEANINGS[mark]}\n")
    return text
