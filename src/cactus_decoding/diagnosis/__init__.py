"""Whether speculation pays for a pair on this machine, and with what draft length: predicted, measured, and said.

Nothing is printed here: `cactus_decoding.cli.doctor` does that.
"""

from cactus_decoding.diagnosis.examination import diagnose
from cactus_decoding.diagnosis.report import Diagnosis, Plan

__all__ = ["Diagnosis", "Plan", "diagnose"]
