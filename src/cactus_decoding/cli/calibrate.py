"""``cactus calibrate``: which setting of each rule strays as far as asked for, on these prompts?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cactus_decoding.cli import options as opt
from cactus_decoding.cli.console import err, figure, out, print_json, progress
from cactus_decoding.cli.prompts import prompts_for

if TYPE_CHECKING:
    from cactus_decoding.calibration import Calibration, Positions, Target
    from cactus_decoding.generation.drafting import StepCosts
    from cactus_decoding.generation.pair import Pair
    from cactus_decoding.rules import Rule
    from cactus_decoding.sampling import SamplingParams

_PROBLEMS = 100  # of Abacus's own, where no prompt is given
_DEFAULT_KL = 0.05
_RULES = ("cactus", "ratio", "mentored:divergence=kl", "frontier", "interpolation")
_TWO_SIGMA = 1.96
_DRAWN = 500  # positions that a picture is measured on

LEGEND = """\
kl        of the emitted law from the verifier's: mean over examined tokens
tail      99th percentile of that KL over positions
accepted  share of examined drafts that are kept; 95% intervals over prompts
lead      of that share over the first rule's, likewise
tokens    per verifier call with m={m}, were every place kept with that chance
speed     predicted over the verifier alone, with the best m; --json says which"""


def calibrate(
    model: Annotated[str, typer.Argument(help="Verifier, as --model of the other commands.")] = "abacus",
    draft: opt.Draft = None,
    kl: Annotated[
        float | None,
        typer.Option(help=f"Mean KL from the verifier, in nats.  [default: {_DEFAULT_KL}]", show_default=False),
    ] = None,
    tv: Annotated[float | None, typer.Option(help="Or: mean total variation.", show_default=False)] = None,
    accept: Annotated[float | None, typer.Option(help="Or: mean acceptance.", show_default=False)] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:SETTING=VALUE,...]",
            help="A rule to set; may be repeated. By default " + ", ".join(_RULES) + ".",
            show_default=False,
        ),
    ] = None,
    prompt: opt.Prompt = None,
    prompts: opt.Prompts = None,
    positions: Annotated[int, typer.Option(min=1, help="How many examined tokens to measure on.")] = 2000,
    m: opt.DraftLength = 5,
    temperature: opt.Temperature = 1.0,
    top_k: opt.TopK = 0,
    top_p: opt.TopP = 1.0,
    min_p: opt.MinP = 0.0,
    max_new_tokens: opt.MaxNewTokens = None,
    rows: Annotated[int, typer.Option(min=1, help="Responses that decode together.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Which random numbers.")] = 1,
    dtype: opt.Dtype = None,
    device: opt.Device = None,
    threads: opt.Threads = None,
    picture: Annotated[
        Path | None,
        typer.Option(help="Draw every rule's acceptance against its KL here, as PNG and SVG.", show_default=False),
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Set every rule to the same measured divergence (or acceptance) on your prompts, and compare them there."""
    from cactus_decoding.calibration import calibrate as search
    from cactus_decoding.cli.loading import load
    from cactus_decoding.rules import parse_rule
    from cactus_decoding.rules.dials import dial_of
    from cactus_decoding.sampling import SamplingParams
    from cactus_decoding.verify import require_fitting

    target = _target(kl, tv, accept)
    if picture is not None:
        from cactus_decoding.pictures.canvas import require_matplotlib

        require_matplotlib()  # before anything takes its time
    rules = [parse_rule(spec) for spec in rule or _RULES]
    for each in rules:
        dial_of(each)  # refuses what cannot be set, before anything takes its time
    sampling = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    texts = prompts_for(model, prompt, prompts, _PROBLEMS)
    pair = load(model, draft, dtype, device, threads)
    for each in rules:
        require_fitting(each, pair.drafter.certain)
    found = _record(pair, texts, sampling, positions, m, max_new_tokens, rows, seed)
    with progress() as bar:
        task = bar.add_task("setting rules", total=None)
        calibration = search(
            found,
            rules,
            target,
            lambda what, done, parts: bar.update(task, description=what, completed=done, total=parts),
        )
        bar.update(task, description="timing steps", total=None)
        costs = pair.step_costs(1)
    if picture is not None:
        _draw(found, rules, model, picture)
    if as_json:
        print_json(_document(calibration, found, costs, m))
    else:
        _show(calibration, costs, m)


