"""One verification by vLLM's own sampler, with the drafted tokens' logits shifted while it runs."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cactus_decoding.integrations.vllm.ledger import Ledger
from cactus_decoding.integrations.vllm.relaxation import RESOLVED, Relaxation, resolved_relaxation
from cactus_decoding.integrations.vllm.shift import Dials, Lift, lift, write
from cactus_decoding.sampling import Purpose, RandomStream

_MARKS = 0xCAC705  # a stream of its own beside those of a seed's other uses
_ENDLESS = 2**31 - 1


@dataclass(slots=True)
class Member:
    """A live request that is relaxed."""

    relaxation: Relaxation
    stream: RandomStream
    log: bool = False
    """Whether its counts are logged when it ends."""
    marked: int = 0
    """Uniform numbers of the stream that are used up."""
    spent: Tensor | None = None
    """How many of its tokens were relaxed, a scalar on the device; None before the first verification."""

    @classmethod
    def of(cls, request: str, sampling_params: Any) -> Member | None:
        """The request as its parameters say; None where it is lossless."""
        relaxation = resolved_relaxation(sampling_params.extra_args, sampling_params.temperature)
        if relaxation is None:
            return None
        seed = sampling_params.seed
        if seed is None:  # every rank of a tensor-parallel group knows the request by the same name
            seed = int.from_bytes(hashlib.blake2b(request.encode(), digest_size=8).digest(), "little")
        return cls(relaxation, RandomStream(seed % 2**64, _MARKS), sampling_params.extra_args[RESOLVED]["log"])


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

    def add(self, request: str, sampling_params: Any) -> None:
        """A request enters; one that was preempted and comes back goes on where it was."""
        member = Member.of(request, sampling_params)
        if member is not None and request not in self.members:
            self.members[request] = member

    def finish(self, requests: Iterable[str]) -> None:
        """Requests have left for good."""
        for request in requests:
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
        spent = _spent(members, logits.device)
        left = torch.tensor([_cap(member) for member in members], device=logits.device) - spent
        # a place relaxes at most one token, so as many places as tokens are left can never exceed the cap
        open_ = drafts.place < left[drafts.owner]
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
        marks = _marks(members, places, logits.device)
        relaxed = relaxed_rows(lifted, drafts, accepted, probability_of_draft(), marks)
        self._settle(batch, members, drafts, accepted, _per_request(relaxed, drafts, len(batch)), spent)
        return sampled

    def _settle(
        self,
        batch: Sequence[str],
        members: Sequence[Member | None],
        drafts: Drafts,
        accepted: Tensor,
        relaxed: Tensor,
        spent: Tensor,
    ) -> None:
        drafted = _per_request(drafts.n >= 0, drafts, len(batch))
        for member, total in zip(members, (spent + relaxed).unbind()):
            if member is not None:
                member.spent = total
        names = [None if member is None else request for request, member in zip(batch, members)]
        self.ledger.note(names, torch.stack([drafted, accepted, relaxed], 1))


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
        marks: ``[B, places]`` uniform numbers.
    """
    kept = (drafts.n >= 0) & (drafts.place < accepted[drafts.owner])
    p = p.double()
    share = torch.minimum(p, lifted.q) / torch.minimum(p, lifted.gamma)
    u = marks[drafts.owner, drafts.place.clamp_max(marks.shape[1] - 1)]
    return kept & (u >= share)


def _cap(member: Member | None) -> int:
    most = None if member is None else member.relaxation.max_relaxed
    return _ENDLESS if most is None else min(most, _ENDLESS)  # a larger one would not fit a tensor


def _spent(members: Sequence[Member | None], device: torch.device) -> Tensor:
    """``[B]``, tokens relaxed so far."""
    nothing = torch.zeros((), dtype=torch.int64, device=device)
    return torch.stack([nothing if m is None or m.spent is None else m.spent for m in members])


def _marks(members: Sequence[Member | None], places: Sequence[int], device: torch.device) -> Tensor:
    """``[B, most places]`` uniform numbers that depend on the request, its seed and its own steps alone."""
    marks = torch.zeros(len(members), max(1, *places), dtype=torch.float64)
    for row, member, count in zip(marks, members, places):
        if member is not None:
            row[:count] = member.stream.at(member.marked, count)[Purpose.ACCEPT]
            member.marked += count
    return marks.to(device, non_blocking=True)


def _per_request(rows: Tensor, drafts: Drafts, requests: int) -> Tensor:
    """How many of a request's rows are True, ``[B]``."""
    return torch.zeros(requests, dtype=torch.int64, device=rows.device).index_add_(0, drafts.owner, rows.long())


def places_of(counts: Sequence[int]) -> list[int]:
    """0, 1, ... for each count in turn."""
    return list(itertools.chain.from_iterable(map(range, counts)))
