"""Pictures of the mathematics, one file each: a function that computes the data, and one that draws them.

The data are plain lists and need nothing but torch. Drawing needs matplotlib, the extra ``pictures``. Whatever is
drawn reads without colour: lines differ in dashes and markers, and carry their names.
"""

from __future__ import annotations

from cactus_decoding.pictures.canvas import save
from cactus_decoding.pictures.frontier import Line, Point, Tradeoff, draw_frontier, line_of, measure_tradeoff
from cactus_decoding.pictures.gamma import Raises, draw_gamma, raises_of
from cactus_decoding.pictures.overshoot import Overshoot, draw_overshoot, overshoot_of
from cactus_decoding.pictures.position import EXAMPLE, Position, draw_position, position_of
from cactus_decoding.pictures.synthetic import synthetic_positions

__all__ = [
    "EXAMPLE",
    "Line",
    "Overshoot",
    "Point",
    "Position",
    "Raises",
    "Tradeoff",
    "draw_frontier",
    "draw_gamma",
    "draw_overshoot",
    "draw_position",
    "line_of",
    "measure_tradeoff",
    "overshoot_of",
    "position_of",
    "raises_of",
    "save",
    "synthetic_positions",
]
