"""One verification by vLLM's own sampler, with the drafted tokens' logits shifted while it runs."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cactus_decoding.integrations.vllm.ledger import Ledger
from cactus_decoding.integrations.vllm.marks import uniforms
from cactus_decoding.integrations.vllm.relaxation import RESOLVED, Relaxation, resolved_relaxation
from cactus_decoding.integrations.vllm.shift import Dials, Lift, lift, write

_ENDLESS = 2**31 - 1


@dataclass(slots=True)
class Member:
    """A live request that is relaxed."""

    relaxation: Relaxation
    key: int
    """Of its `marks.uniforms`."""
    log: bool = False
    """Whether its counts are logged when it ends."""
    marked: int = 0
    """How many of those numbers are used up."""
    spent: Tensor | None = None
    """Of a capped request: how many tokens were relaxed, a scalar on the device; None before its first verification."""

    @classmethod
    def of(cls, request: str, sampling_params: Any) -> Member | None:
        """The request as its parameters say; None where it is lossless."""
        relaxation = resolved_relaxation(sampling_params.extra_args, sampling_params.temperature)
        if relaxation is None:
            return None
        seed = sampling_params.seed
        # every rank of a tensor-parallel group knows the request by the same name
        name = f"seed {seed}" if seed is not None else f"request {request}"
        key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little", signed=True)
        return cls(relaxation, key, sampling_params.extra_args[RESOLVED]["log"])


@dataclass(frozen=True, slots=True)
class Drafts:
    """The rows of one verification, ``[N]`` each."""

    n: Tensor
    """Drafted tokens; -1 where a row has none, as the row behind the last draft."""
    owner: Tensor
    """Which request of the batch a row belongs to."""
    place: Tensor
    """Which draft of its request a row is, from 0."""


@dataclass(slots=True)
class Relaxer:
    """The relaxed requests of one model runner, by their names."""

    members: dict[str, Member] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)

    seen: dict[str, Any] = field(default_factory=dict)
    """Every live request's sampling parameters, as they were judged."""

    def add(self, request: str, sampling_params: Any) -> None:
        """A request enters, comes back after a preemption, or goes on with other parameters: its counts stay."""
        if self.seen.get(request) is sampling_params:
            return
        self.seen[request] = sampling_params
        before, member = self.members.pop(request, None), Member.of(request, sampling_params)
        if member is not None:
            if before is not None:
                member.marked, member.spent = before.marked, before.spent
            self.members[request] = member

    def finish(self, requests: Iterable[str]) -> None:
        """Requests have left for good."""
        for request in requests:
            self.seen.pop(request, None)
            member = self.members.pop(request, None)
            if member is not None:
                self.ledger.finish(request, member.relaxation, member.log)

    def verify(
        self,
        batch: Sequence[str],
        logits: Tensor,
        drafts: Drafts,
        places: Sequence[int],
        probability_of_draft: Callable[[], Tensor],
        sample: Callable[[Tensor], Any],
        accepted_in: Callable[[Any], Tensor],
    ) -> Any:
        """``sample(logits)`` with the drafted tokens of the relaxed requests lifted, and the counts kept.

        Args:
            batch: the requests of this verification, in order; at least one of them is relaxed.
            logits: ``[N, V]`` from which the engine would sample losslessly. Changed while ``sample`` runs, and put
                back, because the engine reads log-probabilities from them.
            drafts: the rows.
            places: the drafts of each request, or at least as many; of itself alone, never of its neighbours.
            probability_of_draft: gives p(n), ``[N]``.
            sample: the engine's sampler.
            accepted_in: how many drafts of each request were kept, ``[B]``, from what ``sample`` gave.
        """
        members = [self.members.get(request) for request in batch]
        # a place relaxes at most one token, so as many places as tokens are left can never exceed the cap
        open_ = drafts.place < _left(members, logits.device)[drafts.owner]
        dials = Dials.of([None if m is None else m.relaxation for m in members], logits.device)
        if logits.dtype != torch.float32:
            logits = logits.float()
        lifted = lift(logits, drafts.n, dials.rows(drafts.owner, open_))
        write(logits, drafts.n, lifted.lifted)
        try:
            sampled = sample(logits)
        finally:
            write(logits, drafts.n, lifted.logit)
        accepted = accepted_in(sampled)
        marks = _marks(members, places, drafts)
        relaxed = _per_request(
            relaxed_rows(lifted, drafts, accepted, probability_of_draft(), marks), drafts, len(batch)
        )
        drafted = _per_request(drafts.n >= 0, drafts, len(batch))
        for place, member in _capped(members):
            member.spent = relaxed[place] if member.spent is None else member.spent + relaxed[place]
        names = [None if member is None else request for request, member in zip(batch, members)]
        self.ledger.note(names, torch.stack([drafted, accepted, relaxed], 1))
        return sampled


