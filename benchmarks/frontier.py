"""Every rule at the same measured divergence, on real pairs: who keeps most?

    python -m benchmarks.frontier [--pairs abacus smollm2] [--kl 0.03 0.1] [--positions 2000] [--threads 2]

abacus: the pair that ships with the package, on word problems. smollm2: SmolLM2-135M-Instruct with itself without its
last two of thirty layers as the drafter, on chats and on texts to summarise, edit and extract from. Each pair at
temperature 1 without filters, and at .6 with top-k 20 and top-p .95. Positions are recorded once per case; every rule
is set on them so that the mean KL of its emitted law is the one asked for. Leads over Cactus are paired by position,
with prompts as the independent units.

Takes half an hour. Prints tables, then one JSON document as the last line.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

import cactus_decoding as cactus
from benchmarks.prompts import REPEATING
from benchmarks.racing import finish, show
from cactus_decoding.calibration import Calibration, Target, calibrate, record
from cactus_decoding.cli.console import progress
from cactus_decoding.embedded.problems import make_problems
from cactus_decoding.rules import parse_rule, spec_of
from cactus_decoding.sampling import SamplingParams
from tests.real import smollm2

PAIRS = ("abacus", "smollm2")
SAMPLINGS = {
    "temperature 1": SamplingParams(),
    "temperature .6, top-k 20, top-p .95": SamplingParams(temperature=0.6, top_k=20, top_p=0.95),
}
RULES = (
    "cactus", "cactus:solver=exact", "cactus:max_ratio=2", "cactus:max_ratio=4", "cactus:max_ratio=8", "ratio",
    "ratio:recovery=shift", "frontier", "mentored:divergence=kl", "mentored", "ears", "interpolation", "fuzzy",
    "cascade:deferral=opt", "cascade:deferral=token-v3", "typical", "top-k",
)  # fmt: skip
SIGMAS = 1.96


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Every rule at the same measured divergence.")
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument("--kl", type=float, nargs="+", default=[0.03, 0.1])
    parser.add_argument("--positions", type=int, default=2000)
    parser.add_argument("--m", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=17, help="of the random numbers")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    made = {name: measured(name, args) for name in args.pairs}
    finish({"found": made, **vars(args)})


def measured(name: str, args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Calibrations of one pair, by sampling."""
    pair, prompts = loaded(name)
    found: dict[str, dict[str, Any]] = {}
    for way, sampling in SAMPLINGS.items():
        with progress() as bar:
            task = bar.add_task(f"{name}, {way}: scoring prompts", total=args.positions)
            options = {"count": args.positions, "m": args.m, "max_new_tokens": args.new_tokens, "seed": args.seed}
            positions = record(
                pair, prompts, sampling, **options, watch=lambda done, b=bar, t=task: b.update(t, completed=done)
            )
        found[way] = {"bytes": positions.bytes, "merged": positions.merged, "calibrations": []}
        for kl in args.kl:
            began = time.perf_counter()
            calibration = calibrate(positions, [parse_rule(spec) for spec in RULES], Target("kl", kl))
            tabulate(f"{name}, {way}, mean KL {kl:g}", calibration)
            seconds = time.perf_counter() - began
            found[way]["calibrations"].append({**without_ranges(calibration), "seconds": seconds})
    return found


def loaded(name: str) -> tuple[cactus.Pair, list[str]]:
    if name == "abacus":
        return cactus.load_pair("abacus"), [problem.question for problem in make_problems(100, seed=9)]
    pair = cactus.load_pair(str(smollm2.folder()), "prompt-lookup", dtype="float32")
    module = pair.verifier.module
    short = smollm2.without_last_layers(module, module.config.num_hidden_layers - 2)
    return cactus.load_pair(module, short, tokenizer=pair.tokenizer), [*smollm2.CHATS, *REPEATING.values()]


def without_ranges(calibration: Calibration) -> dict[str, Any]:
    document = calibration.to_dict()
    for setting in document["settings"]:
        del setting["coarse"]
    return document


def tabulate(title: str, calibration: Calibration) -> None:
    rows = []
    for setting in sorted(calibration.settings, key=lambda s: -s.point.acceptance if s.reached else 1.0):
        point = setting.point
        numbers = (f"{point.kl:.4f}", f"{setting.kl_tail:.2f}", f"{point.acceptance:.4f}")
        lead = f"{setting.lead:+.4f} ± {SIGMAS * setting.lead_error:.4f}"
        rows.append([spec_of(point.rule) + ("" if setting.reached else " (nearest)"), *numbers, lead])
    caption = f"lossless keeps {calibration.lossless_acceptance:.4f}; {calibration.prompts} prompts"
    show(title, caption, ["KL", "99%", "kept", "lead over Cactus"], rows)


if __name__ == "__main__":
    main()
