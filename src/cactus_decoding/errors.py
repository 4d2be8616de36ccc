"""The errors a user can meet. Each message says what happened, why, and how to mend it, with the value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class CactusError(Exception):
    """Base of every error this package raises on purpose."""


class InvalidParameter(CactusError, ValueError):
    """A setting outside its range, unknown, or in contradiction with another."""


class InvalidPrompt(CactusError, ValueError):
    """A prompt that cannot be decoded from: empty, too long, or of ids the vocabulary does not have."""


class PairMismatch(CactusError, ValueError):
    """Drafter and verifier do not share one vocabulary."""


class ModelRefused(CactusError, RuntimeError):
    """A model that cannot be used for speculation here, for instance one whose cache cannot be rewound."""


class BrokenLogits(CactusError, RuntimeError):
    """A model returned NaN or infinite logits."""


class MissingExtra(CactusError, ImportError):
    """An optional package is needed; the message names the pip command that brings it."""


class UnsupportedEngine(CactusError, RuntimeError):
    """Another engine, in a version or a mode that this package cannot act in."""


class OutputFailed(CactusError, OSError):
    """Results cannot be written: a full disk, a folder that may not be written to."""


class BatchFailed(CactusError, RuntimeError):
    """Some responses of a list failed; the others did not.

    ``outputs`` has one place per request, None where it failed; ``errors`` has the errors by number.
    """

    def __init__(self, message: str, outputs: Sequence[object], errors: Mapping[int, Exception]) -> None:
        super().__init__(message)
        self.outputs = list(outputs)
        self.errors = dict(errors)
