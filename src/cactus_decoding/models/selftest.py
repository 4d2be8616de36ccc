"""Proof, at load, that a model's cache can be rewound.

Sliding windows, recurrent states and rotating caches forget what speculation must take back, and decoding on a
cache that was not really rewound gives plausible, wrong text. So every model is made to take something back
before it is used.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cactus_decoding.errors import BrokenLogits, ModelRefused
from cactus_decoding.models.base import CachedSequence, Model

_KEPT, _WRONG, _RIGHT = 6, 3, 4  # ids that stay, ids that are taken back one block and singly, ids fed instead
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}


@torch.inference_mode()
def require_rewind(model: Model) -> None:
    """Raise `ModelRefused` unless rewinding ``model`` leaves it as if the wrong ids had never been fed.

    Two sequences get the same ids in the same portions; one of them is led astray in between, by a block as a
    verifier is and by single ids as a drafter is, and rewound. Their last logits must agree to rounding.
    """
    size = min(model.rows, model.vocabulary.size)
    ids = (torch.arange(_KEPT + _RIGHT + _WRONG, device=model.device) * 7919 + 5) % size
    kept, right, wrong = ids[:_KEPT], ids[_KEPT : _KEPT + _RIGHT], ids[_KEPT + _RIGHT :]
    straight, astray = model.open(), model.open()
    try:
        straight.extend(kept, 1)
        expected = straight.extend(right, 1)
        astray.extend(kept, 1)
        _lead_astray(model, astray, wrong)
        found = astray.extend(right, 1)
    finally:
        straight.close()
        astray.close()
    _compare(model, found, expected)


def _lead_astray(model: Model, sequence: CachedSequence, wrong: Tensor) -> None:
    try:
        sequence.extend(wrong, 1)
        sequence.rewind(_KEPT)
        for i in range(_WRONG):
            sequence.extend(wrong[i : i + 1], 1)
        sequence.rewind(_KEPT)
    except (RuntimeError, ValueError, NotImplementedError, AttributeError) as error:
        raise ModelRefused(
            f"{model.name} cannot take tokens back from its cache ({type(error).__name__}: {error}), which "
            "speculation needs after every refusal. Models with recurrent or rotating states cannot be used here."
        ) from error


def _compare(model: Model, found: Tensor, expected: Tensor) -> None:
    real = torch.isfinite(expected)
    if not bool(real.any()) or bool(expected.isnan().any()):
        raise BrokenLogits(
            f"{model.name} returned NaN logits for its first few tokens. Often a float16 overflow: load it with "
            "dtype='bfloat16' or 'float32', and check that its weights are whole."
        )
    scale = float(expected[real].abs().max())
    gap = float((found - expected)[real].abs().max())
    if not gap <= _TOLERANCE[expected.dtype] * max(scale, 1.0):
        raise ModelRefused(
            f"{model.name} does not come back to the same logits after its cache is rewound (off by {gap:.3g}, with "
            f"logits up to {scale:.3g}), so refused drafts would leak into the text. It cannot be used here."
        )
