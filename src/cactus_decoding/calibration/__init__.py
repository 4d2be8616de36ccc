"""Which setting of each rule strays as far as asked for, measured on a person's own prompts."""

from cactus_decoding.calibration.positions import Positions
from cactus_decoding.calibration.recording import record
from cactus_decoding.calibration.search import Calibration, Target, calibrate

__all__ = ["Calibration", "Positions", "Target", "calibrate", "record"]
