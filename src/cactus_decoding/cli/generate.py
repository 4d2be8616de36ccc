"""``cactus generate``: one response to one prompt."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cactus_decoding.cli import options as opt
from cactus_decoding.cli.console import err, figure, out, print_json, progress

if TYPE_CHECKING:
    from cactus_decoding.generation.audit import Audit
    from cactus_decoding.generation.output import Output
    from cactus_decoding.generation.session import Stream
    from cactus_decoding.rules import Rule


def generate(
    prompt: Annotated[str, typer.Argument(help='The prompt; "-" reads it from stdin.')],
    model: opt.Model = "abacus",
    draft: opt.Draft = None,
    rule: opt.Rule = None,
    delta: opt.Delta = None,
    m: opt.DraftLengthOrAuto = "auto",
    max_new_tokens: opt.MaxNewTokens = None,
    max_relaxed: opt.MaxRelaxed = None,
    block: opt.Block = False,
    audit: opt.Audit = 0,
    temperature: opt.Temperature = 1.0,
    top_k: opt.TopK = 0,
    top_p: opt.TopP = 1.0,
    min_p: opt.MinP = 0.0,
    presence_penalty: opt.PresencePenalty = 0.0,
    frequency_penalty: opt.FrequencyPenalty = 0.0,
    repetition_penalty: opt.RepetitionPenalty = 1.0,
    logit_bias: opt.LogitBias = None,
    stop: opt.Stop = None,
    stop_token_id: opt.StopTokenId = None,
    ignore_eos: opt.IgnoreEos = False,
    seed: opt.Seed = None,
    raw: opt.Raw = False,
    dtype: opt.Dtype = None,
    device: opt.Device = None,
    threads: opt.Threads = None,
    show_tokens: opt.ShowTokens = False,
    logprobs: opt.Logprobs = None,
    as_json: opt.Json = False,
) -> None:
    """Generate a response. The text goes to stdout as it comes, the figures to stderr."""
    _require_fitting(as_json, show_tokens, logprobs)
    from cactus_decoding.cli.loading import load

    chosen = opt.rule_of(rule, delta)
    options: dict[str, Any] = {
        "rule": chosen, "m": opt.draft_length(m), "max_new_tokens": max_new_tokens,
        "max_relaxed": opt.max_relaxed(max_relaxed), "block": block, "audit": audit, "temperature": temperature,
        "top_k": top_k, "top_p": top_p, "min_p": min_p, "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty, "repetition_penalty": repetition_penalty,
        "logit_bias": opt.logit_bias(logit_bias), "stop": stop or (),
        "stop_token_ids": stop_token_id or (), "ignore_eos": ignore_eos, "seed": seed,
        "chat": False if raw else None, "logprobs": logprobs or 0,
    }  # fmt: skip
    text = sys.stdin.read() if prompt == "-" else prompt
    pair = load(model, draft, dtype, device, threads)
    stream = pair.stream(text, **options)
    if options["m"] == "auto":
        with err.status("timing steps, to adapt the draft length"):
            pair.step_costs(1)
    output = _run(stream, live=not (as_json or show_tokens))
    if as_json:
        print_json(_document(output, chosen, logprobs is not None))
        return
    if show_tokens:
        from cactus_decoding.cli.tokens import legend, painted

        out.print(painted(output.events, pair), soft_wrap=True)
        err.print(legend(), soft_wrap=True)
    err.print(_summary(output, chosen), soft_wrap=True)


def _require_fitting(as_json: bool, show_tokens: bool, logprobs: int | None) -> None:
    """Refuse what would be ignored."""
    if as_json and show_tokens:
        raise typer.BadParameter("--json holds every token's mark already, in its events; leave --show-tokens out")
    if logprobs is not None and not as_json:
        raise typer.BadParameter("--logprobs shows in --json only; add --json")


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
    from cactus_decoding.rules import spec_of

    stats = output.stats
    spent = "" if stats.lossless_from is None else f" (lossless from token {stats.lossless_from} on)"
    audit = "" if stats.audit is None else f"{_audited(stats.audit)}, "
    return (
        f"{spec_of(rule)}{spent}: {stats.tokens} tokens in {stats.verifier_calls} verifier calls "
        f"({figure(stats.tokens_per_call)} per call), acceptance {figure(stats.acceptance)}, relaxed "
        f"{figure(stats.relaxed_share, 3)}, {audit}{figure(stats.tokens_per_second, 0)} tokens/s, "
        f"ended by {output.finish_reason}, seed {output.seed}"
    )


def _audited(audit: Audit) -> str:
    share = "" if audit.audited == audit.calls else f" in {audit.audited} of {audit.calls} calls"
    return (
        f"KL from the verifier {figure(audit.mean_kl, 4)} per token (at most {figure(audit.max_kl, 3)}{share}), "
        f"{figure(audit.total_kl)} in all"
    )


def _document(output: Output, rule: Rule, with_logprobs: bool) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "text": output.text,
        "ids": list(output.ids),
        "finish_reason": output.finish_reason,
        "seed": output.seed,
        "rule": {"name": rule.name, **asdict(rule)},  # type: ignore[call-overload]
        "stats": output.stats.to_dict(),
        **({"logprobs": _logprobs(output)} if with_logprobs else {}),
        "events": [event.to_dict() for event in output.events],
    }


def _logprobs(output: Output) -> list[dict[str, Any]]:
    """One per id; null is the logarithm of 0, for which JSON has no number."""

    def finite(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return [
        {
            "id": token.id,
            "logprob": finite(token.logprob),
            "h_logprob": finite(token.h_logprob),
            "top": [{"id": i, "logprob": finite(value)} for i, value in token.top],
        }
        for token in output.logprobs
    ]