_verifying: ContextVar[tuple[Relaxer, list[str]] | None] = ContextVar("cactus_verifying", default=None)
"""Whose rows are being verified, for the function that samples and knows only rows."""


def during(relaxer: Relaxer, batch: list[str], proceed: Callable[[], Any]) -> Any:
    """``proceed()``, with these requests the ones that are verified; nothing more where none of them is relaxed."""
    if not any(request in relaxer.members for request in batch):
        return proceed()
    token = _verifying.set((relaxer, batch))
    try:
        return proceed()
    finally:
        _verifying.reset(token)


def verified_now() -> tuple[Relaxer, list[str]] | None:
    """What `during` said; None where nothing is to be relaxed."""
    return _verifying.get()


def relaxed_rows(lifted: Lift, drafts: Drafts, accepted: Tensor, p: Tensor, marks: Tensor) -> Tensor:
    """Which rows' tokens were kept only because they were lifted, ``[N]`` booleans.

    The engine's own u is not to be had: its kernel draws it. Of a kept token u is uniform below min(1, gamma / p), and
    the token is relaxed where q / p <= u; so a mark drawn afresh with that probability,
    ``1 - min(p, q) / min(p, gamma)``, has the joint law of the true one with everything that was emitted.

    Args:
        lifted: of the verification.
        drafts: its rows.
        accepted: ``[B]``, how many drafts of each request were kept.
        p: ``[N]``, the drafter's probability of the drafted token.
        marks: ``[N]`` uniform numbers.
    """
    kept = (drafts.n >= 0) & (drafts.place < accepted[drafts.owner])
    p = p.double()
    share = torch.minimum(p, lifted.q) / torch.minimum(p, lifted.gamma)
    return kept & (marks >= share)


def _capped(members: Sequence[Member | None]) -> list[tuple[int, Member]]:
    """The members whose relaxed tokens are bounded, with their places in the batch."""
    return [(i, m) for i, m in enumerate(members) if m is not None and m.relaxation.max_relaxed is not None]


def _left(members: Sequence[Member | None], device: torch.device) -> Tensor:
    """``[B]``, how many tokens may still be relaxed."""
    caps = [None if member is None else member.relaxation.max_relaxed for member in members]
    left = torch.tensor([_ENDLESS if cap is None else cap for cap in caps]).to(device, non_blocking=True)
    for place, member in _capped(members):
        if member.spent is not None:
            left[place] -= member.spent
    return left


def _marks(members: Sequence[Member | None], places: Sequence[int], drafts: Drafts) -> Tensor:
    """``[N]`` uniform numbers that depend on the request, its seed and its own steps alone."""
    numbers = [(0, 0) if member is None else (member.key, member.marked) for member in members]
    key, marked = torch.tensor(numbers).to(drafts.n.device, non_blocking=True).unbind(1)
    for member, count in zip(members, places):
        if member is not None:
            member.marked += count
    return uniforms(key[drafts.owner], marked[drafts.owner] + drafts.place)


def _per_request(rows: Tensor, drafts: Drafts, requests: int) -> Tensor:
    """How many of a request's rows are True, ``[B]``."""
    return torch.zeros(requests, dtype=torch.int64, device=rows.device).index_add_(0, drafts.owner, rows.long())


def places_of(counts: Sequence[int]) -> list[int]:
    """0, 1, ... for each count in turn."""
    return list(itertools.chain.from_iterable(map(range, counts)))
