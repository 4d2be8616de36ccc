"""What a step really costs here: the engine's own steps, timed on throwaway responses."""

from __future__ import annotations

import time
from statistics import median

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
_ROUNDS = 40  # at most; one at least, which is all that a model gets whose round takes longer than
_ENOUGH = 1.0  # seconds, after which no further round begins
_NO_END = 1 << 30


def measure_step_costs(verifier: Model, drafter: Drafter, n: int) -> StepCosts:
    """Seconds of a step of ``n`` rows, drafting included, for a few draft lengths: medians over rounds.

    The lengths take turns, and a CPU's clock is this thread's own, so that whatever else the machine does slows them
    alike: the quotients are what counts. A step costs no more than a measured one that drafts more. A context too
    short for the longer blocks leaves them out.
    """
    prompt = min(_PROMPT, max(1, verifier.context // 4))
    lengths = [m for m in _LENGTHS if prompt + m + 4 <= verifier.context]
    if not lengths[1:]:  # a context of a handful of ids has no room to measure in, or to gain anything
        return StepCosts(((0, 1.0), (1, 2.0)))
    times: dict[int, list[float]] = {m: [] for m in lengths}
    began = time.perf_counter()
    for done in range(_ROUNDS):
        if done and time.perf_counter() - began > _ENOUGH:
            break
        for m, seconds in _one_round(verifier, drafter, n, prompt, lengths):
            times[m].append(seconds)
    medians = [(m, median(seconds)) for m, seconds in times.items()]
    rising = [(m, min(seconds for _, seconds in medians[place:])) for place, (m, _) in enumerate(medians)]
    return StepCosts(tuple(rising))


def _one_round(verifier: Model, drafter: Drafter, n: int, prompt: int, lengths: list[int]) -> list[tuple[int, float]]:
    """(m, seconds) of one step each, on responses that begin anew where the context ends."""
    clock = time.thread_time if verifier.device.type == "cpu" else time.perf_counter
    times: list[tuple[int, float]] = []
    batch = _throwaways(verifier, drafter, n, prompt)
    for m in lengths:
        if max(len(decoding.settled) for decoding in batch.decodings) + m + 1 > verifier.context:
            batch.close()
            batch = _throwaways(verifier, drafter, n, prompt)
        began = clock()
        _step(batch, n, m)
        times.append((m, clock() - began))
    batch.close()
    return times


def _throwaways(verifier: Model, drafter: Drafter, n: int, prompt: int) -> Batch:
    """Responses under way: both models have seen the prompt and taken a step."""
    batch = Batch(verifier, drafter, lambda n: StepCosts(((0, 1.0),)))
    known = sorted(set(range(verifier.vocabulary.size)) - set(verifier.vocabulary.missing))
    for row in range(n):
        ids = tuple(known[(row * 31 + place * 7) % len(known)] for place in range(prompt))
        job = Job(ids, Lossless(), 0, SamplingParams(), _NO_END, seed=row)
        batch.admit(Decoding(job, Stops(frozenset(), frozenset(), (), _NO_END, None)))
    _step(batch, n, 1)
    return batch


def _step(batch: Batch, n: int, m: int) -> None:
    """A step that examines m tokens per row: certain ones where the drafter finds fewer, a lookup without a match."""
    proposal = batch.propose([m] * n)
    if min(proposal.lengths) < m:
        proposal = Proposal(torch.ones(n, m, dtype=torch.long, device=proposal.ids.device), (m,) * n, None)
    batch.examine(proposal)
