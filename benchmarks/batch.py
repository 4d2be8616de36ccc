"""Batches: eight prompts together against eight single runs, and against other libraries' batches, in one run.

    python -m benchmarks.batch [--rounds 7] [--rows 8] [--groups 3] [--m 5] [--temperature 0.7] [--threads 1]
        [--peer economize=ENV/bin/python]

A task is one group of prompts of different lengths. Prints a table, then one JSON document as the last line.
"""

from __future__ import annotations

import argparse
import os
import time

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

import cactus_decoding as cactus
from benchmarks.racing import Contestant, finish, race, ratios, show, spread, told
from benchmarks.step import NEW_TOKENS, prompts
from benchmarks.workers import Worker


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Batches against single runs.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--groups", type=int, default=3)
    parser.add_argument("--m", type=int, default=5)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=17, help="of the random numbers")
    parser.add_argument("--peer", action="append", default=[], help="NAME=PYTHON, see peer.py; may be repeated")
    return parser.parse_args()


def together(pair: cactus.Pair, options: dict, rows: int) -> Contestant:
    """``rows`` at a time: all of a group, or one after the other."""

    def run(group: list[list[int]], seed: int) -> tuple[int, float]:
        began = time.perf_counter()
        outputs = pair.generate(group, rows=rows, seed=seed * 1000, max_new_tokens=NEW_TOKENS, **options)
        return sum(len(output.ids) for output in outputs), time.perf_counter() - began

    return run


def worker_contestant(worker: Worker) -> Contestant:
    return lambda group, seed: worker(group, NEW_TOKENS, seed)


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    pair = cactus.load_pair("abacus", dtype="float32")
    contestants: dict[str, Contestant] = {}
    for label, m in (("verifier alone", 0), (f"m = {args.m}", args.m), ("m = auto", "auto")):
        options = {"m": m, "temperature": args.temperature}
        contestants[f"ours, {label}, singles"] = together(pair, options, 1)
        contestants[f"ours, {label}, batch"] = together(pair, options, args.rows)
    workers = [Worker(name, python, args.m, args.temperature, args.threads) for name, python in split(args.peer)]
    contestants |= {f"{worker.peer}, batch": worker_contestant(worker) for worker in workers}
    every = prompts(pair, args.rows * args.groups)
    groups = [every[begin : begin + args.rows] for begin in range(0, len(every), args.rows)]
    for n in range(1, args.rows + 1):
        pair.step_costs(n)  # for "auto", which would otherwise measure them inside the race
    speeds = race(contestants, groups, args.rounds, args.seed)
    figures = {
        name: {"tokens_per_second": spread(speeds[name]), "times_singles": ratios(speeds, name, singles(name, args.m))}
        for name in speeds
    }
    show(
        f"batches of {args.rows}, T = {args.temperature}, float32, {args.threads} thread(s), {args.rounds} rounds",
        "median of rounds (lowest - highest); the singles are ours with the same m",
        ("tokens/s", "x singles"),
        [(name, told(row["tokens_per_second"], 0), told(row["times_singles"])) for name, row in figures.items()],
    )
    finish({"figures": figures, "peers": {worker.peer: worker.versions for worker in workers}, **vars(args)})


def split(peers: list[str]) -> list[tuple[str, str]]:
    return [(name, python) for name, _, python in (peer.partition("=") for peer in peers)]


def singles(name: str, m: int) -> str:
    """What a contestant is compared with: our single runs, of the same way where it is ours."""
    return name.replace(", batch", ", singles") if name.startswith("ours") else f"ours, m = {m}, singles"


if __name__ == "__main__":
    main()
