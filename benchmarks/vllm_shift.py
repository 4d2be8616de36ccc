"""What the plugin adds to vLLM's own rejection sampler. Run it in an environment that has vLLM.

    .venv-vllm/bin/python -m benchmarks.vllm_shift [--batch 64] [--m 5] [--vocabulary 151936] [--rounds 9] [--threads 2]

The sampler of the V1 model runner, whole: bonus tokens, temperature, filters, accept, recover. It runs on a GPU where
there is one. The same random rows go through it in turns: lossless, which the plugin leaves alone; every request
relaxed; and the shift's only pass over the vocabulary by itself, a logsumexp. Prints a table, then one JSON document as
the last line.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from torch import Tensor

from benchmarks.racing import finish, show, spread, told
from cactus_decoding.integrations.vllm.relaxation import relaxation_of
from cactus_decoding.integrations.vllm.shift import log_total
from cactus_decoding.integrations.vllm.verification import Member, Relaxer, during

FILTERS = {"plain": {}, "top-p .95, top-k 20": {"top_p": 0.95, "top_k": 20}}
DRAFTS = ("random drafts", "greedy drafts")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The plugin beside vLLM's sampler.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--m", type=int, default=5)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--delta", type=float, default=0.25)
    return parser.parse_args()


def sampler_of_vllm() -> Any:
    """vLLM's `RejectionSampler`, with the kernels of this machine and the plugin registered."""
    from vllm.platforms import current_platform
    from vllm.v1.sample.rejection_sampler import RejectionSampler
    from vllm.v1.sample.sampler import Sampler

    from cactus_decoding.integrations.vllm import plugin

    plugin.register()
    if current_platform.is_cpu():
        current_platform.import_kernels()
        current_platform.register_triton_kernel_overrides()
    return RejectionSampler(Sampler())


class Step:
    """One verification of a whole batch, rows, drafts and sampling parameters as vLLM's runner passes them."""

    def __init__(self, args: argparse.Namespace, filters: dict[str, float], drafts: str, device: torch.device) -> None:
        from vllm.v1.sample.logits_processor import LogitsProcessors
        from vllm.v1.sample.metadata import SamplingMetadata
        from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

        generator = torch.Generator(device).manual_seed(17)
        batch, m, size = args.batch, args.m, args.vocabulary
        self.logits = 3.0 * torch.randn(batch * (m + 1), size, generator=generator, device=device)
        rows = torch.arange(batch * (m + 1), device=device).view(batch, m + 1)
        near = self.logits[rows[:, :m].flatten()] + torch.randn(batch * m, size, generator=generator, device=device)
        law = torch.softmax(near, -1)
        n = law.multinomial(1, generator=generator)[:, 0] if drafts == DRAFTS[0] else law.argmax(-1)
        self.draft_probs = law if drafts == DRAFTS[0] else None
        self.metadata = SpecDecodeMetadata.make_dummy(n.view(batch, m).tolist(), device)
        self.metadata.target_logits_indices = rows[:, :m].flatten().int()
        self.metadata.bonus_logits_indices = rows[:, m].int()

        def each(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.full((batch,), value, dtype=dtype, device=device)

        self.sampling = SamplingMetadata(
            temperature=each(1.0),
            all_greedy=False,
            all_random=True,
            top_p=each(filters["top_p"]) if "top_p" in filters else None,
            top_k=each(filters["top_k"], torch.int32) if "top_k" in filters else None,
            generators={},
            max_num_logprobs=None,
            no_penalties=True,
            prompt_token_ids=None,
            frequency_penalties=each(0.0),
            presence_penalties=each(0.0),
            repetition_penalties=each(1.0),
            output_token_ids=[[] for _ in range(batch)],
            allowed_token_ids_mask=None,
            bad_words_token_ids={},
            logitsprocs=LogitsProcessors(),
        )

    def run(self, sampler: Any) -> Tensor:
        emitted: Tensor = sampler(self.metadata, self.draft_probs, self.logits, self.sampling).sampled_token_ids
        return emitted


def relaxed(step: Step, sampler: Any, delta: float) -> Callable[[], object]:
    """The step with every request relaxed, and its counts read every hundred steps, as a busy server does."""
    relaxation = relaxation_of({"cactus_delta": delta})
    assert relaxation is not None
    batch = [f"request {number}" for number in range(len(step.metadata.num_draft_tokens))]
    relaxer = Relaxer({name: Member(relaxation, number) for number, name in enumerate(batch)})
    turns = 0

    def run() -> object:
        nonlocal turns
        turns += 1
        emitted = during(relaxer, batch, lambda: step.run(sampler))
        relaxer.ledger.settle(idle=turns % 100 == 0)
        return emitted

    return run


@torch.inference_mode()
def timed(
    contestants: dict[str, Callable[[], object]], rounds: int, wait: Callable[[], None]
) -> dict[str, list[float]]:
    """Seconds of each, by round, in an order that rotates; two rounds before the first are not counted."""
    names = list(contestants)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds + 2):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            wait()
            began = time.perf_counter()
            contestants[name]()
            wait()
            if turn > 1:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def race(
    args: argparse.Namespace, sampler: Any, filters: dict[str, float], drafts: str, device: torch.device
) -> dict[str, Any]:
    """The figures of one kind of step."""
    step = Step(args, filters, drafts, device)
    rows = torch.randn(args.batch * args.m, args.vocabulary, device=device)
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    contestants = {
        "lossless": lambda: step.run(sampler),
        "relaxed": relaxed(step, sampler, args.delta),
        "logsumexp": lambda: log_total(rows),
    }
    seconds = timed(contestants, args.rounds, wait)
    lossless = seconds["lossless"]
    return {
        "milliseconds": spread(1e3 * x for x in lossless),
        "added_percent": spread(100.0 * (x / base - 1.0) for x, base in zip(seconds["relaxed"], lossless)),
        "logsumexp_percent": spread(100.0 * x / base for x, base in zip(seconds["logsumexp"], lossless)),
    }


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    sampler = sampler_of_vllm()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    figures = {
        f"{drafts}, {kind}": race(args, sampler, filters, drafts, device)
        for drafts in DRAFTS
        for kind, filters in FILTERS.items()
    }
    show(
        f"B = {args.batch}, m = {args.m}, V = {args.vocabulary}, {device.type}, {args.rounds} rounds",
        "median of rounds (lowest - highest); added: by relaxing every request; logsumexp: of the same rows, of that",
        ("vLLM's sampler, ms", "added, %", "logsumexp, %"),
        [
            (name, told(row["milliseconds"], 1), told(row["added_percent"], 1), told(row["logsumexp_percent"], 1))
            for name, row in figures.items()
        ],
    )
    finish({"figures": figures, "device": device.type, **vars(args)})


if __name__ == "__main__":
    main()
