"""Benchmarks: what is claimed in the docs, with the command that made it."""
