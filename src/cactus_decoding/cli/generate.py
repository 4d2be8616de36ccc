"""``cactus generate``: one response to one prompt."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cactus_decoding.cli import options as opt
from cactus_decoding.cli.console import err, figure, out, print_json, progress

if TYPE_CHECKING:
    from cactus_decoding.generation.pair import Output, Stream
    from cactus_decoding.rules import Rule


def generate(
    prompt: Annotated[str, typer.Argument(help='The prompt; "-" reads it from stdin.')],
    model: opt.Model = "abacus",
    draft: opt.Draft = None,
    rule: Annotated[str, typer.Option(help="Acceptance rule: see `cactus rules`.")] = "cactus",
    delta: opt.Delta = None,
    alpha: opt.Alpha = None,
    solver: Annotated[str | None, typer.Option(help="second_order or exact (rule cactus).", show_default=False)] = None,
    divergence: Annotated[
        str | None, typer.Option(help="Divergence of the budget (rule cactus).", show_default=False)
    ] = None,
    recovery: Annotated[str | None, typer.Option(help="exact or shift (rule ratio).", show_default=False)] = None,
    m: opt.DraftLength = 5,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Cap on new tokens.  [default: 256]", show_default=False)
    ] = None,
    temperature: opt.Temperature = 1.0,
    top_k: opt.TopK = 0,
    top_p: opt.TopP = 1.0,
    min_p: opt.MinP = 0.0,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the response; may be repeated.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same text.", show_default=False)] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Do not wrap the prompt in the chat template.")] = False,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.", show_default=False)] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...", show_default=False)] = None,
    threads: opt.Threads = None,
    show_tokens: Annotated[
        bool, typer.Option("--show-tokens", help="Mark each token: kept, relaxed, recovered, bonus.")
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """Generate a response. The text goes to stdout as it comes, the figures to stderr."""
    if as_json and show_tokens:
        raise typer.BadParameter("--json holds every token's mark already, in its events; leave --show-tokens out")
    from cactus_decoding.cli.loading import load
    from cactus_decoding.rules import make_rule

    chosen = make_rule(rule, delta=delta, alpha=alpha, solver=solver, divergence=divergence, recovery=recovery)
    text = sys.stdin.read() if prompt == "-" else prompt
    pair = load(model, draft, dtype, device, threads)
    stream = pair.stream(
        text, rule=chosen, m=m, max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p,
        min_p=min_p, stop=stop or (), seed=seed, chat=False if raw else None,
    )  # fmt: skip
    output = _run(stream, live=not (as_json or show_tokens))
    if as_json:
        print_json(_document(output, chosen))
        return
    if show_tokens:
        from cactus_decoding.cli.tokens import legend, painted

        out.print(painted(output.events, pair), soft_wrap=True)
        err.print(legend(), soft_wrap=True)
    err.print(_summary(output, chosen), soft_wrap=True)


def _run(stream: Stream, live: bool) -> Output:
    """To the end; ``live`` writes each piece to stdout as it comes."""
    if live:
        for piece in stream:
            sys.stdout.write(piece)
            sys.stdout.flush()
        sys.stdout.write("\n")
        return stream.output
    with progress() as bar:
        task = bar.add_task("generating", total=stream.cap)
        for _ in stream:
            bar.update(task, completed=len(stream.ids))
    return stream.output


def _summary(output: Output, rule: Rule) -> str:
    stats = output.stats
    return (
        f"{rule}: {stats.tokens} tokens in {stats.verifier_calls} verifier calls "
        f"({figure(stats.tokens_per_call)} per call), acceptance {figure(stats.acceptance)}, relaxed "
        f"{figure(stats.relaxed_share, 3)}, {figure(stats.tokens_per_second, 0)} tokens/s, "
        f"ended by {output.finish_reason}, seed {output.seed}"
    )


def _document(output: Output, rule: Rule) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "text": output.text,
        "ids": list(output.ids),
        "finish_reason": output.finish_reason,
        "seed": output.seed,
        "rule": {"name": rule.name, **asdict(rule)},  # type: ignore[call-overload]
        "stats": output.stats.to_dict(),
        "events": [event.to_dict() for event in output.events],
    }
