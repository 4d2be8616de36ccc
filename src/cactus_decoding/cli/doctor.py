"""``cactus doctor``: does speculation pay here, and with what settings?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from cactus_decoding.cli import options as opt
from cactus_decoding.cli.console import figure, out, print_json, progress
from cactus_decoding.cli.prompts import prompts_for

if TYPE_CHECKING:
    from rich.table import Table

    from cactus_decoding.diagnosis.report import Block, Diagnosis, Plan, Side, Speed, Trial
    from cactus_decoding.generation.pair import Pair
    from cactus_decoding.rules import Rule

_PROBLEMS = 3  # of Abacus's own, where no prompt is given
_SHOWN = (1, 2, 3, 4, 5, 6, 8, 10, 12)  # draft lengths in the table of predictions
_NEARLY_ALL = 0.99  # of the steps have a draft: not worth a word
_BAR = 12  # characters of the longest bar


def doctor(
    model: Annotated[str, typer.Argument(help="Verifier, as --model of the other commands.")] = "abacus",
    draft: opt.Draft = None,
    rule: opt.Rule = None,
    delta: opt.Delta = None,
    temperature: opt.Temperature = 1.0,
    top_k: opt.TopK = 0,
    top_p: opt.TopP = 1.0,
    rows: Annotated[int, typer.Option(min=1, help="Responses that decode together.")] = 1,
    prompt: opt.Prompt = None,
    prompts: opt.Prompts = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Cap on new tokens; 64 by default, or what the context holds.", show_default=False),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often acceptance is counted and each way timed.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Which random numbers.")] = 1,
    dtype: opt.Dtype = None,
    device: opt.Device = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads; by default the best of 1, 2, 4, ...", show_default=False)
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Check a pair, measure it, and say whether speculating pays here and with what draft length."""
    from cactus_decoding.diagnosis import Plan
    from cactus_decoding.sampling import SamplingParams

    plan = Plan(
        rule=opt.rule_of(rule, delta),
        sampling=SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p),
        rows=rows,
        new_tokens=max_new_tokens,
        rounds=rounds,
        threads=threads,
        seed=seed,
    )
    texts = prompts_for(model, prompt, prompts, _PROBLEMS)
    diagnosis = _examine(_load(model, draft, dtype, device), texts, plan)
    if as_json:
        print_json(diagnosis.to_dict())
    else:
        _show(diagnosis)


def _load(model: str, draft: str | None, dtype: str | None, device: str | None) -> Pair:
    """The pair; that its two tokenizers differ is a finding as well, and the last one."""
    from cactus_decoding.cli.loading import load
    from cactus_decoding.errors import PairMismatch

    try:
        return load(model, draft, dtype, device, None)
    except PairMismatch as error:
        raise PairMismatch(f"these two cannot speculate together: {error}") from error


def _examine(pair: Pair, texts: list[str], plan: Plan) -> Diagnosis:
    from cactus_decoding.diagnosis import diagnose

    with progress() as bar:
        task = bar.add_task("starting", total=None)

        def watch(what: str, done: int, parts: int) -> None:
            bar.update(task, description=what, completed=done, total=parts)

        return diagnose(pair, texts, plan, watch)


def _show(diagnosis: Diagnosis) -> None:
    from cactus_decoding.diagnosis.advice import advise, findings

    out.print(_pair_table(diagnosis))
    if diagnosis.thread_times:
        out.print(_threads_table(diagnosis))
    out.print(_blocks_table(diagnosis))
    out.print(_predictions_table(diagnosis))
    out.print(_speeds_table(diagnosis))
    for finding in findings(diagnosis):
        out.print(f"- {finding}", markup=False, soft_wrap=True)
    for trial in diagnosis.trials:
        advice = advise(trial)
        out.print(
            f"{_label(trial.rule)}: {advice.text}", style="bold" if advice.pays else "", markup=False, soft_wrap=True
        )
    out.print(f"Threads: {diagnosis.threads}. This took {diagnosis.seconds:.0f} s.", style="dim")


