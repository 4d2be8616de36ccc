"""A mend for vLLM on CPU, whose ``expand_batch_to_tokens`` leaves temperature, top-k and top-p of drafted rows unset.

Without it (vllm-project/vllm issue 55005) every speculative sample at a temperature above 0 is from a wrong law, with
or without this plugin.
"""

from __future__ import annotations

from typing import Any

import torch

from cactus_decoding.integrations.vllm.patching import Call, Point

POINT = Point(
    "vllm.v1.sample.rejection_sampler",
    "expand_batch_to_tokens",
    ("x", "cu_num_tokens", "num_tokens", "replace_from", "replace_to"),
)


def expanded(call: Call) -> Any:
    """Each request's value once per token of it: ``[B] -> [num_tokens]``."""
    ends = call["cu_num_tokens"]
    counts = torch.diff(ends, prepend=ends.new_zeros(1)).long()
    values = call["x"].repeat_interleave(counts, output_size=call["num_tokens"])
    return values.masked_fill(values == call["replace_from"], call["replace_to"])