def _target(kl: float | None, tv: float | None, accept: float | None) -> Target:
    from cactus_decoding.calibration import Target

    given = [(name, value) for name, value in (("kl", kl), ("tv", tv), ("acceptance", accept)) if value is not None]
    if len(given) > 1:
        raise typer.BadParameter("--kl, --tv and --accept each say what every rule is set to; give one of them")
    name, value = given[0] if given else ("kl", _DEFAULT_KL)
    return Target(name, value)  # type: ignore[arg-type]


def _record(
    pair: Pair,
    texts: list[str],
    sampling: SamplingParams,
    count: int,
    m: int,
    max_new_tokens: int | None,
    rows: int,
    seed: int,
) -> Positions:
    from cactus_decoding.calibration import record

    with progress() as bar:
        task = bar.add_task("scoring prompts", total=count)
        return record(
            pair,
            texts,
            sampling,
            count=count,
            m=m,
            max_new_tokens=max_new_tokens,
            rows=rows,
            seed=seed,
            watch=lambda found: bar.update(task, completed=found),
        )


def _document(calibration: Calibration, positions: Positions, costs: StepCosts, m: int) -> dict[str, object]:
    document = calibration.to_dict()
    for setting, entry in zip(calibration.settings, document["settings"]):
        best, speed = setting.speed(costs)
        entry |= {"tokens_per_call": setting.tokens_per_call(m), "best_m": best, "predicted_speed": speed}
    return {**document, "m": m, "bytes": positions.bytes, "merged": positions.merged}


def _draw(positions: Positions, rules: list[Rule], model: str, path: Path) -> None:
    from cactus_decoding.pictures import Tradeoff, canvas, draw_frontier, line_of
    from cactus_decoding.pictures.frontier import Point

    every = max(1, len(positions) // _DRAWN)
    lines: dict[str, list[Point]] = {}
    with progress() as bar:
        for rule in bar.track(rules, description="measuring rules"):
            line = line_of(rule)
            figures = [positions.measure(turned, ("kl", "acceptance"), every).mean(0) for _, turned in line.rules]
            values = (value for value, _ in line.rules)
            lines[line.label] = [Point(value, *mean.tolist()) for value, mean in zip(values, figures)]
    lossless = float(positions.measure(rules[0], ("lossless_acceptance",), every).mean())
    tradeoff = Tradeoff(lines, lossless, len(range(0, len(positions), every)), f"of {model}")
    for file in canvas.save(draw_frontier(tradeoff), path.with_suffix("") if path.suffix in (".png", ".svg") else path):
        err.print(str(file), markup=False, soft_wrap=True)


def _show(calibration: Calibration, costs: StepCosts, m: int) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from cactus_decoding.rules import spec_of

    target = calibration.target
    table = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        title=f"every rule at a mean {target.figure} of {target.value:g}\n{calibration.positions} examined tokens, "
        f"{calibration.prompts} prompts; lossless keeps {calibration.lossless_acceptance:.3f}",
    )
    table.add_column("rule", overflow="fold", min_width=20)
    for name in ("kl", "tail", "accepted", "lead", "tokens", "speed"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, setting in enumerate(calibration.settings):
        point, (_, speed) = setting.point, setting.speed(costs)
        table.add_row(
            _shortened(point.rule, spec_of(point.rule)) + ("" if setting.reached else " (nearest)"),
            _bare(figure(point.kl, 4)),
            figure(setting.kl_tail, 2),
            f"{_bare(figure(point.acceptance, 3))} ±{_bare(figure(_TWO_SIGMA * setting.error, 3))}",
            "-" if number == 0 else _bare(f"{setting.lead:+.3f} ±{figure(_TWO_SIGMA * setting.lead_error, 3)}"),
            figure(setting.tokens_per_call(m)),
            f"{figure(speed)}x",
        )
    out.print(table)
    out.print(LEGEND.format(m=m), markup=False)
    if any(not setting.reached for setting in calibration.settings):
        out.print("(nearest): no setting of this rule was found within 1% of the target.")


def _bare(numbers: str) -> str:
    """Without the zeros before decimal points."""
    return re.sub(r"\b0\.", ".", numbers)


def _shortened(rule: Rule, spec: str) -> str:
    """Settings to four digits, for reading; --json has them all."""
    for name in rule.__dataclass_fields__:  # type: ignore[attr-defined]
        value = getattr(rule, name)
        if isinstance(value, float):
            spec = spec.replace(f"{name}={value}", f"{name}={value:.4g}")
    return spec
