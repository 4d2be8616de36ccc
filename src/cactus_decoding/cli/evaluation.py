"""``cactus eval`` and ``cactus sweep``: every rule on the same problems."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cactus_decoding.cli import options as opt
from cactus_decoding.cli.console import err, out, print_json, progress

if TYPE_CHECKING:
    from cactus_decoding.evaluation.plan import Plan, Setting
    from cactus_decoding.evaluation.summary import Summary
    from cactus_decoding.sampling import SamplingParams

_RULES = "verifier,lossless,cactus:0.25,max_ratio=4,cactus:0.1,cactus:0.25,cactus:1,typical"
_GRID = "verifier,lossless,cactus:0.25,max_ratio=4"

Tasks = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,...",
        help='"abacus", files of JSON lines (prompt, answer), or tasks of lm-evaluation-harness such as gsm8k, ifeval, '
        'gpqa. May be left out for "abacus".',
        show_default=False,
    ),
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TASK=FILE", help="A local file for a task of the harness; may be repeated.", show_default=False
    ),
]
Limit = Annotated[int | None, typer.Option(min=1, help="The most problems of each task.", show_default=False)]
Samples = Annotated[int, typer.Option(min=1, help="Responses to each problem.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder of the results; the same run goes on where it stopped.")]
Margin = Annotated[float, typer.Option(help="The largest loss, in points, that you are ready to call none.")]
AuditEvery = Annotated[int, typer.Option(min=0, help="Measure all calls of one in N problems exactly; 0: none.")]
MaxNewTokens = Annotated[
    int | None, typer.Option(help="Cap on new tokens; by default the task's own, or 256.", show_default=False)
]
Rows = Annotated[int, typer.Option(min=1, help="Responses that decode together.")]
Workers = Annotated[int, typer.Option(min=1, help="Processes, each with the models in its memory.")]
RunSeed = Annotated[int, typer.Option(min=0, help="Which random numbers; all settings meet the same ones.")]


def evaluate(
    model: opt.Model = "abacus",
    draft: opt.Draft = None,
    rules: Annotated[
        str,
        typer.Option(
            metavar="RULE,...",
            help='Rules as in `cactus rules`, such as "cactus:0.25,ratio:2"; "verifier" is the verifier alone. '
            "Lossless is always among them.",
        ),
    ] = _RULES,
    tasks: Tasks = None,
    data: Data = None,
    limit: Limit = None,
    samples: Samples = 1,
    out_: Out = Path("evaluation"),
    m: opt.DraftLength = 5,
    temperature: opt.Temperature = 1.0,
    top_k: opt.TopK = 0,
    top_p: opt.TopP = 1.0,
    min_p: opt.MinP = 0.0,
    max_new_tokens: MaxNewTokens = None,
    max_relaxed: opt.MaxRelaxed = None,
    block: opt.Block = False,
    raw: opt.Raw = False,
    audit_every: AuditEvery = 10,
    margin: Margin = 2.0,
    rows: Rows = 32,
    workers: Workers = 1,
    threads: opt.Threads = None,
    seed: RunSeed = 1,
    dtype: opt.Dtype = None,
    device: opt.Device = None,
    as_json: opt.Json = False,
) -> None:
    """Does the speed cost quality? Every rule on the same problems, against the lossless one, with intervals."""
    _require_extra()
    share = _share(margin)
    from cactus_decoding.cli.loading import hush
    from cactus_decoding.evaluation.plan import Setting
    from cactus_decoding.evaluation.running import Run
    from cactus_decoding.rules import split_specs
    from cactus_decoding.sampling import SamplingParams

    sampling = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    specs = split_specs(rules)
    if specs and "lossless" not in specs:
        specs.insert(0, "lossless")
    plan = _plan(
        model, draft, [Setting.of(spec, m, sampling) for spec in specs], tasks, data,
        limit=limit, samples=samples, seed=seed, max_new_tokens=max_new_tokens, block=block, audit_every=audit_every,
        max_relaxed=opt.max_relaxed(max_relaxed), chat=False if raw else None, rows=rows, dtype=dtype, device=device,
    )  # fmt: skip
    hush(model, draft)
    with Run(plan, out_, workers=workers, threads=threads, command=_command()) as run:
        with progress() as bar:
            task = bar.add_task("answering", total=None)
            run.carry_out(run.units(), lambda done, parts: bar.update(task, completed=done, total=parts))
        _report(plan, run, share, as_json, ())


def sweep(
    model: opt.Model = "abacus",
    draft: opt.Draft = None,
    delta: Annotated[str, typer.Option(metavar="X,...", help="Budgets of rule cactus.")] = "0.1,0.25,0.5,1",
    alpha: Annotated[str, typer.Option(metavar="X,...", help='Ratios of rule ratio; "" for none.')] = "1.5,2,3",
    rules: Annotated[str, typer.Option(metavar="RULE,...", help="What else to run.")] = _GRID,
    m: Annotated[str, typer.Option("-m", "--draft-length", metavar="N,...", help="Draft lengths.")] = "5,10",
    temperature: Annotated[str, typer.Option(metavar="T,...", help="Temperatures.")] = "1",
    top_k: opt.TopK = 0,
    top_p: opt.TopP = 1.0,
    min_p: opt.MinP = 0.0,
    tasks: Tasks = None,
    data: Data = None,
    limit: Limit = None,
    samples: Samples = 1,
    out_: Out = Path("sweep"),
    max_new_tokens: MaxNewTokens = None,
    audit_every: AuditEvery = 10,
    margin: Margin = 2.0,
    rows: Rows = 32,
    workers: Workers = 1,
    threads: opt.Threads = None,
    seed: RunSeed = 1,
    dtype: opt.Dtype = None,
    device: opt.Device = None,
    as_json: opt.Json = False,
) -> None:
    """`cactus eval` over a grid of budgets, draft lengths and temperatures; what others beat is stopped early."""
    _require_extra()
    share = _share(margin)
    from cactus_decoding.cli.loading import hush
    from cactus_decoding.evaluation.running import Run
    from cactus_decoding.evaluation.sweep import sweep as carry_out
    from cactus_decoding.rules import split_specs
    from cactus_decoding.sampling import SamplingParams

    specs = [*split_specs(rules), *(f"cactus:{x}" for x in _listed(delta)), *(f"ratio:{x}" for x in _listed(alpha))]
    laws = [
        SamplingParams(temperature=t, top_k=top_k, top_p=top_p, min_p=min_p)
        for t in opt.numbers("temperature", temperature, float)
    ]
    plan = _plan(
        model, draft, _grid(specs, opt.numbers("draft-length", m, int), laws), tasks, data,
        limit=limit, samples=samples, seed=seed, max_new_tokens=max_new_tokens, audit_every=audit_every, rows=rows,
        dtype=dtype, device=device,
    )  # fmt: skip
    hush(model, draft)
    err.print(f"settings are judged behind every {plan.chunk} problems of each task, from {2 * plan.chunk} on")
    with Run(plan, out_, workers=workers, threads=threads, command=_command()) as run:
        with progress() as bar:
            task = bar.add_task("answering", total=None)
            left, stopped = carry_out(
                run,
                lambda done, parts: bar.update(task, completed=done, total=parts),
                lambda one: err.print(
                    f"stopped after {one.problems} problems: {one.setting}; {one.by} is {one.why}", soft_wrap=True
                ),
            )
        _report(left, run, share, as_json, stopped)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _grid(specs: Sequence[str], lengths: Sequence[int], laws: Sequence[SamplingParams]) -> tuple[Setting, ...]:
    """Every rule with every draft length under every law; the verifier alone once per law."""
    from cactus_decoding.evaluation.plan import Setting, with_references

    settings = [Setting.of(spec, m, law) for law in laws for m in lengths for spec in specs]
    return with_references(list(dict.fromkeys(settings)))


def _plan(
    model: str, draft: str | None, settings: Sequence[Setting], tasks: str | None, data: list[str] | None, **rest: Any
) -> Plan:
    from cactus_decoding.errors import InvalidParameter
    from cactus_decoding.evaluation.plan import Plan
    from cactus_decoding.generation.loading import ABACUS

    if tasks is None and model != ABACUS:
        raise InvalidParameter(
            f"there is no task for {model!r}. Name some: --tasks gsm8k, or a file of JSON lines with prompt and answer."
        )
    files: dict[str, str] = {}
    for each in data or ():
        name, equals, path = each.partition("=")
        if not (name and equals and path):
            raise InvalidParameter(f"data is {each!r}, but must be TASK=FILE, such as gsm8k=problems.jsonl.")
        files[name] = path
    names = tuple(_listed(tasks)) if tasks is not None else (ABACUS,)
    return Plan(model, draft, tuple(settings), names, files, **rest)


def _share(margin: float) -> float:
    """Of points; refused before the run and not behind it."""
    from cactus_decoding.errors import InvalidParameter

    if not 0 < margin < 100:  # noqa: PLR2004
        raise InvalidParameter(f"margin is {margin:g} points, but must lie between 0 and 100. The default is 2.")
    return margin / 100


def _require_extra() -> None:
    """Before anything takes its time: what the comparison and the report at the end need."""
    from cactus_decoding.errors import MissingExtra

    try:
        import matplotlib  # noqa: F401
        import scipy  # noqa: F401
    except ImportError as error:
        raise MissingExtra(f'{error.name} is needed: pip install "cactus-decoding[eval]"') from error


def _command() -> str:
    return shlex.join(["cactus", *sys.argv[1:]])


def _report(plan: Plan, run: Any, margin: float, as_json: bool, stopped: Sequence[Any]) -> None:
    from cactus_decoding.evaluation.report import write_report
    from cactus_decoding.evaluation.summary import summarise

    with progress() as bar:
        task = bar.add_task("comparing", total=None)
        summary = summarise(
            plan, run.folder, run.tasks, margin,
            lambda done, parts: bar.update(task, completed=done, total=parts), stopped,
        )  # fmt: skip
    with err.status("writing the report"):
        files = write_report(summary, run.folder)
    if as_json:
        print_json(summary.to_dict())
    else:
        _show(summary)
    for file in files[:3]:
        err.print(str(file), markup=False, soft_wrap=True)


def _show(summary: Summary) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from cactus_decoding.evaluation.report.tables import brief_table

    for task in summary.tasks:
        found = brief_table(task)
        table = Table(box=SIMPLE_HEAD, pad_edge=False, title=found.title)
        table.add_column(found.heads[0], overflow="fold")
        for head in found.heads[1:]:
            table.add_column(head, justify="right", no_wrap=True)
        for row in found.rows:
            table.add_row(*row)
        out.print(table)
        for each in task.rows:
            if each.verdict is not None:
                out.print(f"{each.label}: {each.verdict.text}", markup=False, soft_wrap=True)
