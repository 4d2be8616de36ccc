"""``cactus demo``: constrained acceptance at work on the pair that ships with the package."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cactus_decoding.cli import options as opt
from cactus_decoding.cli.console import figure, out, print_json, progress

if TYPE_CHECKING:
    from rich.table import Table

    from cactus_decoding.embedded.problems import Problem
    from cactus_decoding.generation.output import Output
    from cactus_decoding.generation.pair import Pair
    from cactus_decoding.generation.statistics import Statistics
    from cactus_decoding.rules import Rule

Answers = dict[str, list["Output"]]  # by way, in the order of the problems

MEANINGS = """\
cactus    the recommended rule: a budget of so many nats for each drafted token, and
          none made more than 4 times as likely as the verifier has it
right     answers that are correct
per call  tokens emitted per verifier call
AL        drafted tokens accepted per verifier call
accepted  share of the examined drafted tokens that were accepted
relaxed   share of them accepted only thanks to the rule: in expectation, how much
          of the text's law is not the verifier's (total variation per token)
speed     tokens/s over those of the verifier alone
"""


def demo(
    problems: Annotated[int, typer.Option(min=1, max=10_000, help="How many problems to solve.")] = 12,
    delta: Annotated[float, typer.Option(help="Budget of Cactus, nats per drafted token.")] = 0.25,
    alpha: Annotated[float, typer.Option(help="Bound of the bounded ratio.")] = 3.0,
    m: opt.DraftLength = 5,
    temperature: opt.Temperature = 1.0,
    seed: Annotated[int, typer.Option(help="Which random numbers.")] = 1,
    threads: opt.Threads = 1,
    as_json: opt.Json = False,
) -> None:
    """Solve word problems four ways: verifier alone, lossless, Cactus, bounded ratio. Then show one token by token."""
    from cactus_decoding.cli.loading import load
    from cactus_decoding.embedded.problems import DEMO_SEED, make_problems
    from cactus_decoding.rules import RECOMMENDED, BoundedRatio, Lossless

    way = f"cactus {delta:g}"
    ways: dict[str, Rule | None] = {
        "verifier alone": None,
        "lossless": Lossless(),
        way: replace(RECOMMENDED, delta=delta),
        f"ratio {alpha:g}": BoundedRatio(alpha),
    }
    pair = load("abacus", None, None, None, threads)
    tasks = make_problems(problems, DEMO_SEED)
    answers = _solve(pair, tasks, ways, m, temperature, seed)
    if as_json:
        print_json(_document(tasks, answers, ways))
        return
    out.print(_table(tasks, answers))
    out.print(MEANINGS, soft_wrap=True)
    _show_one(pair, tasks, answers[way], m)


def _solve(
    pair: Pair, tasks: list[Problem], ways: dict[str, Rule | None], m: int, temperature: float, seed: int
) -> Answers:
    """Problem by problem, all ways in turn, so that a busy moment of the machine slows them alike."""
    answers: Answers = {way: [] for way in ways}
    pair.generate(tasks[0].question, seed=0, m=m, max_new_tokens=16)  # the first forward is slow and counts for nobody
    with progress() as bar:
        step = bar.add_task("solving", total=len(tasks) * len(ways))
        for number, task in enumerate(tasks):
            for way, rule in ways.items():
                drafted = 0 if rule is None else m
                answers[way].append(
                    pair.generate(
                        task.question, rule=rule, m=drafted, temperature=temperature, seed=seed * 1000 + number
                    )
                )
                bar.advance(step)
    return answers


def _right(tasks: list[Problem], outputs: list[Output]) -> int:
    from cactus_decoding.embedded.problems import is_correct

    return sum(is_correct(output.text, task) for task, output in zip(tasks, outputs))


def _totals(answers: Answers) -> dict[str, Statistics]:
    from cactus_decoding.generation.statistics import total

    return {way: total(output.stats for output in outputs) for way, outputs in answers.items()}


def _table(tasks: list[Problem], answers: Answers) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        title=f"{len(tasks)} word problems, the Abacus pair", box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False
    )
    table.add_column("", no_wrap=True)
    for heading in ("right", "per call", "AL", "accepted", "relaxed", "tokens/s", "speed"):
        table.add_column(heading, justify="right", no_wrap=True)
    totals = _totals(answers)
    alone = next(iter(totals.values())).tokens_per_second
    for way, stats in totals.items():
        table.add_row(
            way,
            f"{_right(tasks, answers[way])} of {len(tasks)}",
            figure(stats.tokens_per_call),
            figure(stats.accepted_length if stats.drafted else float("nan")),
            figure(stats.acceptance),
            figure(stats.relaxed_share, 3),
            figure(stats.tokens_per_second, 0),
            f"{figure(stats.tokens_per_second / alone)}x",
        )
    return table


def _show_one(pair: Pair, tasks: list[Problem], outputs: list[Output], m: int) -> None:
    """The first right answer (or the first one) token by token."""
    from cactus_decoding.cli.tokens import legend, painted
    from cactus_decoding.embedded.problems import is_correct

    right = [i for i, task in enumerate(tasks) if is_correct(outputs[i].text, task)]
    shown = right[0] if right else 0
    stats = outputs[shown].stats
    out.print(f"[bold]{tasks[shown].question}[/bold]", soft_wrap=True)
    out.print(painted(outputs[shown].events, pair), soft_wrap=True)
    out.print(f"\n{stats.tokens} tokens in {stats.verifier_calls} verifier calls, {m} drafted per call")
    out.print(legend(), soft_wrap=True)


def _document(tasks: list[Problem], answers: Answers, ways: dict[str, Rule | None]) -> dict[str, Any]:
    from dataclasses import asdict

    totals = _totals(answers)
    alone = next(iter(totals.values())).tokens_per_second
    return {
        "problems": len(tasks),
        "ways": [
            {
                "rule": None if rule is None else {"name": rule.name, **asdict(rule)},  # type: ignore[call-overload]
                "right": _right(tasks, answers[way]),
                "speed": totals[way].tokens_per_second / alone,
                **totals[way].to_dict(),
            }
            for way, rule in ways.items()
        ],
    }
