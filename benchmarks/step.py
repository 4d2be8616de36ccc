"""The engine against transformers' own assisted generation: same pair, prompts, draft length, dtype, one run.

    python benchmarks/step.py [--rounds 7] [--problems 12] [--m 5] [--temperature 0.7] [--threads 1]

The contestants take turns problem by problem, in an order that rotates, so that a busy moment of the machine
slows them alike. A figure is the median over rounds of one round's tokens per second, a ratio the median over
rounds of the ratio within a round. Prints a table, then one JSON document as the last line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from statistics import median

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import cactus_decoding as cactus
from cactus_decoding.cli.console import progress
from cactus_decoding.embedded.problems import DEMO_SEED, make_problems
from cactus_decoding.generation.statistics import total

NEW_TOKENS = 128
BASELINE = "transformers assisted"
OURS = "ours, lossless"

Contestant = Callable[[str, int], int]  # (question, seed) -> emitted tokens


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The engine against transformers' own assisted generation.")
    parser.add_argument("--model", default="abacus")
    parser.add_argument("--draft", default=None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--problems", type=int, default=12)
    parser.add_argument("--m", type=int, default=5)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--delta", type=float, default=0.5, help="of the Cactus contestant")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=17, help="of the random numbers")
    return parser.parse_args()


def our_contestant(pair: cactus.Pair, stats: list, options: dict) -> Contestant:
    def run(question: str, seed: int) -> int:
        output = pair.generate(question, seed=seed, max_new_tokens=NEW_TOKENS, **options)
        stats.append(output.stats)
        return len(output.ids)

    return run


def their_contestant(pair: cactus.Pair, args: argparse.Namespace, assisted: bool) -> Contestant:
    verifier, drafter = pair.verifier.module, pair.drafter.model.module
    drafter.generation_config.num_assistant_tokens = args.m
    drafter.generation_config.num_assistant_tokens_schedule = "constant"
    drafter.generation_config.assistant_confidence_threshold = 0.0  # draft exactly m tokens, as we do
    extra = {"assistant_model": drafter} if assisted else {}

    def run(question: str, seed: int) -> int:
        ids = pair.tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=False
        )
        torch.manual_seed(seed)
        found = verifier.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=args.temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=NEW_TOKENS,
            **extra,
        )
        return found.shape[1] - ids.shape[1]

    return run


def race(contestants: dict[str, Contestant], questions: list[str], rounds: int, seed: int) -> dict[str, list[float]]:
    """Tokens per second of each contestant in each round; a round before the first is not counted."""
    names = list(contestants)
    speeds: dict[str, list[float]] = {name: [] for name in names}
    with progress() as bar:
        step = bar.add_task("racing", total=(rounds + 1) * len(questions))
        for turn in range(rounds + 1):
            tokens, seconds = dict.fromkeys(names, 0), dict.fromkeys(names, 0.0)
            for number, question in enumerate(questions):
                shift = (turn + number) % len(names)
                for name in names[shift:] + names[:shift]:
                    began = time.perf_counter()
                    tokens[name] += contestants[name](question, seed + turn * 1000 + number)
                    seconds[name] += time.perf_counter() - began
                bar.advance(step)
            if turn:
                for name in names:
                    speeds[name].append(tokens[name] / seconds[name])
    return speeds


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    pair = cactus.load_pair(args.model, args.draft, dtype="float32")
    common = {"m": args.m, "temperature": args.temperature}
    stats: dict[str, list] = {"ours, verifier alone": [], OURS: [], f"ours, cactus {args.delta:g}": []}
    options = [
        {**common, "speculate": False},
        {**common, "rule": cactus.Lossless()},
        {**common, "rule": cactus.Cactus(args.delta)},
    ]
    contestants = {
        "transformers, alone": their_contestant(pair, args, assisted=False),
        BASELINE: their_contestant(pair, args, assisted=True),
    }
    contestants |= {name: our_contestant(pair, kept, option) for (name, kept), option in zip(stats.items(), options)}
    questions = [problem.question for problem in make_problems(args.problems, DEMO_SEED)]
    speeds = race(contestants, questions, args.rounds, args.seed)
    figures = {name: summary(name, speeds, stats) for name in speeds}
    print_table(figures, args)
    print(json.dumps({"figures": figures, **vars(args), **environment()}))


def summary(name: str, speeds: dict[str, list[float]], stats: dict[str, list]) -> dict[str, float | None]:
    ratios = [mine / theirs for mine, theirs in zip(speeds[name], speeds[BASELINE])]
    ours = total(stats[name]) if name in stats else None
    inside = ours.verifier_seconds + ours.drafter_seconds if ours else None
    return {
        "tokens_per_second": median(speeds[name]),
        "slowest_round": min(speeds[name]),
        "fastest_round": max(speeds[name]),
        "ratio_to_assisted": median(ratios),
        "ratio_lowest": min(ratios),
        "ratio_highest": max(ratios),
        "tokens_per_call": ours.tokens_per_call if ours else None,
        "share_outside_the_models": 1 - inside / ours.seconds if ours else None,
    }


def print_table(figures: dict[str, dict], args: argparse.Namespace) -> None:
    table = Table(
        box=SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
        title=f"m = {args.m}, T = {args.temperature}, float32, {args.threads} thread(s), {args.rounds} rounds",
        caption="median of rounds (lowest to highest); outside: share of the time outside the forwards",
    )
    table.add_column("", no_wrap=True)
    for heading in ("tokens/s", "x assisted", "per call", "outside"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, row in figures.items():
        table.add_row(
            name,
            f"{row['tokens_per_second']:.0f} ({row['slowest_round']:.0f} - {row['fastest_round']:.0f})",
            f"{row['ratio_to_assisted']:.2f} ({row['ratio_lowest']:.2f} - {row['ratio_highest']:.2f})",
            "-" if row["tokens_per_call"] is None else f"{row['tokens_per_call']:.2f}",
            "-" if row["share_outside_the_models"] is None else f"{row['share_outside_the_models']:.1%}",
        )
    Console().print(table)


def environment() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "command": " ".join(sys.argv),
    }


if __name__ == "__main__":
    main()
