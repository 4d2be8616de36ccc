"""Does the speed cost quality? Every rule on 2,000 word problems, at settings that accept alike.

    python -m benchmarks.quality [--cases t1-m10 t1-m20 t06-m10 t06-m20] [--limit 2000] [--workers 2]

The Abacus pair, at temperature 1 without filters and at the .6, top-p .95, top-k 20 of the paper, with draft lengths
10 and 20. Cactus at five budgets, and the other rules twice: at the acceptance of Cactus(0.25) and of Cactus(1),
measured on other problems than those asked here. Interrupted, it goes on where it stopped. Writes the reports to
docs/results/quality/; the responses stay in --folder.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

import cactus_decoding as cactus
from cactus_decoding.calibration import Target, calibrate, record
from cactus_decoding.cli.console import progress
from cactus_decoding.embedded.problems import DEMO_SEED, make_problems
from cactus_decoding.evaluation.plan import VERIFIER, Plan, Setting
from cactus_decoding.evaluation.report import write_report
from cactus_decoding.evaluation.running import Run
from cactus_decoding.evaluation.summary import summarise
from cactus_decoding.rules import parse_rule, spec_of
from cactus_decoding.sampling import SamplingParams

PAPER = SamplingParams(temperature=0.6, top_p=0.95, top_k=20)
CASES = {
    "t1-m10": (SamplingParams(), 10), "t1-m20": (SamplingParams(), 20), "t06-m10": (PAPER, 10), "t06-m20": (PAPER, 20),
}  # fmt: skip
STATED = (
    VERIFIER, "lossless", "cactus:0.1", "cactus:0.25", "cactus:0.5", "cactus:0.75", "cactus:1", "typical", "top-k",
    "interpolation",
)  # fmt: skip
MATCHED = ("cactus:solver=exact", "cactus:max_ratio=4", "ratio", "mentored:divergence=kl", "interpolation", "typical")
TO = ("cactus:0.25", "cactus:1")
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
    rules = {law: matched(law, args.positions) for law in dict.fromkeys(CASES[case][0] for case in args.cases)}
    for case in args.cases:
        sampling, m = CASES[case]
        settings = dict.fromkeys(Setting.of(rule, m, sampling) for rule in [*STATED, *rules[sampling]])
        evaluate(case, Plan("abacus", None, tuple(settings), ("abacus",), limit=args.limit), args)


def evaluate(case: str, plan: Plan, args: argparse.Namespace) -> None:
    """Run a plan, or what is missing of it, and write its report."""
    command = shlex.join(["python", "-m", "benchmarks.quality", *sys.argv[1:]])
    with Run(plan, args.folder / case, workers=args.workers, threads=1, command=command) as run:
        with progress() as bar:
            task = bar.add_task(case, total=None)
            run.carry_out(run.units(), lambda done, parts: bar.update(task, completed=done, total=parts))
        for file in write_report(summarise(plan, run.folder, run.tasks), RESULTS, case):
            print(file, flush=True)


def matched(sampling: SamplingParams, count: int) -> list[str]:
    """The rules of `MATCHED`, set so that they accept as much as those of `TO`."""
    prompts = [problem.question for problem in make_problems(300, DEMO_SEED)]
    positions = record(cactus.load_pair("abacus"), prompts, sampling, count=count, m=10, rows=32)
    found = []
    for rule in TO:
        target = Target("acceptance", float(positions.measure(parse_rule(rule), ("acceptance",)).mean()))
        for setting in calibrate(positions, [parse_rule(other) for other in MATCHED], target).settings:
            found.append(rounded(spec_of(setting.point.rule)))
            print(f"{found[-1]:<48} accepts {setting.point.acceptance:.4f}, {rule} {target.value:.4f}", flush=True)
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
