"""The engine against its peers, one prompt at a time: same pair, prompts, draft length and dtype, one run.

    python -m benchmarks.step [--rounds 7] [--problems 12] [--m 5] [--temperature 0.7] [--threads 1]
        [--delta 0.1 --delta 0.5] [--peer economize=ENV/bin/python] [--peer flashspec=ENV/bin/python]

transformers runs in this process, alone and with its assisted generation; other libraries run in environments of
their own (see `peer.py`), named with --peer. Prints a table, then one JSON document as the last line.
"""

from __future__ import annotations

import argparse
import os
import time

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

import cactus_decoding as cactus
from benchmarks.racing import Contestant, Speeds, finish, race, ratios, show, spread, told
from benchmarks.workers import Worker
from cactus_decoding.embedded.problems import DEMO_SEED, make_problems
from cactus_decoding.generation.statistics import Statistics, total

NEW_TOKENS = 128
ALONE = "transformers, verifier alone"
ASSISTED = "transformers, assisted"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The engine against its peers, one prompt at a time.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--problems", type=int, default=12)
    parser.add_argument("--m", type=int, default=5)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--delta", type=float, action="append", help="of a Cactus contestant; default 0.1 and 0.5")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=17, help="of the random numbers")
    parser.add_argument("--peer", action="append", default=[], help="NAME=PYTHON, see peer.py; may be repeated")
    return parser.parse_args()


def our_contestant(pair: cactus.Pair, stats: list[Statistics], options: dict) -> Contestant:
    def run(ids: list[int], seed: int) -> tuple[int, float]:
        began = time.perf_counter()
        output = pair.generate(ids, seed=seed, max_new_tokens=NEW_TOKENS, **options)
        stats.append(output.stats)
        return len(output.ids), time.perf_counter() - began

    return run


def their_contestant(pair: cactus.Pair, args: argparse.Namespace, assisted: bool) -> Contestant:
    verifier, drafter = pair.verifier.module, pair.drafter.model.module
    drafter.generation_config.num_assistant_tokens = args.m
    drafter.generation_config.num_assistant_tokens_schedule = "constant"
    drafter.generation_config.assistant_confidence_threshold = 0.0  # draft exactly m tokens, as we do
    options = {"do_sample": True, "temperature": args.temperature, "top_k": 0, "top_p": 1.0}
    options |= {"assistant_model": drafter} if assisted else {}

    def run(prompt: list[int], seed: int) -> tuple[int, float]:
        ids = torch.tensor([prompt])
        torch.manual_seed(seed)
        began = time.perf_counter()
        found = verifier.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, **options)
        return found.shape[1] - ids.shape[1], time.perf_counter() - began

    return run


def worker_contestant(worker: Worker) -> Contestant:
    return lambda prompt, seed: worker([prompt], NEW_TOKENS, seed)


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    pair = cactus.load_pair("abacus", dtype="float32")
    ways = {
        "ours, verifier alone": {"m": 0},
        f"ours, lossless, m = {args.m}": {"m": args.m},
        "ours, lossless, m = auto": {"m": "auto"},
    }
    ways |= {
        f"ours, cactus {d:g}, m = {args.m}": {"m": args.m, "rule": cactus.Cactus(d)} for d in args.delta or (0.1, 0.5)
    }
    stats: dict[str, list[Statistics]] = {name: [] for name in ways}
    peers = [peer.split("=", 1) for peer in args.peer]
    workers = {name: Worker(name, python, args.m, args.temperature, args.threads) for name, python in peers}
    contestants = {ALONE: their_contestant(pair, args, False), ASSISTED: their_contestant(pair, args, True)}
    contestants |= {name: worker_contestant(worker) for name, worker in workers.items()}
    for name, options in ways.items():
        contestants[name] = our_contestant(pair, stats[name], {"temperature": args.temperature, **options})
    speeds = race(contestants, prompts(pair, args.problems), args.rounds, args.seed)
    figures = {name: figure(name, speeds, stats.get(name)) for name in speeds}
    report(figures, args)
    finish({"figures": figures, "peers": {name: worker.versions for name, worker in workers.items()}, **vars(args)})


def prompts(pair: cactus.Pair, count: int) -> list[list[int]]:
    """The problems in the chat template, as ids, so that nobody is timed on encoding."""
    questions = [[{"role": "user", "content": problem.question}] for problem in make_problems(count, DEMO_SEED)]
    return [pair.tokenizer.apply_chat_template(q, add_generation_prompt=True, return_dict=False) for q in questions]


def figure(name: str, speeds: Speeds, stats: list[Statistics] | None) -> dict:
    found = {
        "tokens_per_second": spread(speeds[name]),
        "times_alone": ratios(speeds, name, ALONE),
        "times_assisted": ratios(speeds, name, ASSISTED),
    }
    if stats is None:
        return found
    ours = total(stats)
    return found | {
        "tokens_per_call": ours.tokens_per_call,
        "acceptance": ours.acceptance if ours.examined else None,
        "share_outside_the_forwards": 1 - (ours.verifier_seconds + ours.drafter_seconds) / ours.seconds,
    }


def report(figures: dict[str, dict], args: argparse.Namespace) -> None:
    show(
        f"m = {args.m}, T = {args.temperature}, float32, {args.threads} thread(s), {args.rounds} rounds",
        "median of rounds (lowest - highest); outside: share of the time outside the forwards",
        ("tokens/s", "x alone", "x assisted", "per call", "accepted", "outside"),
        [
            (
                name,
                told(row["tokens_per_second"], 0),
                told(row["times_alone"]),
                told(row["times_assisted"]),
                f"{row['tokens_per_call']:.2f}" if "tokens_per_call" in row else "-",
                f"{row['acceptance']:.3f}" if row.get("acceptance") else "-",
                f"{row['share_outside_the_forwards']:.1%}" if "share_outside_the_forwards" in row else "-",
            )
            for name, row in figures.items()
        ],
    )


if __name__ == "__main__":
    main()
