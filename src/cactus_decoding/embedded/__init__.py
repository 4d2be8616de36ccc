"""What the package carries along: the Abacus pair (two tiny models) and the word problems they solve."""

from pathlib import Path

ABACUS_DIR: Path = Path(__file__).resolve().parent / "abacus"
"""Folder that holds the weights, one subfolder per model: `verifier` and `drafter`."""

__all__ = ["ABACUS_DIR"]
