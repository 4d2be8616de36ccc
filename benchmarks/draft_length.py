"""Does the expected-speed formula hold, and does "auto" find the best draft length? On the Abacus pair.

    python -m benchmarks.draft_length [--rounds 7] [--problems 12] [--temperature 0.7] [--delta 0] [--threads 1]

The prediction is E(m) C(0) / C(m): acceptance by place is counted on other problems than those of the race, step
costs are measured before and behind it. The race runs m = 0 .. 8 and "auto" in turn, problem by problem. Prints a
table, then one JSON document as the last line.
"""

from __future__ import annotations

import argparse
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

import cactus_decoding as cactus
from benchmarks.racing import Contestant, finish, race, ratios, show, spread, told
from cactus_decoding.diagnosis.prediction import Acceptance, Prediction, acceptance_of, median_costs, predict
from cactus_decoding.embedded.problems import DEMO_SEED, make_problems
from cactus_decoding.generation.costs import measure_step_costs

NEW_TOKENS = 128
LENGTHS = tuple(range(9))
AUTO = "auto"
COUNTED = 24  # other problems, to count acceptance on


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The expected-speed formula and the adaptive draft length.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--problems", type=int, default=12)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--delta", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=17, help="of the random numbers")
    return parser.parse_args()


def contestant(pair: cactus.Pair, options: dict, m: int | str, steps: dict) -> Contestant:
    def run(question: str, seed: int) -> tuple[int, float]:
        stats = pair.generate(question, m=m, seed=seed, max_new_tokens=NEW_TOKENS, **options).stats
        steps.setdefault(m, []).append((stats.tokens, stats.verifier_calls))
        return stats.tokens, stats.seconds

    return run


def count_acceptance(pair: cactus.Pair, options: dict, seed: int) -> Acceptance:
    """By place, on problems that the race does not have."""
    questions = [problem.question for problem in make_problems(COUNTED, DEMO_SEED + 1)]
    outputs = pair.generate(questions, m=max(LENGTHS), seed=seed, max_new_tokens=NEW_TOKENS, **options)
    return acceptance_of([event for output in outputs for event in output.events], NEW_TOKENS)


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    pair = cactus.load_pair("abacus", dtype="float32")
    options = {"temperature": args.temperature, "rule": cactus.Cactus(args.delta)}
    steps: dict[int | str, list[tuple[int, int]]] = {}
    lengths = [*LENGTHS, AUTO]
    contestants = {str(m): contestant(pair, options, m, steps) for m in lengths}
    acceptance = count_acceptance(pair, options, args.seed)
    questions = [problem.question for problem in make_problems(args.problems, DEMO_SEED)]
    measure = [measure_step_costs(pair.verifier, pair.drafter, 1) for _ in range(3)]
    speeds = race(contestants, questions, args.rounds, args.seed)
    measure += [measure_step_costs(pair.verifier, pair.drafter, 1) for _ in range(3)]
    predictions = predict(median_costs(measure), acceptance, rows=1)
    figures = {str(m): figure(m, speeds, predictions, steps) for m in lengths}
    report(figures, args)
    best = max(LENGTHS, key=lambda m: figures[str(m)]["tokens_per_second"]["median"])
    against_best = ratios(speeds, AUTO, str(best))
    print(f"auto against the best fixed m, {best}: {told(against_best)}")
    finish(
        {
            "figures": figures,
            "best": best,
            "auto_to_best": against_best,
            "by_place": acceptance.by_place(),
            **vars(args),
        }
    )


def figure(m: int | str, speeds: dict, predictions: tuple[Prediction, ...], steps: dict) -> dict:
    realised = ratios(speeds, str(m), "0")
    tokens, calls = (sum(column) for column in zip(*steps[m]))
    found = {"tokens_per_second": spread(speeds[str(m)]), "speed_up": realised, "tokens_per_call": tokens / calls}
    if m == AUTO:
        return found
    predicted = predictions[m]
    return found | {
        "predicted_tokens_per_call": predicted.tokens,
        "predicted_cost": predicted.cost,
        "predicted_speed_up": predicted.speed,
        "realised_to_predicted": realised["median"] / predicted.speed,
    }


def report(figures: dict[str, dict], args: argparse.Namespace) -> None:
    def cell(row: dict, name: str) -> str:
        return f"{row[name]:.2f}" if name in row else "-"

    show(
        f"T = {args.temperature}, delta = {args.delta:g}, float32, {args.threads} thread(s), {args.rounds} rounds",
        "median of rounds (lowest - highest); speed-up over m = 0",
        ("tokens/s", "per call", "E(m)", "C(m)/C(0)", "speed-up", "predicted", "realised/predicted"),
        [
            (
                f"m = {m}",
                told(row["tokens_per_second"], 0),
                cell(row, "tokens_per_call"),
                cell(row, "predicted_tokens_per_call"),
                cell(row, "predicted_cost"),
                told(row["speed_up"]),
                cell(row, "predicted_speed_up"),
                cell(row, "realised_to_predicted"),
            )
            for m, row in figures.items()
        ],
    )


if __name__ == "__main__":
    main()
