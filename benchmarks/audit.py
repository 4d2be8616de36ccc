"""What the exact meter costs: one whole row at a large vocabulary, and responses with and without audits.

    python -m benchmarks.audit [--rounds 7] [--vocabulary 151936] [--threads 2]

A row: the figures of `cactus_decoding.fidelity` at one position, laws of 151,936 tokens in float32, for each rule.
Responses: the Abacus pair, Cactus(0.1), m = 5, twelve word problems, without audits, with one at every verifier call
and at every tenth, in turns, on the process's own clock. Prints tables, then one JSON document as the last line.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

import cactus_decoding as cactus
from benchmarks.racing import finish, show, spread, told
from cactus_decoding.embedded.problems import make_problems
from cactus_decoding.fidelity import measure_rows
from cactus_decoding.rules import RULES, Rule, parse_rule, spec_of

AUDITS = (0, 1, 10)
SAMPLINGS: dict[str, dict[str, Any]] = {
    "temperature 1": {},
    "filtered": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What an audit costs.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--threads", type=int, default=2, help="for whole rows; responses take one")
    parser.add_argument("--seed", type=int, default=17)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    rows = whole_rows(args)
    torch.set_num_threads(1)
    finish({"milliseconds_of_a_row": rows, "times_without": responses(args), **vars(args)})


def whole_rows(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    generator = torch.Generator().manual_seed(args.seed)
    base = 4 * torch.randn(1, args.vocabulary, generator=generator)
    p, q = (base + torch.randn(1, args.vocabulary, generator=generator)).softmax(-1), base.softmax(-1)
    rules = [parse_rule(name) for name, rule in RULES.items() if not rule.looks_ahead]
    rules.insert(2, parse_rule("cactus:solver=exact"))
    found: dict[Rule, list[float]] = {rule: [] for rule in rules}
    for turn in range(args.rounds + 1):
        for rule in rules:
            began = time.perf_counter()
            measure_rows(p, q, rule)
            if turn:
                found[rule].append(1e3 * (time.perf_counter() - began))
    spreads = {spec_of(rule): spread(values) for rule, values in found.items()}
    show(
        f"one row of {args.vocabulary} tokens, {args.threads} threads",
        "median (lowest - highest)",
        ["ms"],
        [[name, told(figure, 1)] for name, figure in spreads.items()],
    )
    return spreads


def responses(args: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    pair = cactus.load_pair("abacus")
    questions = [problem.question for problem in make_problems(12, args.seed)]
    made: dict[str, dict[str, dict[str, float]]] = {}
    for way, sampling in SAMPLINGS.items():
        ratios: dict[int, list[float]] = {audit: [] for audit in AUDITS}
        for turn in range(args.rounds + 1):
            seconds = {}
            for audit in AUDITS:
                began = time.process_time()
                for seed, question in enumerate(questions):
                    pair.generate(question, rule=cactus.Cactus(0.1), m=5, seed=seed, audit=audit, **sampling)
                seconds[audit] = time.process_time() - began
            if turn:
                for audit in AUDITS:
                    ratios[audit].append(seconds[audit] / seconds[0])
        made[way] = {f"audit={audit}": spread(values) for audit, values in ratios.items()}
    rows = [[f"{way}, {name}", told(figure)] for way, figures in made.items() for name, figure in figures.items()]
    show("Abacus responses", "of the time without audits", ["x"], rows)
    return made


if __name__ == "__main__":
    main()
