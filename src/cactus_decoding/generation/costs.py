"""What a step really costs here: the engine's own steps, timed on throwaway responses."""

from __future__ import annotations

import time

import torch

from cactus_decoding.drafters.base import Drafter, Proposal
from cactus_decoding.generation.drafting import MOST, StepCosts
from cactus_decoding.generation.engine import Batch, Decoding, Job
from cactus_decoding.generation.stops import Stops
from cactus_decoding.models.base import Model
from cactus_decoding.rules import Lossless
from cactus_decoding.sampling import SamplingParams

_LENGTHS = (0, 1, 2, 4, 8, MOST)
_PROMPT = 16
_REPEATS = 4
_ENOUGH = 0.2  # seconds after which one draft length is not timed again
_NO_END = 1 << 30


def measure_step_costs(verifier: Model, drafter: Drafter, n: int) -> StepCosts:
    """The least seconds that a step of ``n`` rows took, drafting included, for a few draft lengths.

    The least of a few, since whatever else the machine does only ever adds. A context too short for the longer
    blocks leaves them out.
    """
    prompt = min(_PROMPT, max(1, verifier.context // 4))
    lengths = [m for m in _LENGTHS if prompt + m + 3 <= verifier.context]
    return StepCosts(tuple((m, _least_seconds(verifier, drafter, n, prompt, m)) for m in lengths))


def _least_seconds(verifier: Model, drafter: Drafter, n: int, prompt: int, m: int) -> float:
    batch = _throwaways(verifier, drafter, n, prompt)
    times: list[float] = []
    try:
        batch.examine(batch.propose([0] * n))  # feeds the prompts
        batch.examine(_whole(batch.propose([min(m, 1)] * n), min(m, 1)))  # and the drafter's, and warms up
        while len(times) < _REPEATS and sum(times) < _ENOUGH and _longest(batch) + m + 1 < verifier.context:
            began = time.perf_counter()
            batch.examine(_whole(batch.propose([m] * n), m))
            times.append(time.perf_counter() - began)
    finally:
        batch.close()
    return min(times)


def _throwaways(verifier: Model, drafter: Drafter, n: int, prompt: int) -> Batch:
    batch = Batch(verifier, drafter, lambda n: StepCosts(((0, 1.0),)))
    known = [i for i in range(min(verifier.vocabulary.size, 4096)) if not verifier.vocabulary.strangers([i])]
    for row in range(n):
        ids = tuple(known[(row * 31 + place * 7) % len(known)] for place in range(prompt))
        job = Job(ids, Lossless(), 0, SamplingParams(), _NO_END, seed=row)
        batch.admit(Decoding(job, Stops(frozenset(), frozenset(), (), _NO_END, None)))
    return batch


def _longest(batch: Batch) -> int:
    return max(len(decoding.settled) for decoding in batch.decodings)


def _whole(proposal: Proposal, m: int) -> Proposal:
    """The proposal, or m certain tokens per row where the drafter found fewer: a lookup without a match."""
    n = len(proposal.lengths)
    if min(proposal.lengths) == m:
        return proposal
    return Proposal(torch.ones(n, m, dtype=torch.long, device=proposal.ids.device), (m,) * n, None)
