"""`python -m training.measure`: the figures of the pair's model card, through the package's own engine.

The problems are those of the test seed, which nothing was trained or chosen on. Temperature 1, no filters, draft
length 5. Writes docs/results/abacus.json and prints the table of the card.
"""

import argparse
import json
import math
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
import transformers
from scipy.stats import binomtest

import cactus_decoding as cactus
from cactus_decoding.embedded import ABACUS_DIR
from cactus_decoding.embedded.problems import is_correct, make_problems
from cactus_decoding.generation.pair import Options, Output
from cactus_decoding.generation.statistics import Statistics, total
from training.train import TEST_SEED

M = 5
WAYS: dict[str, Options] = {
    "verifier alone": {"speculate": False},
    "drafter alone": {"speculate": False},
    "lossless": {"rule": cactus.Lossless()},
    "cactus 0.1": {"rule": cactus.Cactus(0.1)},
    "cactus 0.25": {"rule": cactus.Cactus(0.25)},
    "cactus 0.5": {"rule": cactus.Cactus(0.5)},
    "cactus 1": {"rule": cactus.Cactus(1.0)},
    "ratio 3": {"rule": cactus.BoundedRatio(3.0)},
}
Interval = tuple[float, float, float]  # estimate, lower and upper end at 95%


def main() -> None:
    """Measure every way and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m training.measure")
    parser.add_argument("--folder", type=Path, default=ABACUS_DIR, help="where verifier/ and drafter/ are")
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=TEST_SEED)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/results/abacus.json"))
    options = parser.parse_args()
    began = time.monotonic()
    jobs = [(way, str(options.folder), options.problems, options.seed) for way in WAYS]
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        figures = {}
        for way, row in pool.imap(_measure, jobs):
            figures[way] = row
            print(f"{way:<15} {_line(row)}   {time.monotonic() - began:.0f} s gone", flush=True)
    document = {
        "what": f"{options.problems} problems of seed {options.seed}, temperature 1, no filters, m = {M}",
        "command": "python -m training.measure",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "figures": figures,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=1) + "\n")


def _measure(job: tuple[str, str, int, int]) -> tuple[str, dict[str, object]]:
    way, folder, count, seed = job
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    role = "drafter" if way == "drafter alone" else "verifier"
    pair = cactus.load_pair(f"{folder}/{role}", f"{folder}/drafter")
    problems = make_problems(count, seed)
    outputs = [pair.generate(problem.question, seed=i, m=M, **WAYS[way]) for i, problem in enumerate(problems)]
    right = sum(is_correct(output.text, problem) for output, problem in zip(outputs, problems, strict=True))
    return way, figures_of(outputs, right)


def figures_of(outputs: Sequence[Output], right: int) -> dict[str, object]:
    """Counts, and the two shares with their intervals."""
    stats = total(output.stats for output in outputs)
    return {
        "right": wilson(right, len(outputs)),
        "acceptance": share_over_responses([output.stats for output in outputs]) if stats.examined else None,
        "relaxed": stats.relaxed / stats.examined if stats.examined else None,
        "accepted_length": stats.accepted_length if stats.examined else None,
        "tokens_per_call": stats.tokens_per_call,
        "tokens_per_response": stats.tokens / len(outputs),
        "counts": {name: count for name, count in asdict(stats).items() if not name.endswith("seconds")},
    }


def wilson(right: int, count: int) -> Interval:
    """A share of independent problems with its Wilson interval."""
    ends = binomtest(right, count).proportion_ci(method="wilson")
    return right / count, float(ends.low), float(ends.high)


def share_over_responses(stats: Sequence[Statistics]) -> Interval:
    """Accepted over examined tokens, with the interval of a ratio estimate: tokens of one response hang together."""
    examined = sum(row.examined for row in stats)
    share = sum(row.accepted for row in stats) / examined
    squares = sum((row.accepted - share * row.examined) ** 2 for row in stats)
    spread = 1.96 * math.sqrt(squares * len(stats) / (len(stats) - 1)) / examined
    return share, share - spread, share + spread


def _line(row: dict[str, object]) -> str:
    right, acceptance = row["right"], row["acceptance"]
    text = "right {:.3f} ({:.3f} to {:.3f})".format(*right)  # type: ignore[misc]
    if acceptance is not None:
        text += "  accepted {:.3f} ({:.3f} to {:.3f})".format(*acceptance)  # type: ignore[misc]
        text += f"  relaxed {row['relaxed']:.3f}  AL {row['accepted_length']:.2f}"
    return text


if __name__ == "__main__":
    main()