def _table(title: str, first: str, *columns: str) -> Table:
    """A plain table: text in the first column, figures in the others."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="left" if column == "" else "right", no_wrap=True)
    return table


def _label(rule: Rule) -> str:
    """The rule and its number: "cactus 0.25"."""
    from dataclasses import astuple

    values = astuple(rule)  # type: ignore[call-overload]
    return " ".join([rule.name, *(f"{value:g}" for value in values[:1])])


def _pair_table(diagnosis: Diagnosis) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    sides = [side for side in (diagnosis.verifier, diagnosis.drafter) if side]
    table.add_column("")
    for side in sides:
        table.add_column(side.name, overflow="fold")
    for heading, *cells in zip(_HEADINGS, *map(_facts, sides)):
        table.add_row(heading, *cells)
    if diagnosis.match:
        match = diagnosis.match
        own = (f"{match.shared}, and {count} of its own" for count in (match.verifier_only, match.drafter_only))
        table.add_row("shared ids", *own)
    return table


_HEADINGS = ("parameters", "dtype, device", "context", "ids with a token", "rewind", "computes rows")


def _facts(side: Side) -> list[str]:
    return [
        "-" if side.parameters is None else f"{side.parameters / 1e6:.1f} M",
        f"{side.dtype or '-'}, {side.device}",
        "no limit stated" if side.context is None else f"{side.context} tokens",
        f"{side.tokens}, and {side.padded} rows of padding",
        "passed the self-test",
        side.way,
    ]


def _threads_table(diagnosis: Diagnosis) -> Table:
    table = _table("Threads: a forward of the verifier", "threads", "1 token", "6 tokens", "", "")
    most = max(tried.seconds for tried in diagnosis.thread_times)
    for tried in diagnosis.thread_times:
        mark = "used" if tried.threads == diagnosis.threads else ""
        table.add_row(str(tried.threads), _ms(tried.one), _ms(tried.six), _bar(tried.seconds, most), mark)
    return table


def _blocks_table(diagnosis: Diagnosis) -> Table:
    sides = [blocks for blocks in (diagnosis.verifier_blocks, diagnosis.drafter_blocks) if blocks]
    columns = [column for name in ("verifier", "drafter")[: len(sides)] for column in (name, "x 1", "")]
    rows = f", {diagnosis.plan.rows} rows" if diagnosis.plan.rows > 1 else ""
    table = _table(f"Cost of a forward by its tokens{rows}", "tokens", *columns)
    most = max(block.seconds for blocks in sides for block in blocks)
    for place, block in enumerate(diagnosis.verifier_blocks):
        cells = [cell for blocks in sides for cell in _block_cells(blocks, place, most)]
        table.add_row(str(block.tokens), *cells)
    return table


def _block_cells(blocks: tuple[Block, ...], place: int, most: float) -> list[str]:
    if place >= len(blocks):
        return ["-", "-", ""]
    seconds = blocks[place].seconds
    return [_ms(seconds), figure(seconds / blocks[0].seconds), _bar(seconds, most)]


def _predictions_table(diagnosis: Diagnosis) -> Table:
    rules = [_label(trial.rule) for trial in diagnosis.trials]
    columns = [column for rule in rules for column in (f"{rule}: kept", "E(m)", "speed")]
    table = _table("Predicted: speed = E(m) C(0) / C(m)", "m", "C(m)/C(0)", *columns)
    for m in _SHOWN:
        cells = [cell for trial in diagnosis.trials for cell in _prediction_cells(trial, m)]
        table.add_row(str(m), figure(diagnosis.costs(m) / diagnosis.costs(0)), *cells)
    shares = [trial.acceptance.coverage for trial in diagnosis.trials]
    if min(shares) < _NEARLY_ALL:
        found = " and ".join(f"{share:.0%}" for share in shares)
        table.caption = f"Steps with a draft: {found}. E(m) and speed are over all steps."
        table.caption_justify = "left"
    return table


def _prediction_cells(trial: Trial, m: int) -> list[str]:
    """Chance that the m-th draft is kept where it is reached, E(m), speed-up; a star marks the m that is tried."""
    prediction = trial.predictions[m]
    seen = trial.acceptance.reached[m - 1] > 0
    star = "*" if m == trial.fixed.m else " "
    return [
        figure(trial.acceptance.by_place()[m - 1] if seen else math.nan),
        figure(prediction.tokens),
        f"{prediction.speed:.2f}{star}",
    ]


def _speeds_table(diagnosis: Diagnosis) -> Table:
    title = f"Measured in turns, {diagnosis.plan.rounds} x: median, lowest to highest"
    table = _table(title, "", "m", "tokens/s", "x alone", "spread", "predicted", "")
    ways: list[tuple[str, Speed, str]] = [("verifier alone", diagnosis.alone, "")]
    for trial in diagnosis.trials:
        ways += [(_label(trial.rule), trial.fixed, figure(trial.predicted.speed)), (_label(trial.rule), trial.auto, "")]
    most = max(speed.speed for _, speed, _ in ways)
    for name, speed, predicted in ways:
        spread = f"{min(speed.times_alone):.2f} to {max(speed.times_alone):.2f}" if name != "verifier alone" else ""
        rate = f"{speed.rate:.0f}"
        table.add_row(name, str(speed.m), rate, figure(speed.speed), spread, predicted, _bar(speed.speed, most))
    return table


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


def _bar(value: float, most: float) -> str:
    return ("#" if out.options.ascii_only else "█") * max(1, round(_BAR * value / most))
