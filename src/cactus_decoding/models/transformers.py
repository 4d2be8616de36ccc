"""Models of the transformers library: hub ids, local folders, GGUF files, and modules already in memory."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, PreTrainedTokenizerBase

from cactus_decoding.errors import InvalidParameter, MissingExtra, ModelRefused
from cactus_decoding.models.base import NO_LIMIT, Vocabulary
from cactus_decoding.models.cache import RaggedCache
from cactus_decoding.models.llama import LlamaForward
from cactus_decoding.models.module import ModuleForward
from cactus_decoding.models.rows import Forward, RaggedRows, SeparateRows
from cactus_decoding.models.selftest import require_rewind

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class TransformersModel:
    """A causal language model of transformers, ready to open rows.

    How rows are computed is settled here, by trial: by the lean forward where the module is of its family and gives
    the same logits, by the module over a cache with a length per row, or by the module row after row.
    """

    def __init__(self, module: Any, name: str, vocabulary: Vocabulary) -> None:
        module.eval()
        self.module = module  # may be a weak reference, so not what eval() returns
        self.name = name
        self.vocabulary = vocabulary
        self.device = next(module.parameters()).device
        self.rows = int(module.get_input_embeddings().num_embeddings)
        self._missing = torch.tensor(vocabulary.missing, dtype=torch.long, device=self.device)
        if getattr(module.config, "is_encoder_decoder", False):
            raise ModelRefused(f"{name} is an encoder-decoder model; speculation here needs a decoder-only one.")
        if module.get_output_embeddings() is None:
            raise ModelRefused(f"{name} has no head, so it gives no logits. Load it with AutoModelForCausalLM.")
        self.context = _context_limit(module.config)
        self._forward = ModuleForward(module, self.context)
        self._ragged, self.way = self._settle()

    def open(self) -> RaggedRows | SeparateRows:
        if self._ragged is None:
            return SeparateRows(self._forward.alone, self.fit, self.new_cache)
        return RaggedRows(self._ragged, self.fit, RaggedCache(self.module.dtype, self.device))

    def new_cache(self) -> DynamicCache:
        return DynamicCache(config=self.module.config)

    def fit(self, logits: Tensor) -> Tensor:
        """Cut or pad ``[..., rows] -> [..., V]``; ids without a token or a row get -inf."""
        surplus = logits.shape[-1] - self.vocabulary.size
        if surplus > 0:
            logits = logits[..., : self.vocabulary.size]
        elif surplus < 0:
            logits = torch.nn.functional.pad(logits, (0, -surplus), value=-torch.inf)
        return logits.index_fill(-1, self._missing, -torch.inf) if self._missing.numel() else logits

    @torch.inference_mode()
    def plain(self, ids: Tensor) -> Tensor:
        """The module's own logits ``[k, V]`` for ``[k]`` ids from the beginning, without any cache: the yardstick."""
        logits: Tensor = self.module(input_ids=ids.unsqueeze(0), use_cache=False).logits[0]
        return self.fit(logits.to(self.device))

    def _settle(self) -> tuple[Forward | None, str]:
        """The forward for rows of different lengths, or None where there is none, and how that is called."""
        lean = LlamaForward.of(self.module)
        reason = ""
        for forward, way in ((lean, "together, lean forward"), (self._forward, "together, the module's forward")):
            if forward is None:
                continue
            self._ragged = forward
            try:
                require_rewind(self)
            except ModelRefused as error:
                cause = error.__cause__
                reason = f"{type(cause).__name__}: {cause}" if cause else "the logits are others then"
            else:
                return forward, way
        self._ragged = None
        require_rewind(self)
        return None, f"one at a time (not side by side: {reason})"


def _context_limit(config: Any) -> int:
    """The most ids a sequence may hold: the positions the model knows, and no more than a sliding window holds.

    Behind its window a sliding cache has dropped what a rewind would need.
    """
    text = config.get_text_config()
    limit = int(getattr(text, "max_position_embeddings", None) or NO_LIMIT)
    layers = getattr(DynamicCache(config=config), "layers", [])
    windows = [layer.sliding_window for layer in layers if getattr(layer, "is_sliding", False)]
    return min([limit, *(int(window) - 1 for window in windows)])


def load_module(
    source: str, dtype: str | torch.dtype | None, device: str | torch.device | None
) -> tuple[Any, PreTrainedTokenizerBase]:
    """Weights and tokenizer of a hub id, a local folder or a ``.gguf`` file.

    Args:
        dtype: float32, bfloat16 or float16, by name or as torch's; by default float32 on a CPU and the
            checkpoint's own elsewhere.
        device: "cpu", "cuda", "cuda:1", ...; by default the GPU if there is one.
    """
    place = _usable_device(device)
    if dtype is not None and dtype not in DTYPES and dtype not in DTYPES.values():
        raise InvalidParameter(f"dtype is {dtype!r}, which is none of {', '.join(DTYPES)}.")
    wanted = DTYPES.get(str(dtype), dtype) or (torch.float32 if place.type == "cpu" else "auto")
    where, options = _locate(source)
    try:
        module: Any = AutoModelForCausalLM.from_pretrained(where, dtype=wanted, **options)
        tokenizer = AutoTokenizer.from_pretrained(where, **options)
    except (OSError, ValueError) as error:
        raise ModelRefused(
            f"cannot load {source!r}: {error}\nGive a hub id, a folder that holds config.json, weights and a "
            "tokenizer, or a .gguf file."
        ) from error
    module.to(place)
    return module, tokenizer


def _usable_device(device: str | torch.device | None) -> torch.device:
    try:
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidParameter(f"device is {device!r}, which cannot be used here: {reason} Try 'cpu'.") from error
    return place


def _locate(source: str) -> tuple[str, dict[str, str]]:
    """Where transformers finds ``source``, and the options it needs for it."""
    path = Path(source).expanduser()
    if path.suffix != ".gguf":
        return (str(path) if path.is_dir() else source), {}
    if not path.is_file():
        raise ModelRefused(f"there is no file {source!r}. Give the path of an existing .gguf file.")
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(f'a GGUF file needs the package {package}: pip install "cactus-decoding[gguf]"')
    return str(path.parent), {"gguf_file": path.name}
