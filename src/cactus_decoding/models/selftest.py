"""Proof, at load, that rows can be fed side by side and taken back.

Sliding windows, recurrent states and rotating caches forget what speculation must take back, and decoding on a
cache that was not really rewound gives plausible, wrong text. So every model is made to take something back
before it is used, in two rows of different lengths, and must then agree with its own plain forward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cactus_decoding.errors import BrokenLogits, ModelRefused

if TYPE_CHECKING:
    from cactus_decoding.models.rows import RaggedRows, SeparateRows
    from cactus_decoding.models.transformers import TransformersModel

_LONG, _SHORT, _WRONG, _RIGHT = 6, 3, 3, 4  # ids of the two rows that stay, ids taken back, ids fed instead
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}


@torch.inference_mode()
def require_rewind(model: TransformersModel) -> None:
    """Raise `ModelRefused` unless rows of ``model`` come back to its plain logits after being led astray.

    Two rows are fed different numbers of ids, led astray by a block as a verifier is and by single ids as a drafter
    is, rewound, and fed on together. Raises `BrokenLogits` where the plain logits are NaN already.
    """
    size = min(model.rows, model.vocabulary.size)
    ids = (torch.arange(_LONG + _RIGHT + _WRONG, device=model.device) * 7919 + 5) % size
    right, wrong = ids[:-_WRONG], ids[-_WRONG:]
    expected = torch.stack([model.plain(row)[-1] for row in (right, right[: _SHORT + _RIGHT - 1])])
    if bool(expected.isnan().any()) or not bool(expected.isfinite().any()):
        raise BrokenLogits(
            f"{model.name} returned NaN logits for its first few tokens. Often a float16 overflow: load it with "
            "dtype='bfloat16' or 'float32', and check that its weights are whole."
        )
    try:
        found = _led_astray(model, right, wrong)
    except (RuntimeError, ValueError, NotImplementedError, AttributeError, TypeError, IndexError) as error:
        raise ModelRefused(
            f"{model.name} cannot feed and take back tokens row by row ({type(error).__name__}: {error}), which "
            "speculation needs after every refusal. Models with recurrent or rotating states cannot be used here."
        ) from error
    _compare(model, found, expected)


def _led_astray(model: TransformersModel, right: Tensor, wrong: Tensor) -> Tensor:
    """The logits behind both rows' last ids, ``[2, V]``, after detours."""
    rows = model.open()
    try:
        for row, length in enumerate((_LONG, _SHORT)):
            rows.add()
            rows.extend(right[:length].unsqueeze(0), [length], [1], row)
        rows.extend(wrong.expand(2, -1), [_WRONG, _WRONG - 1], [_WRONG, 1])
        _rewind(rows)
        for one in wrong:
            rows.extend(one.expand(2, 1), [1, 1], [1, 1])
        _rewind(rows)
        blocks = torch.stack([right[at : at + _RIGHT] for at in (_LONG, _SHORT)])
        return rows.extend(blocks, [_RIGHT, _RIGHT - 1], [1, 1])[:, 0]
    finally:
        rows.close()


def _rewind(rows: RaggedRows | SeparateRows) -> None:
    rows.rewind(0, _LONG)
    rows.rewind(1, _SHORT)


def _compare(model: TransformersModel, found: Tensor, expected: Tensor) -> None:
    real = torch.isfinite(expected)
    scale = float(expected[real].abs().max())
    gap = float((found - expected)[real].abs().max())
    if not gap <= _TOLERANCE[expected.dtype] * max(scale, 1.0):
        raise ModelRefused(
            f"{model.name} does not come back to the same logits after its cache is rewound (off by {gap:.3g}, with "
            f"logits up to {scale:.3g}), so refused drafts would leak into the text. It cannot be used here."
        )
