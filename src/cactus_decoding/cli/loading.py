"""Loading a pair while a person waits."""

from __future__ import annotations

import torch
from transformers.utils import logging

from cactus_decoding.cli.console import err
from cactus_decoding.generation.loading import ABACUS, PROMPT_LOOKUP, load_pair
from cactus_decoding.generation.pair import Pair


def load(model: str, draft: str | None, dtype: str | None, device: str | None, threads: int | None) -> Pair:
    """`load_pair` behind a spinner; ``threads`` is set first if given. Downloads show the library's own bars."""
    hush(model, draft)
    if threads is not None:
        torch.set_num_threads(threads)
    with err.status("loading the pair"):
        return load_pair(model, draft, dtype=dtype, device=device)


def hush(model: str, draft: str | None) -> None:
    """No bars for what takes a moment."""
    if model == ABACUS and draft in (None, PROMPT_LOOKUP):
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
