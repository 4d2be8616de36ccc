"""Loading a pair while a person waits."""

from __future__ import annotations

import torch
from transformers.utils import logging

from cactus_decoding.cli.console import err
from cactus_decoding.generation.loading import load_pair
from cactus_decoding.generation.pair import Pair


def load(model: str, draft: str | None, dtype: str | None, device: str | None, threads: int | None) -> Pair:
    """`load_pair` behind a spinner, without the library's own bars; ``threads`` is set first if given."""
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if threads is not None:
        torch.set_num_threads(threads)
    with err.status("loading the pair"):
        return load_pair(model, draft, dtype=dtype, device=device)
