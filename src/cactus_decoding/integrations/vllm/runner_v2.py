"""The V2 model runner: vLLM's where Triton is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cactus_decoding.integrations.vllm.patching import Call, Point
from cactus_decoding.integrations.vllm.reporting import relaxer_of, report
from cactus_decoding.integrations.vllm.shift import log_total, rows_at_a_time
from cactus_decoding.integrations.vllm.verification import Drafts, during, verified_now

_SAMPLER = "vllm.v1.worker.gpu.spec_decode.rejection_sampler"
FINISH = Point("vllm.v1.worker.gpu.model_runner", "GPUModelRunner.finish_requests", ("self", "scheduler_output"))
ADD = Point("vllm.v1.worker.gpu.sample.sampler", "Sampler.add_request", ("self", "req_idx", "sampling_params"))
VERIFY = Point(_SAMPLER, "RejectionSampler._verify", ("self", "idx_mapping_np"))
REJECT = Point(
    _SAMPLER,
    "rejection_sample",
    (
        "target_logits", "draft_logits", "draft_sampled", "cu_num_logits", "expanded_idx_mapping",
        "temperature", "num_speculative_steps",
    ),
)  # fmt: skip


def finish_requests(call: Call) -> Any:
    """Requests have ended, or were preempted; those come back under their name."""
    result = call.proceed()
    runner = call["self"]
    if getattr(runner, "sampler", None) is not None:  # none on all but the last rank of a pipeline
        report(runner, runner.sampler, call["scheduler_output"])
    return result


def add_request(call: Call) -> Any:
    """A request has got its slot."""
    result = call.proceed()
    sampler = call["self"]
    relaxer_of(sampler).add(sampler.req_states.index_to_req_id[call["req_idx"]], call["sampling_params"])
    return result


def verify(call: Call) -> Any:
    """Say whose rows are about to be verified."""
    sampler = call["self"].sampler
    batch = [sampler.req_states.index_to_req_id[slot] for slot in call["idx_mapping_np"].tolist()]
    return during(relaxer_of(sampler), batch, call.proceed)


def rejection_sample(call: Call) -> Any:
    """Verify with the relaxed requests' drafted tokens lifted."""
    now = verified_now()
    if now is None:
        return call.proceed()
    relaxer, batch = now
    drafts = _drafts(call["draft_sampled"], call["cu_num_logits"])

    def sampled(logits: Tensor) -> Any:
        call["target_logits"] = logits
        return call.proceed()

    return relaxer.verify(
        batch,
        call["target_logits"],
        drafts,
        [call["num_speculative_steps"]] * len(batch),
        lambda: _probability_of_draft(call, drafts),
        sampled,
        lambda result: (result[1] - 1).clamp_min(0).long(),
    )


def _drafts(draft_sampled: Tensor, ends: Tensor) -> Drafts:
    """Row i verifies the token that was fed at row i + 1 of the same request; its last row has none."""
    row = torch.arange(draft_sampled.shape[0], device=draft_sampled.device)
    owner = torch.searchsorted(ends.long(), row, right=True) - 1
    following = torch.roll(draft_sampled.long(), -1)
    last = row + 1 == ends.long()[owner + 1]
    return Drafts(torch.where(last, -1, following), owner, row - ends.long()[owner])


def _probability_of_draft(call: Call, drafts: Drafts) -> Tensor:
    """p(n) ``[N]``: 1 of a point mass; the logits of a drafter are kept before temperature, and by slot.

    A few rows at a time, because vLLM has set no memory aside for a copy of all of them.
    """
    logits, slot = call["draft_logits"], call["expanded_idx_mapping"].long()
    if logits is None:
        return torch.ones_like(drafts.n, dtype=torch.float64)
    temperature = torch.where(call["temperature"][slot] > 0.0, call["temperature"][slot], 1.0).float()
    place, n = drafts.place.clamp_max(logits.shape[1] - 1), drafts.n.clamp(0, logits.shape[2] - 1)
    size = rows_at_a_time(logits.shape[2], logits.device)
    found = []
    for first in range(0, len(n), size):
        part = slice(first, first + size)
        rows = logits[slot[part], place[part]].float() / temperature[part, None]
        found.append(rows.gather(1, n[part, None])[:, 0].double() - log_total(rows).double())
    return torch.cat(found).exp()


AROUND = {FINISH: finish_requests, ADD: add_request, VERIFY: verify, REJECT: rejection_sample}
