"""Does the speed cost quality? Every rule on the same problems, with settings that accept alike beside each other.

    python -m benchmarks.quality [--cases t1-m10 t1-m20 t06-m10 t06-m20 smollm2-lookup smollm2-skip] [--workers 2]

t1, t06: 2,000 word problems for the Abacus pair, at temperature 1 without filters and at the .6, top-p .95, top-k 20 of
the paper, with draft lengths 10 and 20. Cactus at five budgets; exact and capped Cactus, bounded ratio, mentored
decoding, interpolation and typical acceptance at the acceptance of Cactus(0.25), and with m = 10 also at that of
Cactus(1), measured on other problems than those asked here.
smollm2: SmolLM2-135M-Instruct on 160 easy questions (`benchmarks.easy`), with prompt lookup and with its own first 28
of 30 layers as the drafter, at the paper's sampling.

Takes two hours. Interrupted, it goes on where it stopped: the responses stay in --folder, with the reports; these are
copied, but for the HTML, to docs/results/quality/.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

import cactus_decoding as cactus
from benchmarks.easy import problems
from cactus_decoding.calibration import Target, calibrate, record
from cactus_decoding.cli.console import progress
from cactus_decoding.embedded.problems import DEMO_SEED, make_problems
from cactus_decoding.evaluation.plan import VERIFIER, Plan, Setting
from cactus_decoding.evaluation.report import write_report
from cactus_decoding.evaluation.running import Run
from cactus_decoding.evaluation.summary import summarise
from cactus_decoding.generation.loading import ABACUS, PROMPT_LOOKUP
from cactus_decoding.rules import parse_rule, spec_of
from cactus_decoding.sampling import SamplingParams
from tests.real import smollm2

LOW, HIGH = "cactus:0.25", "cactus:1"


@dataclass(frozen=True)
class Case:
    """A pair under one law with one draft length."""

    sampling: SamplingParams
    m: int
    draft: str | int | None = None
    """Of SmolLM2, or how many of its own layers; None is the Abacus pair."""
    matched: tuple[str, ...] = ()
    """Rules whose acceptance the others are set to."""


UNFILTERED, PAPER = SamplingParams(), SamplingParams(temperature=0.6, top_p=0.95, top_k=20)
CASES = {
    "t1-m10": Case(UNFILTERED, 10, matched=(LOW, HIGH)),
    "t1-m20": Case(UNFILTERED, 20, matched=(LOW,)),
    "t06-m10": Case(PAPER, 10, matched=(LOW, HIGH)),
    "t06-m20": Case(PAPER, 20, matched=(LOW,)),
    "smollm2-lookup": Case(PAPER, 4, PROMPT_LOOKUP),
    "smollm2-skip": Case(PAPER, 4, 28),
}
STATED = (
    VERIFIER, "lossless", "cactus:0.1", "cactus:0.25", "cactus:0.5", "cactus:0.75", "cactus:1", "typical", "top-k",
    "interpolation",
)  # fmt: skip
MATCHED = ("cactus:solver=exact", "cactus:max_ratio=4", "ratio", "mentored:divergence=kl", "interpolation", "typical")
FEWER = (VERIFIER, "lossless", "cactus:0.25", "cactus:1", "cactus:0.25,max_ratio=4", "ratio:3", "typical")
"""For SmolLM2, which takes its time."""
SMALL_LIMIT, NEW_TOKENS, SMALL_ROWS = 160, 48, 16
RESULTS = Path("docs/results/quality")
DIGITS = 4  # of a matched setting: it is measured on a sample anyway


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Does the speed cost quality?")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--limit", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--positions", type=int, default=3000, help="that settings are matched on")
    parser.add_argument("--folder", type=Path, default=Path("quality"))
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    for name in args.cases:
        case = CASES[name]
        found = matched(case.sampling, args) if case.matched else {}
        specs = [*STATED, *(spec for rule in case.matched for spec in found[rule])]
        evaluate(name, plan_of(case, FEWER if case.draft else specs, args), args)


def plan_of(case: Case, specs: Sequence[str], args: argparse.Namespace) -> Plan:
    settings = tuple(dict.fromkeys(Setting.of(spec, case.m, case.sampling) for spec in specs))
    if case.draft is None:
        return Plan(ABACUS, None, settings, (ABACUS,), limit=args.limit)
    task = args.folder / "easy.jsonl"
    task.parent.mkdir(parents=True, exist_ok=True)
    task.write_text("".join(json.dumps(problem) + "\n" for problem in problems(SMALL_LIMIT, 1)))
    layers = isinstance(case.draft, int)
    draft = linked(smollm2.shortened(case.draft), args.folder) if layers else case.draft
    return Plan(
        linked(smollm2.folder(), args.folder), draft, settings, (str(task),), limit=min(args.limit, SMALL_LIMIT),
        max_new_tokens=NEW_TOKENS, rows=SMALL_ROWS, dtype="float32", audit_every=4,
    )  # fmt: skip


def linked(model: Path, folder: Path) -> str:
    """A model by a name within the folder, so that no result holds a path of somebody's machine."""
    link = folder / model.name
    if not link.is_symlink():
        link.symlink_to(model)
    return str(link)


def evaluate(name: str, plan: Plan, args: argparse.Namespace) -> None:
    """Run a plan, or what is missing of it, and write its report."""
    command = shlex.join(["python", "-m", "benchmarks.quality", *sys.argv[1:]])
    with Run(plan, args.folder / name, workers=args.workers, threads=1, command=command) as run:
        with progress() as bar:
            task = bar.add_task(name, total=None)
            run.carry_out(run.units(), lambda done, parts: bar.update(task, completed=done, total=parts))
        files = write_report(summarise(plan, run.folder, run.tasks), args.folder, name)
    for file in files:
        print(file, flush=True)
        if file.suffix != ".html":
            shutil.copy(file, RESULTS)


def matched(sampling: SamplingParams, args: argparse.Namespace) -> dict[str, list[str]]:
    """The rules of `MATCHED`, set so that they accept as much as `LOW` and as `HIGH`; found once, then kept."""
    kept = args.folder / f"matched-t{sampling.temperature:g}.json"
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    prompts = [problem.question for problem in make_problems(300, DEMO_SEED)]
    positions = record(cactus.load_pair(ABACUS), prompts, sampling, count=args.positions, m=10, rows=32)
    found: dict[str, list[str]] = {}
    for rule in (LOW, HIGH):
        target = Target("acceptance", float(positions.measure(parse_rule(rule), ("acceptance",)).mean()))
        for setting in calibrate(positions, [parse_rule(other) for other in MATCHED], target).settings:
            spec = rounded(spec_of(setting.point.rule))
            found.setdefault(rule, []).append(spec)
            print(f"{spec:<48} accepts {setting.point.acceptance:.4f}, {rule} {target.value:.4f}", flush=True)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(found, indent=1))
    return found


def rounded(spec: str) -> str:
    """With settings of a few digits, so that they can be read and asked for again."""
    name, _, written = spec.partition(":")
    parts = [part.partition("=") for part in written.split(",")]
    return f"{name}:" + ",".join(f"{key}={_short(value)}" for key, _, value in parts)


def _short(value: str) -> str:
    try:
        return f"{float(value):.{DIGITS}g}"
    except ValueError:
        return value


if __name__ == "__main__":
    main()
