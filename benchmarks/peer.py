"""A worker that decodes with another library, in that library's own environment, so a parent can race it.

    python benchmarks/peer.py economize --verifier DIR --drafter DIR [--m 5] [--temperature 0.7] [--threads 1]

It loads the pair once, in float32, and prints one JSON line: {"ready": true, "peer": ..., versions}. Then every
JSON line on stdin is a request, answered by one JSON line, so that a parent can interleave its rounds with ours:

    {"ids": [[1, 5, ...], ...], "max_new_tokens": 128, "seed": 3}
    {"tokens": [54, ...], "seconds": 0.31, "calls": [18, ...]}

"ids" are prompts, one or more. "seconds" is the generation call alone. "tokens" counts each prompt's new ids, the
EOS included. "calls" counts the verifier's forwards, the prefill included, or is null where a library does not
tell. With "return_ids": true in the request, the answer has the new ids as well. What a library cannot do is
answered by {"error": ...}. Temperature 0 is greedy. The worker ends with its stdin.

The peers: economize (its draft_model technique); flashspec (m drafts by the drafter) and flashspec-auto (its own
default, which ignores m: up to 6 tokens by prompt lookup, or else 2 by the drafter); and, as a yardstick inside
any of the environments, transformers (the verifier alone) and assisted (transformers with the drafter).

It imports nothing of cactus_decoding: that is not installed where it runs. The environments, one for each library:

    python3 -m venv ENV && ENV/bin/pip install torch==2.13.0 transformers==5.24.0 economize==0.3.2
    python3 -m venv ENV && ENV/bin/pip install torch==2.13.0 transformers==5.24.0 flashspec==0.3.1
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers


@dataclass
class Generated:
    """The new ids of each prompt, the time of the generation call, and the verifier's forwards if told."""

    rows: list[list[int]]
    seconds: float
    calls: list[int] | None = None


Peer = Callable[[list[list[int]], int, int], Generated]  # (prompts, max_new_tokens, seed)


