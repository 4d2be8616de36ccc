"""Positions of a pair: what the verifier examines when it decodes a person's prompts without loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor

from cactus_decoding.calibration.positions import LIMIT, Positions
from cactus_decoding.errors import InvalidParameter
from cactus_decoding.generation.engine import Batch, Decoding
from cactus_decoding.generation.pair import Pair
from cactus_decoding.generation.prompt import Prompt, encode_prompt
from cactus_decoding.generation.request import whole
from cactus_decoding.generation.session import Session, Stream
from cactus_decoding.rules import Lossless
from cactus_decoding.sampling import SamplingParams
from cactus_decoding.verify import point_masses

Watch = Callable[[int], None]
"""Told how many positions there are by now."""


def record(
    pair: Pair,
    prompts: Sequence[Prompt],
    sampling: SamplingParams | None = None,
    *,
    count: int = 2000,
    m: int = 5,
    max_new_tokens: int | None = None,
    rows: int = 8,
    seed: int = 1,
    limit: int = LIMIT,
    watch: Watch = lambda found: None,
) -> Positions:
    """Decode the prompts, with the lossless rule, until ``count`` positions were examined.

    The prompts are gone through again, with other random numbers, as often as it takes.

    Args:
        m: draft length; places behind a refusal are not examined, as in use.
        max_new_tokens: per response, as `Pair.generate` has it.
        rows: responses that decode together.
        seed: that of the first response, the others count up.
        limit: bytes for all positions.

    Raises:
        InvalidParameter, InvalidPrompt: the options or a prompt do not fit; or nothing was drafted in a whole pass.
        BrokenLogits: a model returned NaN.
    """
    if sampling is not None and sampling.greedy:
        raise InvalidParameter(
            "temperature is 0, where the verifier's law is one token and no setting moves it. Calibrate at the "
            "temperature you decode at, above 0."
        )
    if not prompts:
        raise InvalidParameter("there is no prompt to calibrate on. Give at least one.")
    positions = Positions(whole("count", count, 1), limit)
    prompt_of: dict[Decoding, int] = {}

    def observe(decoding: Decoding, p: Tensor | None, q: Tensor, draft: Tensor) -> None:
        room = count - len(positions)
        if len(draft) and room > 0:
            p = point_masses(draft, q) if p is None else p
            positions.add(p[:room], q[:room], prompt_of[decoding])

    ids = [[*encode_prompt(prompt, pair.tokenizer, pair.verifier.vocabulary, None)] for prompt in prompts]
    options: dict[str, Any] = {"rule": Lossless(), "m": whole("m", m, 1), "max_new_tokens": max_new_tokens}
    options |= asdict(sampling or SamplingParams())
    batch = Batch(pair.verifier, pair.drafter, pair.step_costs, observe)
    with Session(batch, pair.prepare, whole("rows", rows, 1), 0) as session:
        streams: list[Stream] = []
        while len(positions) < count:
            before = len(positions)
            for place, prompt in enumerate(ids):
                decoding = pair.prepare(prompt, **options, seed=seed + len(streams))
                prompt_of[decoding] = place
                streams.append(session.submit_prepared(decoding))
                watch(len(positions))
                if len(positions) >= count:
                    return positions
            session.run()
            for stream in streams:
                if stream.error is not None:
                    raise stream.error
            watch(len(positions))
            if len(positions) == before:
                raise InvalidParameter(
                    f"nothing was drafted for any of the {len(prompts)} prompts, so there is nothing to calibrate. A "
                    "lookup needs texts that repeat themselves; a drafting model needs room in its context."
                )
    return positions
