"""A real model, SmolLM2-135M-Instruct, with prompt lookup, against its own plain decoding.

    python -m benchmarks.real [--parts overhead speed] [--rounds 3] [--prompts 12] [--m 5] [--delta 0.25]
        [--new-tokens 64] [--threads 1]

overhead: what a step costs outside the forwards, in float32 and bfloat16, for one response and for eight together.
speed: tokens per second on texts that repeat their prompt (`prompts.py`; all of them count), at temperature 0.7 and
greedy, with a fixed and an adaptive draft length, lossless and with a budget. At temperature 0 a budget does nothing.

The model is fetched once: see `tests.real.smollm2`. Prints tables, then one JSON document as the last line.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

import cactus_decoding as cactus
from benchmarks.prompts import REPEATING
from benchmarks.racing import Contestant, finish, race, ratios, show, spread, told
from cactus_decoding.cli.console import progress
from cactus_decoding.generation.statistics import Statistics, total
from tests.real import smollm2

PARTS = ("overhead", "speed")
TEMPERATURES = (0.7, 0.0)
ALONE = "verifier alone"
BATCHES = (1, 8)
SHORT = 24  # new tokens of an overhead run: bfloat16 is slow where a processor has no arithmetic for it


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="SmolLM2-135M-Instruct with prompt lookup.")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=len(REPEATING), help="how many of them, from the first")
    parser.add_argument("--m", type=int, default=5)
    parser.add_argument("--delta", type=float, default=0.25)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=17, help="of the random numbers")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    made = {part: {"overhead": overhead, "speed": speed}[part](args) for part in args.parts}
    finish({**made, "model": smollm2.PACKAGE, **vars(args)})


def load(dtype: str) -> cactus.Pair:
    return cactus.load_pair(str(smollm2.folder()), "prompt-lookup", dtype=dtype)


def overhead(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Milliseconds per step outside the forwards, and their share of the whole, by dtype and batch."""
    pairs = {dtype: load(dtype) for dtype in ("float32", "bfloat16")}
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    cases = [(dtype, rows) for rows in BATCHES for dtype in pairs]
    with progress() as bar:
        step = bar.add_task("overhead", total=len(cases) * (args.rounds + 1))
        for turn in range(args.rounds + 1):  # the round before the first warms up
            for dtype, rows in cases:
                figures = steps_of(pairs[dtype], rows, args, args.seed + turn * 1000)
                for name, value in figures.items() if turn else ():
                    found[f"{dtype}, batch {rows}"][name].append(value)
                bar.advance(step)
    spreads = {case: {name: spread(values) for name, values in figures.items()} for case, figures in found.items()}
    show(
        f"one step, prompt lookup, m = {args.m}, T = 0.7, {args.threads} thread(s), {args.rounds} rounds",
        "median of rounds (lowest - highest); outside: all that is not a forward, lookup and text included",
        ("ms a step", "ms outside", "share outside"),
        [
            (case, *(told(figure, 3 if name == "share" else 1) for name, figure in row.items()))
            for case, row in spreads.items()
        ],
    )
    return spreads


def steps_of(pair: cactus.Pair, rows: int, args: argparse.Namespace, seed: int) -> dict[str, float]:
    """A run of ``rows`` responses that begin together and do not end before the cap.

    Their prompts are short, so that steps make the time, and repeat themselves, so that there is something to draft.
    """
    prompts = [pair.tokenizer.encode(prompt)[:12] * 2 for prompt in list(REPEATING.values())[:rows]]
    options = {"m": args.m, "temperature": 0.7, "ignore_eos": True, "max_new_tokens": SHORT}
    began = time.perf_counter()
    outputs = pair.generate(prompts, rows=rows, seed=seed, **options)
    seconds = time.perf_counter() - began
    outside = seconds - total(output.stats for output in outputs).verifier_seconds
    steps = max(output.stats.verifier_calls for output in outputs)
    return {"step": 1000 * seconds / steps, "outside": 1000 * outside / steps, "share": outside / seconds}


class Recorded:
    """A way to decode, as a contestant that remembers what it did."""

    def __init__(self, pair: cactus.Pair, options: dict[str, Any]) -> None:
        self._pair = pair
        self._options = options
        self.stats: list[Statistics] = []
        self.speeds: dict[str, list[float]] = defaultdict(list)

    def __call__(self, task: str, seed: int) -> tuple[int, float]:
        began = time.perf_counter()
        output = self._pair.generate(REPEATING[task], seed=seed, **self._options)
        seconds = time.perf_counter() - began
        self.stats.append(output.stats)
        self.speeds[task].append(len(output.ids) / seconds)
        return len(output.ids), seconds


def speed(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """By temperature and way: tokens per second and times plain decoding, over all and for each prompt."""
    pair = load("float32")
    pair.step_costs(1)  # for "auto", which would otherwise measure them inside the race
    tasks = list(REPEATING)[: args.prompts]
    found: dict[str, dict[str, Any]] = {}
    for temperature in TEMPERATURES:
        ways = contestants(pair, args, temperature)
        speeds = race(dict[str, Contestant](ways), tasks, args.rounds, args.seed)
        figures = {
            name: {
                "tokens_per_second": spread(speeds[name]),
                "times_alone": ratios(speeds, name, ALONE),
                "tokens_per_call": total(way.stats).tokens_per_call,
                "by_prompt": {task: by_prompt(way, ways[ALONE], task) for task in tasks},
            }
            for name, way in ways.items()
        }
        found[f"T = {temperature:g}"] = figures
        report(figures, tasks, f"T = {temperature:g}, float32, {args.threads} thread(s), {args.rounds} rounds")
    return found


def contestants(pair: cactus.Pair, args: argparse.Namespace, temperature: float) -> dict[str, Recorded]:
    ways: dict[str, dict[str, Any]] = {ALONE: {"m": 0}}
    rules = [cactus.Lossless(), *([cactus.Cactus(args.delta)] if temperature else [])]
    for rule in rules:
        name = "lossless" if rule.lossless else f"cactus {args.delta:g}"
        ways |= {f"{name}, m = {m}": {"m": m, "rule": rule} for m in (args.m, "auto")}
    common = {"temperature": temperature, "max_new_tokens": args.new_tokens}
    return {name: Recorded(pair, {**common, **options}) for name, options in ways.items()}


def by_prompt(way: Recorded, alone: Recorded, task: str) -> dict[str, Any]:
    """Of one prompt; the first run of each was the round that is not counted."""
    mine, theirs = way.speeds[task][1:], alone.speeds[task][1:]
    return {"tokens_per_second": spread(mine), "times_alone": spread(a / b for a, b in zip(mine, theirs))}


def report(figures: dict[str, Any], tasks: list[str], title: str) -> None:
    show(
        title,
        "all prompts; median of rounds (lowest - highest)",
        ("tokens/s", "x alone", "per call"),
        [
            (name, told(row["tokens_per_second"], 1), told(row["times_alone"]), f"{row['tokens_per_call']:.2f}")
            for name, row in figures.items()
        ],
    )
    ways = [name for name in figures if name != ALONE]
    cells = {task: [figures[name]["by_prompt"][task]["times_alone"]["median"] for name in ways] for task in tasks}
    show(
        f"{title}: times the verifier alone",
        "median of rounds",
        ways,
        [(task, *(f"{ratio:.2f}" for ratio in row)) for task, row in cells.items()],
    )


if __name__ == "__main__":
    main()
