"""Uniform numbers on the device, of a key and a counter alone."""

from __future__ import annotations

from torch import Tensor

_STEP = 0x9E3779B97F4A7C15 - 2**64  # as signed 64-bit numbers, torch's only ones of that width on every device
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def uniforms(key: Tensor, counter: Tensor) -> Tensor:
    """float64 in [0, 1), elementwise, of int64 keys and counters.

    SplitMix64: the counter-th number of a generator that starts at the key (Steele, Lea and Flood, OOPSLA 2014).
    Nothing is read off the host, and nothing remembered, so a batch of any shape costs a dozen small operations.
    """
    z = key + (counter + 1) * _STEP
    z = (z ^ _shifted(z, 30)) * _FIRST
    z = (z ^ _shifted(z, 27)) * _SECOND
    return _shifted(z ^ _shifted(z, 31), 11).double() * 2.0**-53


def _shifted(z: Tensor, by: int) -> Tensor:
    """To the right, with zeros coming in; torch's own shift repeats the sign."""
    return (z >> by) & ((1 << (64 - by)) - 1)
