"""The command ``cactus``: parse, call, print."""

from cactus_decoding.cli.app import main

__all__ = ["main"]
