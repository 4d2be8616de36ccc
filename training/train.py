"""Train one model of the pair on an endless stream of fresh problems.

Muon turns the weight matrices, AdamW the embedding and the norms. The schedule counts steps, never seconds, so
a run is the same on every machine up to the rounding of its arithmetic.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from cactus_decoding.embedded.problems import DEMO_SEED, Problem, make_problem, make_problems
from training.tokenizer import ASSISTANT, BOS, CONTEXT, EOS, USER
from training.voices import Solution, Voice, write_solution

SELECTION_SEED = 1_000_001
"""Problems that sizes, loss weights and voices were chosen on."""
TEST_SEED = 2_000_002
"""Problems for the final figures and for nothing else."""
RESERVED_COUNT = 10_000
"""The first so many problems of each reserved seed never occur in training."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that decides a model: shape, voice, loss weights, and schedule."""

    name: str
    hidden: int
    layers: int
    feed_forward: int
    voice: Voice
    steps: int
    batch: int
    """Problems per step."""
    rate: float
    """Peak learning rate of both optimizers (Muon's updates are scaled to the size of AdamW's)."""
    cooldown: float
    """Share of the steps over which the rate falls to zero."""
    free_weight: float
    """Loss weight of the tokens that choose a wording."""
    digit_weight: float
    """Loss weight of a solution's digits; all other tokens of a solution weigh 1, those of a question 0."""
    seed: int
    head: int = 32


@dataclass(frozen=True, slots=True)
class Batch:
    """Right-padded rows `[B, T]`; `weights[b, t]` is the loss weight of predicting `ids[b, t]`, 0 for padding."""

    ids: Tensor
    weights: Tensor


def reserved_questions() -> frozenset[str]:
    """Questions that training must never see."""
    seeds = (SELECTION_SEED, TEST_SEED, DEMO_SEED)
    return frozenset(problem.question for seed in seeds for problem in make_problems(RESERVED_COUNT, seed))


def fresh_problems(rng: Random, reserved: frozenset[str]) -> Iterator[Problem]:
    """An endless stream of problems whose questions are not reserved."""
    while True:
        problem = make_problem(rng)
        if problem.question not in reserved:
            yield problem


def chat_text(question: str, solution: str) -> str:
    """The exact text a model learns; equals the chat template's output for one exchange."""
    return f"{BOS}{USER}{question}{ASSISTANT}{solution}{EOS}"


def token_weights(
    tokenizer: PreTrainedTokenizerFast, question: str, solution: Solution, recipe: Recipe
) -> tuple[list[int], list[float]]:
    """Token ids of one example and the loss weight of each."""
    encoding = tokenizer(chat_text(question, solution.text), return_offsets_mapping=True, add_special_tokens=False)
    origin = len(chat_text(question, "")) - len(EOS)
    free_starts = {origin + start for start, _ in solution.free}
    weights: list[float] = []
    ids: list[int] = encoding["input_ids"]
    for start, end in encoding["offset_mapping"]:
        piece = solution.text[start - origin : end - origin] if start >= origin else ""
        if start < origin:
            weights.append(0.0)
        elif start in free_starts:
            weights.append(recipe.free_weight)
        else:
            weights.append(recipe.digit_weight if piece.isdigit() else 1.0)
    return ids, weights


def batches(tokenizer: PreTrainedTokenizerFast, recipe: Recipe, reserved: frozenset[str]) -> Iterator[Batch]:
    """An endless stream of batches; rows of a batch are of like length, the order of batches is random."""
    rng = Random(recipe.seed)
    problems = fresh_problems(rng, reserved)
    pool_size = 16
    while True:
        rows = []
        for _ in range(recipe.batch * pool_size):
            problem = next(problems)
            solution = write_solution(problem, recipe.voice, rng)
            rows.append(token_weights(tokenizer, problem.question, solution, recipe))
        rows.sort(key=lambda row: len(row[0]))
        pool = [_pad(rows[start : start + recipe.batch]) for start in range(0, len(rows), recipe.batch)]
        while pool:
            yield pool.pop(int(rng.random() * len(pool)))


def _pad(rows: list[tuple[list[int], list[float]]]) -> Batch:
    length = max(len(ids) for ids, _ in rows)
    return Batch(
        torch.tensor([ids + [0] * (length - len(ids)) for ids, _ in rows]),
        torch.tensor([weights + [0.0] * (length - len(weights)) for _, weights in rows]),
    )


