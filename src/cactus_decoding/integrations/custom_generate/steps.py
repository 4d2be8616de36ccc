"""Rows that decode at a pace of their own, shown to criteria and streamer as plain ``generate`` shows its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    StoppingCriteriaList,
)
from transformers.generation.utils import GenerateDecoderOnlyOutput

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.generation.engine import Decoding
from cactus_decoding.generation.events import Event
from cactus_decoding.generation.pair import Pair
from cactus_decoding.generation.request import Options, decoding_of
from cactus_decoding.generation.statistics import Statistics, statistics_of
from cactus_decoding.generation.stops import Stops
from cactus_decoding.integrations.custom_generate.contract import Streamer
from cactus_decoding.integrations.custom_generate.processed_law import ProcessedLaw
from cactus_decoding.sampling import SamplingParams
from cactus_decoding.verify import Verdict


@dataclass
class Row:
    """One row of the batch in the making."""

    decoding: Decoding
    law: ProcessedLaw | None
    logits: list[Tensor] = field(default_factory=list)
    """``[V]`` per emitted id, where the law records them; after the processors:"""
    scores: list[Tensor] = field(default_factory=list)

    def token(self, place: int) -> int:
        return self.decoding.settled[len(self.decoding.job.prompt) + place]

    def take_in(self) -> None:
        """Note what the batch's step brought. Raises the error that ended the row."""
        if self.decoding.error is not None:
            raise self.decoding.error
        if self.law is not None and self.law.latest is not None:
            new = self.decoding.position - len(self.logits)
            raw, processed = self.law.latest
            self.logits += raw[:new].unbind()
            self.scores += processed[:new].unbind()

    def statistics(self, length: int) -> Statistics:
        decoding = self.decoding
        seconds = decoding.seconds, decoding.verifier_seconds, decoding.drafter_seconds
        return statistics_of((_cut(event, length) for event in decoding.events), *seconds, decoding.job.max_relaxed)


def _cut(event: Event, length: int) -> Event:
    """The event, had the response ended after ``length`` ids: what is behind was ignored."""
    left = max(0, length - event.position)
    if left >= len(event.tokens()):
        return event
    verdicts = (*event.verdicts[:left], *(Verdict.IGNORED,) * (len(event.draft) - left))
    audit = None if event.audit is None else event.audit[:left]
    kept = replace(event, verdicts=verdicts, top=event.top[:left], audit=audit)
    return replace(kept, emitted=None, q_emitted=None, h_emitted=None)


def rows_of(
    pair: Pair,
    prompts: Sequence[Sequence[int]],
    laws: Sequence[ProcessedLaw | SamplingParams],
    ends: frozenset[int],
    options: Options,
) -> list[Row]:
    """One row per prompt, with seeds that count up. Raises `InvalidParameter` or `InvalidPrompt`."""
    rows: list[Row] = []
    for number, (prompt, law) in enumerate(zip(prompts, laws)):
        own: Options = {**options, "seed": ((options["seed"] or 0) + number) % 2**64}
        job = decoding_of(prompt, own, pair.verifier, None, frozenset(), pair.drafter.certain).job
        stops = Stops(ends, frozenset(), (), job.max_new_tokens, None)
        rows.append(Row(Decoding(replace(job, shaping=law), stops), law if isinstance(law, ProcessedLaw) else None))
    return rows


def cap_of(criteria: StoppingCriteriaList, config: GenerationConfig, width: int) -> int:
    """The most ids a row may emit. Criteria are asked behind a first id, so that one always comes."""
    lengths = [criterion.max_length for criterion in criteria if type(criterion) is MaxLengthCriteria]
    return max(1, min(lengths, default=config.max_length) - width)


def certain_ends(criteria: StoppingCriteriaList) -> frozenset[int]:
    """Ids that end a row whatever else is asked, so that it need not decode on until the others have got as far."""
    ends = [criterion.eos_token_id for criterion in criteria if type(criterion) is EosTokenCriteria]
    return frozenset(int(token) for tensor in ends for token in tensor)


class Steps:
    """The steps that plain ``generate`` would have taken: one id for every row, then the criteria, then the streamer.

    Rows decode at a pace of their own. A step is taken as soon as every running row has got that far, and what a row
    has decoded behind the step that ended it is dropped. As in plain ``generate``, a row that has ended is padded
    where there is an end-of-text criterion, and otherwise goes on until all have ended.
    """

    def __init__(
        self,
        input_ids: Tensor,
        rows: Sequence[Row],
        criteria: StoppingCriteriaList,
        config: GenerationConfig,
        streamer: Streamer | None,
    ) -> None:
        self.running = list(range(len(rows)))
        self.lengths = [0] * len(rows)
        """How many ids each row has emitted."""
        self._rows = rows
        self._ids = input_ids
        self._criteria = criteria
        self._config = config
        self._streamer = streamer
        self._taken = 0
        self._unfinished = torch.ones(len(rows), dtype=torch.long, device=input_ids.device)
        self._pads = any(hasattr(criterion, "eos_token_id") for criterion in criteria)
        pad = config._pad_token_tensor
        self._pad = 0 if pad is None else int(pad)
        self._logits: tuple[Tensor, ...] | None = None
        self._scores: tuple[Tensor, ...] | None = None
        if config.return_dict_in_generate:
            self._logits = () if config.output_logits else None
            self._scores = () if config.output_scores else None
        if self._pads and pad is None and len(rows) > 1:
            raise InvalidParameter("pad_token_id is not set, and rows that end before others are padded. Pass it.")

    def advance(self) -> list[Row]:
        """Take every step that can be taken; the rows that ended."""
        ended: list[Row] = []
        while self.running and all(self._rows[row].decoding.position > self._taken for row in self.running):
            ended += self._step()
        return ended

    def _step(self) -> list[Row]:
        place, self._taken = self._taken, self._taken + 1
        running = set(self.running)
        tokens = [row.token(place) if number in running else self._pad for number, row in enumerate(self._rows)]
        newest = torch.tensor(tokens, device=self._ids.device)
        self._ids = torch.cat([self._ids, newest.unsqueeze(1)], dim=1)
        self._record(place, running)
        self._unfinished &= ~self._criteria(self._ids, self._scores)
        if self._streamer is not None:
            self._streamer.put(newest.cpu())
        going = [bool(left) for left in self._unfinished.tolist()]
        if not self._pads:
            going = [any(going)] * len(going)
        for row in self.running:
            self.lengths[row] = self._taken
        ended = [self._rows[row] for row in self.running if not going[row]]
        self.running = [row for row in self.running if going[row]]
        return ended

    def _record(self, place: int, running: set[int]) -> None:
        """``[B, V]`` logits and scores of a step, where they are asked for."""
        if self._logits is not None:
            self._logits += (self._side_by_side([row.logits for row in self._rows], place, running),)
        if self._scores is not None:
            self._scores += (self._side_by_side([row.scores for row in self._rows], place, running),)

    def _side_by_side(self, found: Sequence[Sequence[Tensor]], place: int, running: set[int]) -> Tensor:
        """Of a row that has ended: what makes its padding certain."""
        padding = torch.full_like(found[0][0], -torch.inf)
        padding[self._pad] = 0.0
        return torch.stack([of_row[place] if row in running else padding for row, of_row in enumerate(found)])

    def result(self) -> Tensor | GenerateDecoderOnlyOutput:
        if not self._config.return_dict_in_generate:
            return self._ids
        found: dict[str, Any] = {"sequences": self._ids, "scores": self._scores, "logits": self._logits}
        return GenerateDecoderOnlyOutput(**found)
