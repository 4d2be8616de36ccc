"""Options of the commands, each declared once, and how those that are more than a number or a text are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cactus_decoding.errors import InvalidParameter

if TYPE_CHECKING:
    from cactus_decoding.rules import Rule as AcceptanceRule

Model = Annotated[
    str, typer.Option(help='Verifier: a hub id, a folder, a .gguf file, or "abacus", the pair inside this package.')
]
Draft = Annotated[
    str | None,
    typer.Option(help='Drafter: likewise, or "prompt-lookup". May be left out for "abacus".', show_default=False),
]
Rule = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[:SETTING=VALUE,...]",
        help='Acceptance rule, such as "ratio:alpha=2"; `cactus rules` lists them. By default cactus with delta=0.25, '
        "max_ratio=4.",
        show_default=False,
    ),
]
Delta = Annotated[
    float | None,
    typer.Option(help="Budget per drafted token in nats: setting delta of the rule.", show_default=False),
]
Block = Annotated[
    bool, typer.Option("--block", help="Verify whole blocks: more per call at the same law; reads whole rows.")
]
Audit = Annotated[
    int, typer.Option(min=0, metavar="K", help="Measure every K-th verifier call exactly: KL from the verifier.")
]
Prompt = Annotated[list[str] | None, typer.Option(help="A prompt to measure on; may be repeated.", show_default=False)]
Prompts = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, help="File of prompts, one per line.", show_default=False),
]
DraftLength = Annotated[int, typer.Option("-m", "--draft-length", min=1, help="Tokens drafted per verifier call.")]
DraftLengthOrAuto = Annotated[
    str,
    typer.Option(
        "-m",
        "--draft-length",
        metavar="N|auto",
        help='Tokens drafted per verifier call; "auto" adapts it, 0 leaves the verifier alone.',
    ),
]
MaxNewTokens = Annotated[int | None, typer.Option(help="Cap on new tokens.  [default: 256]", show_default=False)]
MaxRelaxed = Annotated[
    str | None,
    typer.Option(
        metavar="N|SHARE",
        help="Most relaxed tokens, or their share (0.1) of the cap; lossless once they are spent.",
        show_default=False,
    ),
]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopK = Annotated[int, typer.Option(help="Keep the k largest; 0 is off.")]
TopP = Annotated[float, typer.Option(help="Keep the smallest set that reaches this mass; 1 is off.")]
MinP = Annotated[float, typer.Option(help="Keep what has this share of the largest probability; 0 is off.")]
PresencePenalty = Annotated[float, typer.Option(help="Off the logits of ids in the response so far; 0 is off.")]
FrequencyPenalty = Annotated[float, typer.Option(help="Likewise, once per occurrence; 0 is off.")]
RepetitionPenalty = Annotated[
    float,
    typer.Option(help="Divides positive logits of ids in prompt and response, multiplies negative ones; 1 is off."),
]
LogitBias = Annotated[
    list[str] | None,
    typer.Option(metavar="ID=VALUE", help='Added to the logit of an id, "42=-inf" forbids it; may be repeated.'),
]
Stop = Annotated[list[str] | None, typer.Option(help="Text that ends the response; may be repeated.")]
StopTokenId = Annotated[list[int] | None, typer.Option(help="Id that ends the response; may be repeated.")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Go on behind an end-of-text token.")]
Seed = Annotated[int | None, typer.Option(help="Same seed and a fixed -m, same text.", show_default=False)]
Raw = Annotated[bool, typer.Option("--raw", help="Do not wrap the prompt in the chat template.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.", show_default=False)]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...", show_default=False)]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads for the models.", show_default=False)]
ShowTokens = Annotated[bool, typer.Option("--show-tokens", help="Mark each token: kept, relaxed, recovered, bonus.")]
Logprobs = Annotated[
    int | None,
    typer.Option(help="With --json: every token's log probability, and the N likeliest.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


def rule_of(spec: str | None, delta: float | None) -> AcceptanceRule:
    """The rule asked for, or else the recommended one, with ``delta`` in place of its own."""
    from dataclasses import replace

    from cactus_decoding.rules import RECOMMENDED, parse_rule

    if spec is not None:
        return parse_rule(spec, delta=delta)
    return RECOMMENDED if delta is None else replace(RECOMMENDED, delta=delta)


def draft_length(text: str) -> int | str:
    """A number where it is one; "auto" and everything else are for the engine to take or to refuse."""
    try:
        return int(text)
    except ValueError:
        return text


def max_relaxed(text: str | None) -> int | float | None:
    """A whole number counts tokens; one with a point is a share."""
    if text is None:
        return None
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    raise InvalidParameter(f"max_relaxed is {text!r}, but must be a whole number of tokens, or a share such as 0.1.")


def numbers(name: str, text: str, kind: type[float]) -> list[Any]:
    """The numbers in a list such as ``5,10``, of a kind; at least one."""
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError as error:
        raise InvalidParameter(f"{name} is {text!r}, but must be numbers with commas between, such as 1,2.") from error


def logit_bias(pairs: Sequence[str] | None) -> dict[int, float]:
    """``["42=-inf", "7=1.5"]`` as numbers."""
    bias: dict[int, float] = {}
    for pair in pairs or ():
        try:
            token, value = pair.split("=")
            number, added = int(token), float(value)
        except ValueError as error:
            raise InvalidParameter(f"logit_bias is {pair!r}, but must be ID=VALUE, such as 42=-inf.") from error
        if number in bias:
            raise InvalidParameter(f"logit_bias names the id {number} twice. Give one value.")
        bias[number] = added
    return bias