def build_model(recipe: Recipe, vocabulary: int) -> LlamaForCausalLM:
    """A fresh model; eager attention, since short sequences train faster with it on a CPU."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=recipe.hidden,
        intermediate_size=recipe.feed_forward,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.hidden // recipe.head,
        num_key_value_heads=recipe.hidden // recipe.head,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        attn_implementation="eager",
    )
    torch.manual_seed(recipe.seed)
    return LlamaForCausalLM(config)


def batch_loss(model: LlamaForCausalLM, batch: Batch) -> tuple[Tensor, Tensor]:
    """Weighted mean loss of a batch, and the plain mean over its solution tokens (detached), in nats."""
    targets, weights = batch.ids[:, 1:], batch.weights[:, 1:]
    counted = weights > 0  # [B, T - 1]; logits are worth computing only here
    hidden = model.model(input_ids=batch.ids[:, :-1], use_cache=False).last_hidden_state[counted]
    losses = cross_entropy(model.lm_head(hidden), targets[counted], reduction="none")
    return (losses * weights[counted]).sum() / weights[counted].sum(), losses.detach().mean()


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal by Newton-Schulz steps, in float32.

    `torch.optim.Muon` does the same in bfloat16, which a CPU without such instructions runs ten times slower.
    Matrices of one shape are turned together. The update is scaled to a root mean square of 0.2, like AdamW's.
    """

    def __init__(
        self, matrices: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.05
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[Tensor]] = {}
            for matrix in group["params"]:
                by_shape.setdefault(tuple(matrix.shape), []).append(matrix)
            for shape, matrices in by_shape.items():
                updates = orthogonalize(torch.stack([self._blend(matrix, group["momentum"]) for matrix in matrices]))
                scale = group["lr"] * 0.2 * max(shape) ** 0.5
                for matrix, update in zip(matrices, updates, strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=scale)

    def _blend(self, matrix: Tensor, momentum: float) -> Tensor:
        """Gradient looked ahead along its running mean (Nesterov)."""
        running = self.state[matrix].setdefault("running", torch.zeros_like(matrix))
        running.lerp_(matrix.grad, 1 - momentum)
        return torch.lerp(matrix.grad, running, momentum)


def orthogonalize(matrices: Tensor, iterations: int = 5) -> Tensor:
    """Bring all singular values near 1: a quintic iteration on a stack of matrices `[K, rows, columns]`."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if tall else x


def make_optimizers(model: LlamaForCausalLM, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the blocks, AdamW for the embedding and the norms."""
    inner = [weight for name, weight in model.named_parameters() if _is_inner(name, weight)]
    outer = [weight for name, weight in model.named_parameters() if not _is_inner(name, weight)]
    return [Muon(inner, rate), torch.optim.AdamW(outer, rate, betas=(0.9, 0.98), weight_decay=0.0)]


def _is_inner(name: str, weight: Tensor) -> bool:
    return weight.ndim > 1 and "embed" not in name


def rate_factor(step: int, recipe: Recipe) -> float:
    """Trapezoid: a short rise, a plateau, a straight fall to zero over the last `cooldown` of the steps."""
    rise = (step + 1) / min(50, recipe.steps)
    fall = (recipe.steps - step) / (recipe.cooldown * recipe.steps)
    return min(1.0, rise, fall)


def train_model(
    recipe: Recipe,
    tokenizer: PreTrainedTokenizerFast,
    reserved: frozenset[str],
    report: Callable[[str], None] = print,
    checkpoint: Callable[[LlamaForCausalLM, int], None] | None = None,
) -> tuple[LlamaForCausalLM, list[float]]:
    """Train by the recipe; returns the model and its solution loss at every step, in nats per token."""
    model = build_model(recipe, len(tokenizer)).train()
    optimizers = make_optimizers(model, recipe.rate)
    size = sum(weight.numel() for weight in model.parameters())
    report(f"{recipe.name}: {size / 1e6:.2f}M parameters, {recipe.steps} steps of {recipe.batch} problems")
    losses: list[float] = []
    began = time.monotonic()
    for step, batch in zip(range(recipe.steps), batches(tokenizer, recipe, reserved), strict=False):
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = recipe.rate * rate_factor(step, recipe)
        loss, plain = batch_loss(model, batch)
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        losses.append(plain.item())
        if (step + 1) % 50 == 0 or step + 1 == recipe.steps:
            report(progress_line(recipe, losses, loss.item(), time.monotonic() - began))
        if checkpoint is not None:
            checkpoint(model, step + 1)
    return model.eval(), losses


def progress_line(recipe: Recipe, losses: list[float], weighted: float, seconds: float) -> str:
    """One line for a person who waits: step, losses, time gone and left."""
    done, recent = len(losses), losses[-50:]
    left = seconds / done * (recipe.steps - done)
    return (
        f"{recipe.name}: step {done}/{recipe.steps}  loss {sum(recent) / len(recent):.3f}  weighted {weighted:.3f}"
        f"  {seconds:.0f} s gone, {left:.0f} s left"
    )
