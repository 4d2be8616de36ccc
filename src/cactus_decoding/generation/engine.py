"""The loop: draft, score, verify, rewind, for a batch of responses side by side.

Knows ids and laws only; text enters through `Stops`. Both caches lag behind the settled ids by what was emitted
last, so each step feeds one verifier call with that id and the drafted ones, and no forward is spent on feeding
alone; a prompt rides in the first call where nobody would have to wait for it.

Nothing a row draws, keeps or emits depends on its neighbours: its random numbers are its own, its laws are made of
its own logits, and its caches have their own lengths.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cactus_decoding.drafters.base import Drafter, Proposal
from cactus_decoding.errors import BrokenLogits
from cactus_decoding.generation.audit import audit_places
from cactus_decoding.generation.drafting import AcceptanceHistory, StepCosts, choose_m
from cactus_decoding.generation.events import Event, ListedVerdicts, Top, event_of, listed
from cactus_decoding.generation.stops import Stops
from cactus_decoding.held import Laws, held
from cactus_decoding.laws import Shaping, laws_of
from cactus_decoding.models.base import Model
from cactus_decoding.models.feeding import feed_pending, padded
from cactus_decoding.rules.base import Rule
from cactus_decoding.sampling import Purpose, RandomStream
from cactus_decoding.verify import Verdict, verify


@dataclass(frozen=True, slots=True)
class Job:
    """One response to make."""

    prompt: tuple[int, ...]
    rule: Rule
    m: int | None
    """Draft length; None adapts it, 0 leaves the verifier alone."""
    shaping: Shaping
    max_new_tokens: int
    seed: int
    max_relaxed: int | None = None
    """The budget of relaxed tokens; behind the last of them the rule is lossless."""
    block: bool = False
    """Whether whole blocks are decided, by the law that the rule emits."""
    audit: int = 0
    """Every audit-th verifier call is measured exactly; 0: none."""
    logprobs: int = 0
    """How many of the likeliest tokens each event lists per emitted one."""


class Decoding:
    """One response in the making."""

    def __init__(self, job: Job, stops: Stops) -> None:
        self.job = job
        self.stops = stops
        self.settled = list(job.prompt)
        self.events: list[Event] = []
        self.history = AcceptanceHistory()
        self.random = RandomStream(job.seed, 0)
        self.relaxed = 0
        self.closed = False
        self.error: Exception | None = None
        self.seconds = self.verifier_seconds = self.drafter_seconds = 0.0

    @property
    def ids(self) -> list[int]:
        return self.settled[len(self.job.prompt) :]

    @property
    def position(self) -> int:
        return len(self.settled) - len(self.job.prompt)

    @property
    def wanted(self) -> int:
        """How many more ids it may have."""
        return self.job.max_new_tokens - self.position

    @property
    def done(self) -> bool:
        """Whether the response has ended, failed or was closed."""
        return self.closed or self.stops.reason is not None

    @property
    def relaxed_left(self) -> int | None:
        """How many more relaxed tokens it may have; None: no limit."""
        return None if self.job.max_relaxed is None else self.job.max_relaxed - self.relaxed

    @property
    def due_for_audit(self) -> bool:
        """Whether the next event should carry exact figures."""
        return self.job.audit > 0 and len(self.events) % self.job.audit == 0

    def settle(self, tokens: Sequence[int]) -> int:
        """Append ids until the response ends; how many of them it took."""
        for used, token in enumerate(tokens, start=1):
            self.settled.append(token)
            if self.stops.push(token) is not None:
                return used
        return len(tokens)

    def note(self, event: Event) -> None:
        self.events.append(event)
        self.history.note(event)
        self.relaxed += event.relaxed


Observer = Callable[[Decoding, Tensor | None, Tensor, Tensor], None]
"""Called with a response, p ``[k, V]`` (None: certain drafts), q ``[k, V]`` and the drafted ids ``[k]``."""


class Batch:
    """Responses that are decoded together. `admit` and `drop` them between steps; `step` drops those that end.

    Args:
        costs: seconds of a step of n rows, for the responses that adapt their draft length.
        observe: told the laws of the places that each verifier call examined and a response took.
    """

    def __init__(
        self,
        verifier: Model,
        drafter: Drafter | None,
        costs: Callable[[int], StepCosts],
        observe: Observer | None = None,
    ) -> None:
        self._device = verifier.device
        self._verifier = verifier.open()
        self._drafter = drafter.open() if drafter else None
        self._costs = costs
        self._observe = observe
        self._watching = 0.0  # seconds spent on audits and observers, which are no part of decoding
        self.decodings: list[Decoding] = []

    def admit(self, decoding: Decoding) -> None:
        self._verifier.add()
        if self._drafter is not None:
            self._drafter.add(decoding.job.shaping)
        self.decodings.append(decoding)

    @torch.inference_mode()
    def drop(self, decoding: Decoding) -> None:
        """Take a response out and free its caches."""
        row = self.decodings.index(decoding)
        decoding.closed = True
        self._verifier.drop(row)
        if self._drafter is not None:
            self._drafter.drop(row)
        self.decodings[row] = self.decodings[-1]
        self.decodings.pop()

    def close(self) -> None:
        for decoding in self.decodings:
            decoding.closed = True
        self.decodings = []
        self._verifier.close()
        if self._drafter is not None:
            self._drafter.close()

    def step(self) -> None:
        """One verifier call. Each response gets 1 to m + 1 ids, never more than it still wants, or its error.

        Whatever else goes wrong within ends all of them with that error: their caches may hold ids that were never
        settled.
        """
        decodings, before, watched = list(self.decodings), self._model_seconds(), self._watching
        try:
            lengths = self._draft_lengths()  # measures costs when they are first needed: no response's own time
            began = time.perf_counter()
            self.examine(self.propose(lengths))
        except BaseException as error:
            for decoding in decodings:
                if isinstance(error, Exception) and not decoding.done:
                    decoding.error = error
            self.close()
            raise
        watched = self._watching - watched
        spent = [
            time.perf_counter() - began - watched,
            *(now - then for now, then in zip(self._model_seconds(), before)),
        ]
        for decoding in decodings:  # a step's time is shared by those it served
            decoding.seconds += spent[0] / len(decodings)
            decoding.verifier_seconds += spent[1] / len(decodings)
            decoding.drafter_seconds += spent[2] / len(decodings)
            if decoding.done:
                self.drop(decoding)

    def _model_seconds(self) -> tuple[float, float]:
        return self._verifier.seconds, self._drafter.seconds if self._drafter else 0.0

    def _draft_lengths(self) -> list[int]:
        """How many ids to draft for each response; one less than it still wants, at most."""
        adapting = [decoding.history for decoding in self.decodings if decoding.job.m is None]
        adapted = choose_m(self._costs(len(self.decodings)), adapting) if adapting and self._drafter else 0
        wanted = [adapted if decoding.job.m is None else decoding.job.m for decoding in self.decodings]
        return [min(m, decoding.wanted - 1) for m, decoding in zip(wanted, self.decodings)]

    @torch.inference_mode()
    def propose(self, counts: Sequence[int]) -> Proposal:
        """Up to ``counts[i]`` drafted ids for each response."""
        n, most = len(counts), max(counts)
        if self._drafter is None or most < 1:
            return Proposal(torch.empty(n, 0, dtype=torch.long, device=self._device), (0,) * n, None)
        u = torch.stack([d.random.at(d.position, most)[Purpose.DRAFT] for d in self.decodings])
        proposal = self._drafter.propose([d.settled for d in self.decodings], counts, u)
        p = None if proposal.p is None else held(proposal.p).to(self._device)
        return Proposal(proposal.ids.to(self._device), proposal.lengths, p)

    @torch.inference_mode()
    def examine(self, proposal: Proposal) -> None:
        """Score the proposal, settle what is kept and emitted, and rewind the caches to it."""
        q = self._score(proposal)
        k = proposal.ids.shape[1]
        numbers = torch.stack([d.random.at(d.position, k + 1) for d in self.decodings], dim=1).to(self._device)
        tops = self._tops(q)
        for row, verdicts, place in self._verify(proposal, q, numbers):
            self._settle(row, verdicts, place, proposal, q, tops[row])

    def _score(self, proposal: Proposal) -> Laws:
        """The verifier's laws ``[n, k + 1, V]`` at the drafted positions and the one behind them."""
        befores = [decoding.settled for decoding in self.decodings]
        unseen = [ids[held:] for ids, held in zip(befores, self._verifier.lengths)]
        pendings = feed_pending(self._verifier, unseen, self._device)
        keep = [length + 1 for length in proposal.lengths]
        counts = [len(pending) + length for pending, length in zip(pendings, proposal.lengths)]
        logits = self._verifier.extend(_joined(pendings, proposal, max(counts), self._device), counts, keep)
        shapings = [decoding.job.shaping for decoding in self.decodings]
        return laws_of(logits, shapings, befores, proposal.ids, proposal.lengths, keep)

    def _verify(
        self, proposal: Proposal, q: Laws, numbers: Tensor
    ) -> list[tuple[int, ListedVerdicts | BrokenLogits, int]]:
        """(row, verdicts, place in them) of every row, a call per rule; a row with broken laws gets its error."""
        groups: dict[tuple[Rule, bool], list[int]] = {}
        for row, decoding in enumerate(self.decodings):
            groups.setdefault((decoding.job.rule, decoding.job.block), []).append(row)
        found: list[tuple[int, ListedVerdicts | BrokenLogits, int]] = []
        for rows in groups.values():
            try:
                verdicts = self._verify_rows(proposal, q, numbers, rows)
                found += [(row, verdicts, place) for place, row in enumerate(rows)]
            except BrokenLogits:
                found += [(row, self._verify_alone(proposal, q, numbers, row), 0) for row in rows]
        return found

    def _verify_alone(self, proposal: Proposal, q: Laws, numbers: Tensor, row: int) -> ListedVerdicts | BrokenLogits:
        try:
            return self._verify_rows(proposal, q, numbers, [row])
        except BrokenLogits as error:
            return BrokenLogits(f"behind token {self.decodings[row].position} of the response, {error}")

    def _verify_rows(self, proposal: Proposal, q: Laws, numbers: Tensor, rows: list[int]) -> ListedVerdicts:
        """Of rows with the same rule."""
        job = self.decodings[rows[0]].job
        k = max(proposal.lengths[row] for row in rows)
        chosen = None if len(rows) == len(self.decodings) else rows

        def those(x: Tensor) -> Tensor:
            return x if chosen is None else x[chosen]

        budgets = [self.decodings[row].relaxed_left for row in rows]
        limited = any(budget is not None for budget in budgets)
        left = [2**62 if budget is None else budget for budget in budgets]
        return listed(
            verify(
                draft=those(proposal.ids)[:, :k],
                p=None if proposal.p is None else held(proposal.p).part(chosen, k),
                q=q.part(chosen, k + 1),
                rule=job.rule,
                block=job.block,
                u=those(numbers[Purpose.ACCEPT])[:, :k],
                u_emit=those(numbers[Purpose.EMIT])[:, : k + 1],
                lengths=torch.tensor([proposal.lengths[row] for row in rows], device=self._device),
                relaxed_left=torch.tensor(left, device=self._device) if limited else None,
            )
        )

    def _settle(
        self, row: int, verdicts: ListedVerdicts | BrokenLogits, place: int, proposal: Proposal, q: Laws, top: Top
    ) -> None:
        decoding = self.decodings[row]
        if isinstance(verdicts, BrokenLogits):
            decoding.error, decoding.closed = verdicts, True
            return
        position, before, kept = decoding.position, len(decoding.settled), verdicts.kept[place]
        used = decoding.settle([*verdicts.draft[place][:kept], verdicts.emitted[place]])
        audit = None
        if decoding.due_for_audit or self._observe is not None:
            began = time.perf_counter()
            p, q_rows, draft, examined = _examined(row, verdicts.verdict[place][:used], proposal, q)
            if self._observe is not None:
                self._observe(decoding, p, q_rows, draft)
            if decoding.due_for_audit:
                audit = audit_places(p, q_rows, draft, decoding.job.rule, examined, decoding.relaxed_left)
            self._watching += time.perf_counter() - began
        decoding.note(event_of(verdicts, place, position, proposal.lengths[row], used, top[:used], audit))
        self._verifier.rewind(row, before + kept)
        if self._drafter is not None:
            self._drafter.accept(row, before + kept)

    def _tops(self, q: Laws) -> list[Top]:
        """For each row that wants them, the likeliest (id, q) at every position."""
        return [
            _likeliest(q.part([row], q.shape[1]).dense()[0], decoding.job.logprobs) if decoding.job.logprobs else ()
            for row, decoding in enumerate(self.decodings)
        ]


