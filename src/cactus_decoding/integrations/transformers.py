"""Speculation in a script that calls transformers' ``model.generate``: one keyword more, the same contract.

    model.generate(**inputs, custom_generate=cactus_decoding.hf.generate, draft_model=draft, rule=Cactus(0.25))

transformers prepares the call as always, with its own processors and stopping criteria, and hands it to `generate`
here in place of its own loop. Greedy decoding gives the tokens of plain ``generate``; sampling follows its law, or
that of the rule. What of the contract cannot be kept is refused by name, before anything is generated.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedTokenizerBase
from transformers.generation.stopping_criteria import (
    StoppingCriteriaList,
)
from transformers.generation.utils import GenerateDecoderOnlyOutput

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.generation.engine import Batch
from cactus_decoding.generation.pair import Pair
from cactus_decoding.generation.request import Options, whole
from cactus_decoding.generation.statistics import Statistics
from cactus_decoding.integrations.custom_generate.contract import (
    Streamer,
    complaints,
    left_paddings,
    one_streamer,
    with_stop_strings,
    withheld_arguments,
)
from cactus_decoding.integrations.custom_generate.pairs import pair_of
from cactus_decoding.integrations.custom_generate.processed_law import laws_of_rows
from cactus_decoding.integrations.custom_generate.steps import Row, Steps, cap_of, certain_ends, rows_of
from cactus_decoding.rules import Rule


def generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    *,
    draft_model: nn.Module | str | None = None,
    rule: Rule | None = None,
    m: int | Literal["auto"] = "auto",
    seed: int | None = None,
    max_relaxed: int | float | None = None,
    block: bool = False,
    audit: int = 0,
    statistics: list[Statistics] | None = None,
    stop_strings: str | list[str] | None = None,
    stop_tokenizer: PreTrainedTokenizerBase | None = None,
    token_streamer: Streamer | None = None,
    **model_kwargs: Any,
) -> Tensor | GenerateDecoderOnlyOutput:
    """The ``custom_generate=`` of ``model.generate``, which fills in the first five arguments and ``model_kwargs``.

    Args:
        draft_model: a small module of the same vocabulary, or "prompt-lookup".
        rule: the acceptance rule; `Lossless` by default.
        m: draft length, or "auto".
        seed: that of the first row, the others count up; by default drawn from torch's global generator.
        max_relaxed: the budget of relaxed tokens per row; see `cactus_decoding.generation.request.Options`.
        block: verify whole blocks, at the same law; not with max_relaxed, unless the rule is lossless.
        audit: measure every audit-th verifier call of a row exactly, for `Statistics.audit`; 0 is off.
        statistics: a list to which the `Statistics` of each row are added at the end.
        stop_strings, stop_tokenizer: the ``stop_strings`` and ``tokenizer`` of ``model.generate``, which takes the
            latter away from every callable.
        token_streamer: a ``streamer`` where this is called from elsewhere than ``model.generate``.

    Returns:
        ``[B, longest]`` ids, or with ``return_dict_in_generate`` the object of plain ``generate``, without its cache.

    Raises:
        InvalidParameter, InvalidPrompt: what is asked for cannot be done here.
        PairMismatch, ModelRefused: the modules do not fit each other, or cannot be rewound.
        BrokenLogits: a model returned NaN.
    """
    withheld = withheld_arguments()
    for complaint in complaints(model, draft_model, generation_config, model_kwargs, withheld):
        raise InvalidParameter(complaint)
    streamer = one_streamer(token_streamer, withheld.get("streamer"))
    paddings = left_paddings(input_ids, model_kwargs)
    criteria = with_stop_strings(stopping_criteria, stop_strings, stop_tokenizer)
    pair = pair_of(model, draft_model)
    laws = laws_of_rows(pair, input_ids, paddings, logits_processor, generation_config)
    options: Options = {"rule": rule, "m": m, "max_relaxed": max_relaxed, "block": block, "audit": audit}
    options["max_new_tokens"] = cap_of(criteria, generation_config, input_ids.shape[1])
    options["seed"] = _seed(seed, generation_config)
    prompts = [ids[padding:] for ids, padding in zip(input_ids.tolist(), paddings)]
    rows = rows_of(pair, prompts, laws, certain_ends(criteria), options)
    steps = Steps(input_ids, rows, criteria, generation_config, streamer)
    _warn_if_idle(rows[0], generation_config)
    if token_streamer is not None:  # to its own streamer, generate has shown the prompt
        token_streamer.put(input_ids.cpu())
    _run(pair, rows, steps)
    if streamer is not None:
        streamer.end()
    if statistics is not None:
        statistics += [row.statistics(length) for row, length in zip(rows, steps.lengths)]
    return steps.result()


def _run(pair: Pair, rows: Sequence[Row], steps: Steps) -> None:
    with closing(Batch(pair.verifier, pair.drafter, pair.step_costs)) as batch:
        for row in rows:
            batch.admit(row.decoding)
        while steps.running and batch.decodings:
            batch.step()
            for row in rows:
                row.take_in()
            for row in steps.advance():
                if not row.decoding.closed:
                    batch.drop(row.decoding)


def _warn_if_idle(row: Row, config: GenerationConfig) -> None:
    job = row.decoding.job
    if not config.do_sample and job.m != 0 and not job.rule.lossless:
        warnings.warn(
            f"{job.rule} does nothing without do_sample: the verifier's law is one token then, and no budget moves it.",
            stacklevel=3,
        )


def _seed(seed: int | None, config: GenerationConfig) -> int:
    """Greedy decoding draws nothing, so it leaves torch's generator as it is."""
    if seed is None:
        return int(torch.randint(2**63 - 1, ())) if config.do_sample else 0
    return whole("seed", seed, 0, 2**64 - 1)