class NotSupportedError(Exception):
    """The library has no way to do what was asked."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Decode with another library, one JSON request a line.")
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--verifier", type=Path, required=True)
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--m", type=int, default=5, help="drafted tokens before each verification")
    parser.add_argument("--temperature", type=float, default=0.7, help="0: greedy")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def load(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def stop_ids(verifier: Any) -> list[int]:
    found = verifier.generation_config.eos_token_id
    return list(found) if isinstance(found, list) else [found]


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    result = call()
    return result, time.perf_counter() - began


def economize_peer(args: argparse.Namespace) -> Peer:
    """``decode`` and ``decode_batch``: ``generate`` fails on the ``cache`` argument of recent transformers."""
    import economize
    from economize.techniques.draft_model import DraftModelConfig

    verifier = load(args.verifier)
    model = economize.apply(verifier, DraftModelConfig(model=str(args.drafter), dtype="float32"))
    stop = stop_ids(verifier)
    # A cycle is the drafts and the model's own token. Its default way to verify refuses to sample.
    decoding = economize.DecodeConfig(cycle_length=args.m + 1, verifier="rejection" if args.temperature else "greedy")

    def run(prompts: list[list[int]], new: int, seed: int) -> Generated:
        rows = [torch.tensor(prompt) for prompt in prompts]
        selector = economize.TopPSampler(args.temperature, seed=seed) if args.temperature else None
        options = {"decoding": decoding, "selector": selector, "stop": stop}
        results, seconds = timed(lambda: model.decode_batch(rows, new, **options))
        calls = [result.cost_summary()["exact_calls"] for result in results]
        return Generated([result.tokens.tolist() for result in results], seconds, calls)

    return run


def flashspec_engine(args: argparse.Namespace) -> Any:
    """Its engine on CPU, where its CUDA-graph path is off."""
    import flashspec
    from flashspec.engine import HuggingFaceDrafter, TargetModel

    verifier, device, dtype = load(args.verifier), torch.device("cpu"), torch.float32
    target = TargetModel(str(args.verifier), device, dtype, model=verifier)
    # The engine's temperature is the target's alone: without its own, the drafter would draft at temperature 1.
    drafter = HuggingFaceDrafter(str(args.drafter), device, dtype, args.temperature, model=load(args.drafter))
    options: dict[str, Any] = {}
    if args.peer == "flashspec":  # a "bandit" with the one drafter always drafts gamma tokens with it
        options = {"drafter_strategy": "bandit", "bandit": flashspec.BanditConfig(n_arms=1)}
    sampling = flashspec.SamplingConfig(gamma=args.m, temperature=args.temperature)
    options |= {"eos_token_ids": tuple(stop_ids(verifier)), "sampling": sampling}
    return flashspec.SpeculativeEngine(
        flashspec.FlashSpecConfig(device="cpu", dtype="float32", **options), [drafter], target
    )


def flashspec_peer(args: argparse.Namespace) -> Peer:
    """``SpeculativeEngine.generate``; its loop for batches takes prompts of one length and keeps no cache."""
    engine = flashspec_engine(args)

    def run(prompts: list[list[int]], new: int, seed: int) -> Generated:
        if len({len(prompt) for prompt in prompts}) > 1:
            raise NotSupportedError("flashspec takes a rectangle of ids without a mask: prompts of one length only")
        ids = torch.tensor(prompts)
        torch.manual_seed(seed)  # a seed in its configuration would repeat the same draws in every call
        result, seconds = timed(lambda: engine.generate(ids, max_new_tokens=new))
        calls = [len(result.arm_steps) + 1] if len(prompts) == 1 else None  # the target's prefill is a call apart
        return Generated([row[row >= 0].tolist() for row in result.output_ids], seconds, calls)

    return run


def transformers_options(args: argparse.Namespace) -> dict[str, Any]:
    options: dict[str, Any] = {"do_sample": False}
    if args.temperature:
        options = {"do_sample": True, "temperature": args.temperature, "top_k": 0, "top_p": 1.0}
    if args.peer == "assisted":
        drafter = options["assistant_model"] = load(args.drafter)
        drafter.generation_config.num_assistant_tokens = args.m
        drafter.generation_config.num_assistant_tokens_schedule = "constant"
        drafter.generation_config.assistant_confidence_threshold = 0.0  # draft exactly m tokens
    return options


def transformers_peer(args: argparse.Namespace) -> Peer:
    """``generate``, alone or assisted, as benchmarks/step.py calls it; prompts of a batch are padded on the left."""
    verifier, options = load(args.verifier), transformers_options(args)
    stop, pad = stop_ids(verifier), verifier.generation_config.pad_token_id

    def run(prompts: list[list[int]], new: int, seed: int) -> Generated:
        if "assistant_model" in options and len(prompts) > 1:
            raise NotSupportedError("transformers' assisted generation takes one prompt")
        width = max(map(len, prompts))
        ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        torch.manual_seed(seed)
        found, seconds = timed(lambda: verifier.generate(ids, attention_mask=mask, max_new_tokens=new, **options))
        return Generated([until_stop(row, stop) for row in found[:, width:].tolist()], seconds)

    return run


def until_stop(row: list[int], stop: list[int]) -> list[int]:
    """The row up to its EOS, without the padding after it."""
    end = next((index for index, token in enumerate(row) if token in stop), len(row) - 1)
    return row[: end + 1]


PEERS: dict[str, Callable[[argparse.Namespace], Peer]] = {
    "economize": economize_peer,
    "flashspec": flashspec_peer,
    "flashspec-auto": flashspec_peer,
    "transformers": transformers_peer,
    "assisted": transformers_peer,
}


def answer(peer: Peer, request: dict[str, Any]) -> dict[str, Any]:
    try:
        found = peer(request["ids"], request["max_new_tokens"], request["seed"])
    except Exception as error:  # whatever another library throws is an answer too: the parent decides what it means
        return {"error": f"{type(error).__name__}: {error}"}
    reply = {"tokens": [len(row) for row in found.rows], "seconds": found.seconds, "calls": found.calls}
    return {**reply, "ids": found.rows} if request.get("return_ids") else reply


def versions() -> dict[str, str]:
    installed = {found.metadata["Name"]: found.version for found in importlib.metadata.distributions()}
    named = {name: installed[name] for name in ("economize", "flashspec") if name in installed}
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        **named,
    }


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # a library that prints must not break the protocol
    args = arguments()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore", FutureWarning)  # both libraries use an argument that transformers renamed
    peer = PEERS[args.peer](args)
    print(json.dumps({"ready": True, "peer": args.peer, **versions()}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(peer, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
