"""The examination of a pair: settle the threads, time, count, predict, and race both ways in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import cycle, islice
from typing import cast

import torch

from cactus_decoding.diagnosis.prediction import DEEPEST, Acceptance, acceptance_of, best_draft, median_costs, predict
from cactus_decoding.diagnosis.report import Diagnosis, Length, Match, Plan, Side, Speed, ThreadTimes, Trial, speed_of
from cactus_decoding.diagnosis.timing import best_threads, thread_counts, time_blocks, time_threads
from cactus_decoding.drafters import ModelDrafter
from cactus_decoding.errors import InvalidParameter
from cactus_decoding.generation.costs import measure_step_costs
from cactus_decoding.generation.drafting import StepCosts
from cactus_decoding.generation.events import Event
from cactus_decoding.generation.output import Output
from cactus_decoding.generation.pair import Pair
from cactus_decoding.generation.prompt import Prompt, encode_prompt
from cactus_decoding.generation.request import Options
from cactus_decoding.generation.statistics import Statistics, total
from cactus_decoding.models.base import NO_LIMIT, Model, Vocabulary
from cactus_decoding.rules import Lossless, Rule

_NEW_TOKENS = 64

Watch = Callable[[str, int, int], None]
"""Told what is done now, how many parts are done, and how many there are."""


def diagnose(
    pair: Pair, prompts: Sequence[Prompt], plan: Plan | None = None, watch: Watch = lambda what, done, parts: None
) -> Diagnosis:
    """Examine a pair. The process's number of threads is put back at the end, whatever happens.

    Raises:
        InvalidParameter, InvalidPrompt: the plan or a prompt does not fit the pair.
        BrokenLogits: a model returned NaN (`BatchFailed` where several rows decode together).
    """
    before = torch.get_num_threads()
    try:
        return _Examination(pair, prompts, plan or Plan(), watch).run(before)
    finally:
        torch.set_num_threads(before)


class _Examination:
    """One pair under one plan."""

    def __init__(self, pair: Pair, prompts: Sequence[Prompt], plan: Plan, watch: Watch) -> None:
        if plan.rows < 1 or plan.rounds < 1:
            raise InvalidParameter(f"rows is {plan.rows} and rounds is {plan.rounds}, but both must be at least 1.")
        if not prompts:
            raise InvalidParameter("there is no prompt to measure acceptance on. Give at least one.")
        # a pair of its own: step costs measured with other threads are neither used nor left behind
        self._pair = Pair(pair.verifier, pair.drafter, pair.tokenizer, pair.eos)
        self._plan = plan
        ids = [[*encode_prompt(prompt, pair.tokenizer, pair.verifier.vocabulary, None)] for prompt in prompts]
        self._groups = [[i] for i in ids] if plan.rows == 1 else [_repeated(ids, 2 * plan.rows)]
        room = pair.verifier.context - max(map(len, ids))
        self._cap = max(1, min(_NEW_TOKENS, room)) if plan.new_tokens is None else plan.new_tokens
        self._watch = watch
        self._done = 0

    def run(self, default_threads: int) -> Diagnosis:
        began, verifier = time.perf_counter(), self._pair.verifier
        drafter = self._pair.drafter if isinstance(self._pair.drafter, ModelDrafter) else None
        thread_times = self._settle_threads(default_threads)
        self._tick("timing forwards")
        blocks = [*time_blocks([verifier, *([drafter.model] if drafter else [])], self._plan.rows), ()]
        costs, acceptances = self._survey()
        draft_cost = blocks[1][0].seconds / blocks[0][0].seconds if drafter else 0.0
        alone, trials = self._try(costs, acceptances, draft_cost)
        return Diagnosis(
            verifier=_side(verifier, verifier.vocabulary),
            drafter=_side(drafter.model, drafter.tokens) if drafter else None,
            match=_match(verifier.vocabulary, drafter) if drafter else None,
            plan=self._plan,
            threads=torch.get_num_threads(),
            default_threads=default_threads,
            thread_times=thread_times,
            verifier_blocks=blocks[0],
            drafter_blocks=blocks[1],
            costs=costs,
            alone=alone,
            trials=trials,
            seconds=time.perf_counter() - began,
        )

    def _try(
        self, costs: StepCosts, acceptances: Sequence[Acceptance], draft_cost: float
    ) -> tuple[Speed, tuple[Trial, ...]]:
        """The verifier alone, and each rule: what is promised, and what comes of it."""
        predictions = [predict(costs, acceptance, self._plan.rows) for acceptance in acceptances]
        alone, *speeds = self._race([best_draft(each) for each in predictions])
        found = zip(self._plan.rules, acceptances, predictions, speeds[::2], speeds[1::2])
        return alone, tuple(Trial(rule, a, p, draft_cost, fixed, auto) for rule, a, p, fixed, auto in found)

    @property
    def _parts(self) -> int:
        rules, groups = len(self._plan.rules), len(self._groups)
        return 2 + self._plan.rows + self._plan.rounds * (1 + groups * (1 + 3 * rules))

    def _tick(self, what: str) -> None:
        self._watch(what, self._done, self._parts)
        self._done += 1

    def _settle_threads(self, default: int) -> tuple[ThreadTimes, ...]:
        """Set the number of threads: what is asked for, or the best of those tried. On a GPU they matter little."""
        self._tick("trying threads")
        if self._plan.threads is not None:
            torch.set_num_threads(self._plan.threads)
            return ()
        if self._pair.verifier.device.type != "cpu":
            return ()
        times = time_threads(self._pair.verifier, self._plan.rows, thread_counts(default))
        torch.set_num_threads(best_threads(times))
        return times

    def _survey(self) -> tuple[StepCosts, list[Acceptance]]:
        """Costs and, for each rule, acceptance, in turns: a busy moment spoils one of the cost measurements at most."""
        costs: list[StepCosts] = []
        events: list[list[Event]] = [[] for _ in self._plan.rules]
        for number in range(1, self._plan.rounds + 1):
            self._tick("timing steps")
            costs.append(measure_step_costs(self._pair.verifier, self._pair.drafter, self._plan.rows))
            for place, rule in enumerate(self._plan.rules):
                for group, _ in enumerate(self._groups):
                    self._tick("counting acceptance")
                    outputs = self._generate(group, self._plan.rounds + number, rule, DEEPEST)
                    events[place] += [event for output in outputs for event in output.events]
        return median_costs(costs), [acceptance_of(mine, self._cap) for mine in events]

    def _race(self, lengths: Sequence[int]) -> list[Speed]:
        """The verifier alone, then each rule with its fixed m and with "auto"; group by group they take turns."""
        for n in range(1, self._plan.rows + 1):
            self._tick("timing steps")
            self._pair.step_costs(n)  # for "auto", which would otherwise measure them in the middle of the race
        ways: list[tuple[Rule, Length]] = [(Lossless(), 0)]
        for rule, m in zip(self._plan.rules, lengths):
            ways += [(rule, m), (rule, "auto")]
        rounds = [self._round(number, ways) for number in range(1, self._plan.rounds + 1)]
        by_way = [*zip(*rounds)]
        return [speed_of(m, mine, by_way[0]) for (_, m), mine in zip(ways, by_way)]

    def _round(self, number: int, ways: Sequence[tuple[Rule, Length]]) -> list[Statistics]:
        """The sum over all prompts, for each way."""
        outputs: list[list[Output]] = [[] for _ in ways]
        for group, _ in enumerate(self._groups):
            for place, (rule, m) in enumerate(ways):
                self._tick("racing")
                outputs[place] += self._generate(group, number, rule, m)
        return [total(output.stats for output in mine) for mine in outputs]

    def _generate(self, group: int, number: int, rule: Rule, m: Length) -> list[Output]:
        options: Options = {"rule": rule, "m": m, "seed": self._plan.seed + 1000 * number + group}
        options |= {"max_new_tokens": self._cap, **cast(Options, asdict(self._plan.sampling))}
        return self._pair.generate(self._groups[group], rows=self._plan.rows, **options)


def _repeated(ids: Sequence[list[int]], least: int) -> list[list[int]]:
    """The prompts over again until there are enough, lest a batch is half empty most of the time."""
    return list(islice(cycle(ids), max(len(ids), least)))


def _side(model: Model, tokens: Vocabulary) -> Side:
    module = getattr(model, "module", None)
    count = tokens.size - len(tokens.missing)
    return Side(
        name=model.name,
        parameters=sum(parameter.numel() for parameter in module.parameters()) if module else None,
        dtype=str(module.dtype).removeprefix("torch.") if module else None,
        device=str(model.device),
        way=model.way,
        context=None if model.context >= NO_LIMIT else model.context,
        tokens=count,
        padded=model.rows - count,
    )


def _match(verifier: Vocabulary, drafter: ModelDrafter) -> Match:
    """The drafting model's vocabulary is the verifier's without what the drafter's own tokenizer lacks."""
    joint = drafter.model.vocabulary
    shared = joint.size - len(joint.missing)
    ours, theirs = (tokens.size - len(tokens.missing) for tokens in (verifier, drafter.tokens))
    return Match(shared, ours - shared, theirs - shared)
