"""Which digits got in only thanks to a rule? Of the responses that `benchmarks.quality` kept.

    python -m benchmarks.digits [--folder quality/t1-m10]

For each setting: how many digits were relaxed in all answers, and how likely the verifier held them. A wrong digit
makes a wrong answer. Prints a table, then one JSON document as the last line.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from typing import Any

import cactus_decoding as cactus
from benchmarks.racing import finish, show
from cactus_decoding.cli.console import progress
from cactus_decoding.evaluation.store import read_chunk
from cactus_decoding.generation.loading import ABACUS

UNLIKELY = 0.01


def main() -> None:
    parser = argparse.ArgumentParser(description="Which digits got in only thanks to a rule?")
    parser.add_argument("--folder", type=Path, default=Path("quality/t1-m10"))
    args = parser.parse_args()
    tokenizer = cactus.load_pair(ABACUS).tokenizer
    digits = {token for token in range(len(tokenizer)) if tokenizer.decode([token]).strip().isdigit()}
    found: dict[str, dict[str, Any]] = {}
    with progress() as bar:
        for folder in bar.track(sorted((args.folder / "responses" / ABACUS).iterdir()), description="reading"):
            likely = relaxed_digits(folder, digits)
            if likely:
                unlikely = sum(q < UNLIKELY for q in likely)
                found[folder.name] = {"digits": len(likely), "median q": median(likely), "unlikely": unlikely}
    show(
        "digits kept only thanks to the rule",
        f"q: how likely the verifier held them; unlikely: below {UNLIKELY}",
        ("digits", "median q", "unlikely"),
        [(name, str(row["digits"]), f"{row['median q']:.2g}", str(row["unlikely"])) for name, row in found.items()],
    )
    finish({"found": found, "folder": str(args.folder)})


def relaxed_digits(folder: Path, digits: set[int]) -> list[float]:
    """The q of every relaxed digit in the responses of one setting."""
    return [
        q
        for path in sorted(folder.glob("*.jsonl.gz"))
        for record in read_chunk(path).values()
        for event in record["events"]
        for token, q, verdict in zip(event["draft"], event["q"], event["verdicts"])
        if verdict == "relaxed" and token in digits
    ]


if __name__ == "__main__":
    main()
