"""The V1 model runner: vLLM's on CPU, and on a GPU without Triton or with a feature that the V2 runner lacks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cactus_decoding.integrations.vllm.patching import Call, Point
from cactus_decoding.integrations.vllm.reporting import relaxer_of, report
from cactus_decoding.integrations.vllm.verification import Drafts, during, places_of, verified_now

_RUNNER = "vllm.v1.worker.gpu_model_runner"
UPDATE = Point(_RUNNER, "GPUModelRunner._update_states", ("self", "scheduler_output"))
SAMPLE = Point(_RUNNER, "GPUModelRunner._sample", ("self", "logits", "spec_decode_metadata"))
REJECT = Point(
    "vllm.v1.sample.rejection_sampler",
    "rejection_sample",
    ("draft_token_ids", "num_draft_tokens", "draft_probs", "target_logits", "sampling_metadata"),
)
_REFUSED = -1  # vLLM's placeholder behind the last token of a row


def update_states(call: Call) -> Any:
    """Requests have ended."""
    result = call.proceed()
    report(call["self"], call["self"], call["scheduler_output"])
    return result


def sample(call: Call) -> Any:
    """Say whose rows are about to be verified."""
    runner = call["self"]
    if call["spec_decode_metadata"] is None:
        return call.proceed()
    relaxer = relaxer_of(runner)
    batch = list(runner.input_batch.req_ids)
    for request in batch:
        relaxer.add(request, runner.requests[request].sampling_params)
    return during(relaxer, batch, call.proceed)


def rejection_sample(call: Call) -> Any:
    """Verify with the relaxed requests' drafted tokens lifted."""
    now = verified_now()
    if now is None or call["sampling_metadata"].all_greedy:
        return call.proceed()
    relaxer, batch = now
    n, p = call["draft_token_ids"].long(), call["draft_probs"]

    def probability_of_draft() -> Tensor:
        return torch.ones_like(n, dtype=torch.float64) if p is None else p.gather(1, n.clamp_min(0)[:, None])[:, 0]

    def sampled(logits: Tensor) -> Any:
        call["target_logits"] = logits
        return call.proceed()

    return relaxer.verify(
        batch,
        call["target_logits"],
        _drafts(n, call["num_draft_tokens"]),
        call["num_draft_tokens"],
        probability_of_draft,
        sampled,
        lambda tokens: ((tokens != _REFUSED).sum(1) - 1).clamp_min(0),
    )


def _drafts(n: Tensor, counts: list[int]) -> Drafts:
    owner = [request for request, count in enumerate(counts) for _ in range(count)]
    rows = torch.tensor([owner, places_of(counts)], dtype=torch.int64).to(n.device, non_blocking=True)
    return Drafts(n, rows[0], rows[1])


AROUND = {UPDATE: update_states, SAMPLE: sample, REJECT: rejection_sample}
