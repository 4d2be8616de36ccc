"""`python -m training.measure`: the figures of the pair's model card, through the package's own engine.

The problems are those of the test seed, which nothing was trained or chosen on. Temperature 1, no filters, draft
length 5. Writes docs/results/abacus.json and prints the table of the card.
"""

import argparse
import json
import multiprocessing
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path

import torch
import transformers

import cactus_decoding as cactus
from cactus_decoding.cli.console import progress
from cactus_decoding.embedded import ABACUS_DIR
from cactus_decoding.embedded.problems import Problem, is_correct, make_problems
from cactus_decoding.evaluation.statistics import accuracy, ratio
from cactus_decoding.generation.request import Options
from cactus_decoding.generation.statistics import Statistics, total
from training.train import TEST_SEED

M = 5
WAYS: dict[str, Options] = {
    "verifier alone": {"m": 0},
    "drafter alone": {"m": 0},
    "lossless": {"rule": cactus.Lossless()},
    "cactus 0.1": {"rule": cactus.Cactus(0.1)},
    "cactus 0.25": {"rule": cactus.Cactus(0.25)},
    "cactus 0.5": {"rule": cactus.Cactus(0.5)},
    "cactus 1": {"rule": cactus.Cactus(1.0)},
    "ratio 3": {"rule": cactus.BoundedRatio(3.0)},
}
CHUNK = 25  # problems between two movements of the progress bar
Solved = tuple[bool, Statistics]  # one response: whether it is right, and its counts


def main() -> None:
    """Measure every way and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m training.measure")
    parser.add_argument("--folder", type=Path, default=ABACUS_DIR, help="where verifier/ and drafter/ are")
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=TEST_SEED)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/results/abacus.json"))
    options = parser.parse_args()
    problems = make_problems(options.problems, options.seed)
    jobs = [
        (way, str(options.folder), first, problems[first : first + CHUNK])
        for way in WAYS
        for first in range(0, len(problems), CHUNK)
    ]
    solved: dict[str, list[Solved]] = {way: [] for way in WAYS}
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool, progress() as bar:
        step = bar.add_task("measuring", total=len(jobs))
        for way, part in pool.imap(_solve, jobs):
            solved[way] += part
            bar.advance(step)
    figures = {way: figures_of(parts) for way, parts in solved.items()}
    for way, row in figures.items():
        print(f"{way:<15} {_line(row)}")
    document = {
        "what": f"{options.problems} problems of seed {options.seed}, temperature 1, no filters, m = {M}",
        "command": "python -m training.measure",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "figures": figures,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=1) + "\n")


def _solve(job: tuple[str, str, int, list[Problem]]) -> tuple[str, list[Solved]]:
    """A run of problems in one way; the number of a problem is its seed, so runs may be cut anywhere."""
    way, folder, first, problems = job
    pair = _load(folder, "drafter" if way == "drafter alone" else "verifier")
    options: Options = {"m": M, **WAYS[way]}
    outputs = pair.generate([problem.question for problem in problems], rows=CHUNK, seed=first, **options)
    return way, [(is_correct(o.text, problem), o.stats) for o, problem in zip(outputs, problems, strict=True)]


@cache
def _load(folder: str, role: str) -> cactus.Pair:
    """Once per worker and role."""
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    return cactus.load_pair(f"{folder}/{role}", f"{folder}/drafter")


def figures_of(solved: Sequence[Solved]) -> dict[str, object]:
    """Counts, and the two shares with their intervals."""
    responses = [stats for _, stats in solved]
    stats = total(responses)
    return {
        "right": accuracy([[right] for right, _ in solved]),
        "acceptance": ratio(*zip(*((row.accepted, row.examined) for row in responses))) if stats.examined else None,
        "relaxed": stats.relaxed / stats.examined if stats.examined else None,
        "accepted_length": stats.accepted_length if stats.examined else None,
        "tokens_per_call": stats.tokens_per_call,
        "tokens_per_response": stats.tokens / len(responses),
        "counts": {name: n for name, n in asdict(stats).items() if n is not None and not name.endswith("seconds")},
    }


def _line(row: dict[str, object]) -> str:
    right, acceptance = row["right"], row["acceptance"]
    text = "right {:.3f} ({:.3f} to {:.3f})".format(*right)  # type: ignore[misc]
    if acceptance is not None:
        text += "  accepted {:.3f} ({:.3f} to {:.3f})".format(*acceptance)  # type: ignore[misc]
        text += f"  relaxed {row['relaxed']:.3f}  AL {row['accepted_length']:.2f}"
    return text


if __name__ == "__main__":
    main()
