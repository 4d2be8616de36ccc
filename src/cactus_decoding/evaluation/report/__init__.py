"""The report of a run: the same as HTML in one file, as Markdown and as JSON."""

from cactus_decoding.evaluation.report.writing import write_report

__all__ = ["write_report"]
