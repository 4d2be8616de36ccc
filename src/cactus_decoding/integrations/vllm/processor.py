"""Cactus as a logits processor of vLLM's V2 runner, for who wants no patch.

    VLLM_PLUGINS= vllm serve ... --logits-processors cactus_decoding.integrations.vllm.processor:CactusProcessor

vLLM runs logits processors before temperature, min-p, top-k and top-p, so this form is exact with temperature alone,
and refuses requests that filter. It does not learn what was accepted, so it caps and counts nothing.
"""

from __future__ import annotations

import functools
import logging
import os
from typing import Any

import torch
from torch import Tensor
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor

from cactus_decoding.errors import InvalidParameter, UnsupportedEngine
from cactus_decoding.integrations.vllm.admission import why_closed
from cactus_decoding.integrations.vllm.plugin import registered
from cactus_decoding.integrations.vllm.relaxation import GREEDY_BELOW, Relaxation
from cactus_decoding.integrations.vllm.settings import Settings, of_environment
from cactus_decoding.integrations.vllm.shift import Dials, lift, write

logger = logging.getLogger("vllm.cactus")


class CactusProcessor(LogitsProcessor):  # type: ignore[misc]
    """Shift the drafted tokens' logits of the requests that ask for it, in units of their temperature.

    Raises:
        UnsupportedEngine: the plugin is registered as well and would shift a second time, or the engine cannot relax.
    """

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        if registered():
            raise UnsupportedEngine(
                "the logits processor of Cactus is on an engine that the plugin of Cactus has patched, and both would "
                "relax. Start vLLM with VLLM_PLUGINS= (empty) to use the processor alone, or leave it out."
            )
        closed = why_closed(vllm_config)
        if closed is not None:
            raise UnsupportedEngine(f"The logits processor of Cactus can relax nothing here: {closed}")
        self._relaxations: list[Relaxation | None] = [None] * req_states.max_num_reqs
        self._temperature = torch.ones(req_states.max_num_reqs, device=req_states.device)

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        _relaxation_of(sampling_params)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        try:
            relaxation = _relaxation_of(sampling_params)
        except InvalidParameter as error:  # this process has other settings than the front end, and must go on
            logger.error("Cactus: a request is served losslessly, for the settings of its worker refuse it: %s", error)
            relaxation = None
        self._relaxations[req_idx] = relaxation
        self._temperature[req_idx] = sampling_params.temperature if relaxation is not None else 1.0
        return relaxation is not None

    def apply(self, logits: Tensor, ctx: Any) -> Tensor:
        """``logits [N, V]`` in place: before temperature, so the shift is multiplied by it."""
        batch = [self._relaxations[slot] for slot in ctx.idx_mapping_np.tolist()]
        if not any(batch):
            return logits
        slot = ctx.expanded_idx_mapping.long()
        n = drafted(ctx.input_ids.long(), slot, ctx.expanded_local_pos)
        owner = (slot[:, None] == ctx.idx_mapping.long()[None, :]).long().argmax(1)
        dials = Dials.of(batch, logits.device).rows(owner, n >= 0)
        temperature = self._temperature[slot][:, None]
        lifted = lift(logits / temperature, n, dials)
        moved = torch.where(lifted.lifted == lifted.logit, _own(logits, n), lifted.lifted * temperature[:, 0])
        write(logits, n, moved)
        return logits


def drafted(input_ids: Tensor, slot: Tensor, place: Tensor) -> Tensor:
    """The token that row i verifies, ``[N]``: the one fed at row i + 1 where that is the same request's; else -1."""
    same = torch.zeros_like(slot, dtype=torch.bool)
    same[:-1] = (slot[1:] == slot[:-1]) & (place[1:] == place[:-1] + 1)
    return torch.where(same, torch.roll(input_ids, -1), -1)


@functools.cache
def _settings() -> Settings:
    return of_environment(os.environ)


def _own(logits: Tensor, n: Tensor) -> Tensor:
    return logits.gather(1, n.clamp_min(0)[:, None])[:, 0]


def _relaxation_of(sampling_params: Any) -> Relaxation | None:
    """What the request gets; `InvalidParameter` for what this form cannot give."""
    relaxation = _settings().relaxation_of(sampling_params.extra_args)
    if relaxation is None or sampling_params.temperature < GREEDY_BELOW:
        return None
    filters = {
        "top_p": (sampling_params.top_p, sampling_params.top_p == 1.0),
        "top_k": (sampling_params.top_k, sampling_params.top_k <= 0),
        "min_p": (sampling_params.min_p, sampling_params.min_p == 0.0),
    }
    for name, (value, off) in filters.items():
        if not off:
            raise InvalidParameter(
                f"{name} is {value!r}, but the logits processor of Cactus runs before the filters and is exact without "
                f"them only. Leave {name} out, or use the plugin."
            )
    if relaxation.max_relaxed is not None:
        raise InvalidParameter(
            f"cactus_max_relaxed is {relaxation.max_relaxed}, but a logits processor does not learn which tokens were "
            "kept. Leave it out, or use the plugin."
        )
    return relaxation
