"""Options that several commands share, declared once."""

from __future__ import annotations

from typing import Annotated

import typer

Model = Annotated[
    str, typer.Option(help='Verifier: a hub id, a folder, a .gguf file, or "abacus", the pair inside this package.')
]
Draft = Annotated[
    str | None,
    typer.Option(help='Drafter: likewise, or "prompt-lookup". May be left out for "abacus".', show_default=False),
]
Delta = Annotated[
    float | None, typer.Option(help="Budget per drafted token in nats (rule cactus).", show_default=False)
]
Alpha = Annotated[float | None, typer.Option(help="Ratio bound (rule ratio).", show_default=False)]
DraftLength = Annotated[int, typer.Option("-m", "--draft-length", help="Tokens drafted per verifier call.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopK = Annotated[int, typer.Option(help="Keep the k largest; 0 is off.")]
TopP = Annotated[float, typer.Option(help="Keep the smallest set that reaches this mass; 1 is off.")]
MinP = Annotated[float, typer.Option(help="Keep what has this share of the largest probability; 0 is off.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads for the models.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
