"""The verify step alone, from the verifier's logits to verdicts and emitted ids, at the vocabulary of a large model.

    python -m benchmarks.verify [--rounds 9] [--batch 8] [--m 10] [--vocabulary 151936] [--threads 2]

Our step, for several rules, against two others in the same run: the method written down as its formulas stand, with
the target h and the residual (h - p)+ built for every position; and the floor, one pass of exp and sum over the same
logits into memory that is there already. The drafter's laws are given to everybody as they were drawn from. Prints a
table, then one JSON document as the last line.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import cactus_decoding as cactus
from benchmarks.racing import finish, show, spread, told
from cactus_decoding.held import Laws
from cactus_decoding.laws import plain_laws
from cactus_decoding.sampling import SamplingParams, draw, probabilities
from cactus_decoding.verify import Verdicts, verify

DELTA = 0.25
FLOOR = "exp and sum, the floor"
TRANSCRIPTION = "every h and residual"
RULES = {"lossless": cactus.Lossless(), "cactus": cactus.Cactus(DELTA), "bounded ratio": cactus.BoundedRatio(1.5)}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The verify step alone.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--m", type=int, default=10)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=17)
    return parser.parse_args()


@dataclass(frozen=True)
class Task:
    """What one step is given."""

    params: SamplingParams
    logits: Tensor  # [B, m + 1, V] the verifier's
    p: Tensor  # [B, m, V] the drafter's laws
    held_p: Laws  # the same
    draft: Tensor  # [B, m]
    u: Tensor  # [B, m]
    u_emit: Tensor  # [B, m + 1]


def make_task(args: argparse.Namespace, params: SamplingParams) -> Task:
    """Logits with about the spread of a model's, the drafter's near the verifier's."""
    generator = torch.Generator().manual_seed(args.seed)
    batch, m, size = args.batch, args.m, args.vocabulary
    logits = 3.0 * torch.randn(batch, m + 1, size, generator=generator)
    near = logits[:, :m] + torch.randn(batch, m, size, generator=generator)
    p = probabilities(near, params)
    u = torch.rand(3, batch, m + 1, generator=generator, dtype=torch.float64)
    draft = draw(p.flatten(0, 1), u[2, :, :m].flatten()).view(batch, m)
    held_p = plain_laws(near, params) if params.top_k else p
    return Task(params, logits, p, held_p, draft, u[0, :, :m], u[1])


def transcribed(task: Task, delta: float = DELTA) -> tuple[Tensor, Tensor]:
    """Cactus as its formulas stand: (kept, emitted), ``[B]`` each."""
    logits, n = task.logits, task.draft.unsqueeze(-1)
    if task.params.top_k:
        kth = logits.topk(task.params.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    law = torch.softmax(logits, dim=-1)  # [B, m + 1, V]
    q, p = law[:, :-1], task.p
    q_n, p_n = q.gather(-1, n), p.gather(-1, n)
    gamma = (q_n + torch.sqrt(2.0 * delta * q_n * (1.0 - q_n))).clamp_max(1.0)
    h = ((1.0 - gamma) / (1.0 - q_n) * q).scatter(-1, n, gamma)  # [B, m, V]
    residual = torch.clamp(h - p, min=0.0)
    recovery = residual / residual.sum(-1, keepdim=True)
    accepted = task.u < torch.clamp(gamma / p_n, max=1.0).squeeze(-1)
    kept = accepted.cumprod(-1).sum(-1)
    rows = torch.arange(len(kept))
    g = torch.cat([recovery, law[:, -1:]], dim=1)[rows, kept]  # [B, V]
    cumulative = g.cumsum(-1, dtype=torch.float64)
    level = task.u_emit[rows, kept].unsqueeze(-1) * cumulative[:, -1:]
    return kept, torch.searchsorted(cumulative, level, right=True).squeeze(-1)


def ours(task: Task, rule: cactus.Rule) -> tuple[Verdicts, float]:
    """What `verify` says, and the seconds that making the verifier's laws took of it."""
    began = time.perf_counter()
    q = plain_laws(task.logits, task.params)
    made = time.perf_counter() - began
    return verify(task.draft, task.held_p, q, rule, task.u, task.u_emit), made


def require_same(task: Task) -> None:
    """Both say the same, or the race is void."""
    found, _ = ours(task, RULES["cactus"])
    kept, emitted = transcribed(task)
    if not (torch.equal(found.kept, kept) and torch.equal(found.emitted, emitted)):
        raise SystemExit(f"They differ: kept {found.kept} and {kept}, emitted {found.emitted} and {emitted}.")


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    tasks = {"plain": make_task(args, SamplingParams()), "top-k 20": make_task(args, SamplingParams(top_k=20))}
    buffer = torch.empty_like(tasks["plain"].logits)

    def floor() -> None:
        torch.exp(tasks["plain"].logits, out=buffer)
        buffer.sum(-1)

    contestants: dict[str, Callable[[], object]] = {FLOOR: floor}
    making: dict[str, list[float]] = {}
    for kind, task in tasks.items():
        require_same(task)
        contestants[f"{TRANSCRIPTION}, {kind}"] = lambda task=task: transcribed(task)
        for name, rule in RULES.items():
            making[f"{name}, {kind}"] = []
            contestants[f"{name}, {kind}"] = our_contestant(task, rule, making[f"{name}, {kind}"])
    seconds = timed(contestants, args.rounds)
    figures = {name: figure(name, seconds, making.get(name, [])[-args.rounds :]) for name in seconds}
    report(figures, args)
    finish({"figures": figures, "delta": DELTA, **vars(args)})


def our_contestant(task: Task, rule: cactus.Rule, making: list[float]) -> Callable[[], object]:
    return lambda: making.append(ours(task, rule)[1])


@torch.inference_mode()
def timed(contestants: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each, by round, in an order that rotates; two rounds before the first are not counted."""
    names = list(contestants)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds + 2):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            began = time.perf_counter()
            contestants[name]()
            if turn > 1:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def figure(name: str, seconds: dict[str, list[float]], making: list[float]) -> dict:
    mine = seconds[name]
    found = {
        "milliseconds": spread(1e3 * x for x in mine),
        "times_the_floor": spread(x / floor for x, floor in zip(mine, seconds[FLOOR])),
    }
    if making:
        other = seconds[f"{TRANSCRIPTION}, {name.rsplit(', ', 1)[-1]}"]
        found["times_faster"] = spread(theirs / x for x, theirs in zip(mine, other))
        found["milliseconds_making_laws"] = spread(1e3 * x for x in making)
    return found


def report(figures: dict[str, dict], args: argparse.Namespace) -> None:
    show(
        f"B = {args.batch}, m = {args.m}, V = {args.vocabulary}, {args.threads} thread(s), {args.rounds} rounds",
        f'median of rounds (lowest - highest); "{TRANSCRIPTION}" is Cactus({DELTA:g}) as its formulas stand',
        ("ms", "of it making laws", "x the floor", "x faster than that"),
        [
            (
                name,
                told(row["milliseconds"], 1),
                told(row["milliseconds_making_laws"], 1) if "milliseconds_making_laws" in row else "-",
                told(row["times_the_floor"]),
                told(row["times_faster"], 1) if "times_faster" in row else "-",
            )
            for name, row in figures.items()
        ],
    )


if __name__ == "__main__":
    main()