def _examined(
    row: int, codes: Sequence[int], proposal: Proposal, q: Laws
) -> tuple[Tensor | None, Tensor, Tensor, list[Verdict]]:
    """Of the places of a row, those that were examined and that the response took: p and q there, ids and verdicts."""
    verdicts = [Verdict(code) for code in codes if code in (Verdict.KEPT, Verdict.RELAXED, Verdict.REFUSED)]
    k = len(verdicts)
    p = None if proposal.p is None else held(proposal.p).part([row], k).dense()[0]
    return p, q.part([row], k).dense()[0], proposal.ids[row, :k], verdicts


def _likeliest(q: Tensor, count: int) -> Top:
    values, ids = q.topk(min(count, q.shape[-1]), dim=-1)
    return tuple(tuple(zip(*row)) for row in zip(ids.tolist(), values.tolist()))


def _joined(pendings: Sequence[Sequence[int]], proposal: Proposal, width: int, device: torch.device) -> Tensor:
    """``[n, width]``: each row's pending ids, then its drafted ones, then padding."""
    ids, longest = padded(pendings, device), max(map(len, pendings))
    if min(map(len, pendings)) == longest:
        return torch.cat([ids, proposal.ids], dim=1)[:, :width]
    joined = torch.nn.functional.pad(ids, (0, width - longest))
    for row, (pending, length) in enumerate(zip(pendings, proposal.lengths)):
        joined[row, len(pending) : len(pending) + length] = proposal.ids[row, :length]
    return joined
