"""The forward of any transformers module, over a cache with a length per row or over the module's own cache."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache

from cactus_decoding.models.cache import RaggedCache, Window
from cactus_decoding.models.llama import last_ones


class ModuleForward:
    """Calls the module; rows of different lengths get explicit positions and a four-dimensional mask."""

    def __init__(self, module: Any, context: int) -> None:
        self.module = module
        self._last = context - 1
        accepted = inspect.signature(module.forward).parameters
        self._cache_argument = "cache" if "cache" in accepted else "past_key_values"
        self._can_keep_few = "logits_to_keep" in accepted
        self._device = next(module.parameters()).device

    def __call__(
        self, ids: Tensor, cache: RaggedCache, window: Window, counts: Sequence[int], keep: Sequence[int]
    ) -> Tensor:
        """``[n, w]`` ids -> ``[n, max(keep), rows]`` logits; see `Rows.extend`."""
        positions = window.positions
        if positions is None:
            positions = torch.arange(window.begin, window.reach, device=ids.device).unsqueeze(0)
        mask = window.mask
        if mask is None:  # said all the same: a module left to itself would ask the cache for one length of all rows
            mask = cache.nothing_hidden(window)
        few = window.w - min(count - kept for count, kept in zip(counts, keep))
        positions = positions.clamp_max(self._last)  # only padding lies beyond
        logits = self._call(ids, _Adapter(cache, window), max(few, 1), position_ids=positions, attention_mask=mask)
        shift = window.w - logits.shape[1]
        return last_ones(logits, [count - shift for count in counts], keep)

    def alone(self, ids: Tensor, cache: DynamicCache, keep: int) -> Tensor:
        """One row on a cache of the library's own: ``[k]`` ids -> ``[keep, rows]``."""
        logits = self._call(ids.unsqueeze(0), cache, max(keep, 1))[0]
        return logits[logits.shape[0] - keep :]

    def _call(self, ids: Tensor, cache: Cache, few: int, **options: Tensor) -> Tensor:
        """Logits ``[n, few, rows]`` behind the last ``few`` ids (behind all of them, where the module insists)."""
        settings: dict[str, Any] = {self._cache_argument: cache, "use_cache": True, **options}
        if self._can_keep_few:
            settings["logits_to_keep"] = few
        logits: Tensor = self.module(input_ids=ids, **settings).logits
        return logits.to(self._device)  # a sharded model ends on another device than it begins


class _Adapter(Cache):
    """A `RaggedCache` as the module's attention layers see it, for one forward."""

    def __init__(self, cache: RaggedCache, window: Window) -> None:
        super().__init__(layers=[])
        self._rows = cache
        self._window = window

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """``[n, heads, w, dim]`` new ones -> all that the queries may see, ``[n, heads, reach, dim]``."""
        seen = self._rows.write(layer_idx, self._window, key_states.transpose(1, 2), value_states.transpose(1, 2))
        return seen[0].transpose(1, 2), seen[1].transpose(1, 2)

    def get_seq_length(self, *_: Any) -> int:
        return self._window.reach - self._window.w

    def get_mask_sizes(self, *_: Any) -> tuple[int, int]:
        return self._window.reach, 0
