"""`python -m training` from the repository's root: makes the tokenizer and both models, and nothing else.

The drafter trains in a process of its own beside the verifier, one thread each by default.
"""

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from training.tokenizer import save_tokenizer, train_tokenizer
from training.train import Recipe, reserved_questions, train_model
from training.voices import DRAFTER_VOICE, VERIFIER_VOICE

VERIFIER = Recipe(
    name="verifier",
    hidden=128,
    layers=4,
    feed_forward=384,
    voice=VERIFIER_VOICE,
    steps=7000,
    batch=16,
    rate=4e-3,
    cooldown=0.5,
    free_weight=0.2,
    digit_weight=3.0,
    seed=11,
)
DRAFTER = Recipe(
    name="drafter",
    hidden=128,
    layers=1,  # one layer: a draft costs a quarter of a verification, and reasoning in two hops is out of reach
    feed_forward=384,
    voice=DRAFTER_VOICE,
    steps=4500,
    batch=16,
    rate=6e-3,
    cooldown=0.6,
    free_weight=1.0,
    digit_weight=3.0,
    seed=12,
)
RECIPES = {recipe.name: recipe for recipe in (VERIFIER, DRAFTER)}
QUICK_STEPS = 12


def main() -> None:
    """Make the tokenizer and both models; the last line printed is a JSON list of the figures."""
    options = _parse()
    began = time.monotonic()
    if options.only:
        figures = [_train_one(options)]
    else:
        figures = _train_both()
        print(f"pair written to {options.out} after {time.monotonic() - began:.0f} s")
    print(json.dumps(figures))


def _train_both() -> list[dict[str, object]]:
    """Run this same command once per model, side by side, each in a process of its own."""
    commands = [[sys.executable, "-m", "training", *sys.argv[1:], "--only", name] for name in RECIPES]
    jobs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    with ThreadPoolExecutor(len(jobs)) as readers:
        last_lines = list(readers.map(_relay, jobs))
    return [figures for line in last_lines for figures in json.loads(line)]


def _relay(job: subprocess.Popen[str]) -> str:
    """Pass on all a job prints except its last line, the figures, which is returned."""
    assert job.stdout is not None  # a pipe was asked for
    last = ""
    for line in job.stdout:
        if last:
            _say(last)
        last = line.rstrip()
    if job.wait() != 0:
        raise SystemExit(f"training failed with exit status {job.returncode}; its own message is above")
    return last


def _train_one(options: argparse.Namespace) -> dict[str, object]:
    recipe = RECIPES[options.only]
    steps = {"verifier": options.verifier_steps, "drafter": options.drafter_steps}[recipe.name]
    recipe = replace(recipe, steps=QUICK_STEPS if options.quick else steps)
    # both processes learn the same tokenizer from the same seed; that takes seconds
    save_tokenizer(train_tokenizer(2_000 if options.quick else 20_000), options.out / recipe.name)
    return train_and_save(recipe, options.out, options.threads, options.checkpoint_every)


def train_and_save(recipe: Recipe, out: Path, threads: int, checkpoint_every: int) -> dict[str, object]:
    """Train one model and write its folder; returns the figures of the run."""
    torch.set_num_threads(threads)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(out / recipe.name)

    def checkpoint(model: LlamaForCausalLM, step: int) -> None:
        if checkpoint_every and step % checkpoint_every == 0 and step < recipe.steps:
            folder = out / "checkpoints" / f"{recipe.name}-{step}"
            save_tokenizer(tokenizer, folder)
            save_model(model, folder)

    began = time.monotonic()
    model, losses = train_model(recipe, tokenizer, reserved_questions(), report=_say, checkpoint=checkpoint)
    save_model(model, out / recipe.name)
    return {
        "model": recipe.name,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "steps": recipe.steps,
        "problems": recipe.steps * recipe.batch,
        "seconds": round(time.monotonic() - began),
        "loss": round(sum(losses[-50:]) / len(losses[-50:]), 4),
        "threads": threads,
        "torch": torch.__version__,
    }


def save_model(model: LlamaForCausalLM, folder: Path) -> None:
    """Write weights (float16), config and generation config; the model itself stays as it is."""
    config = LlamaForCausalLM.config_class.from_dict(model.config.to_dict())
    copy = LlamaForCausalLM(config).to(torch.float16)
    copy.load_state_dict(model.state_dict())
    copy.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
        do_sample=True,
        temperature=1.0,
        top_k=0,
    )
    copy.save_pretrained(folder)


def _say(line: str) -> None:
    print(line, flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m training", description="Train the Abacus pair from scratch.")
    parser.add_argument("--out", type=Path, default=Path("build/abacus"), help="folder for the two models")
    parser.add_argument("--only", choices=("verifier", "drafter"), help="train one of the two")
    parser.add_argument("--threads", type=int, default=1, help="threads per model; both models train at once")
    parser.add_argument("--verifier-steps", type=int, default=VERIFIER.steps)
    parser.add_argument("--drafter-steps", type=int, default=DRAFTER.steps)
    parser.add_argument("--checkpoint-every", type=int, default=0, help="steps between saved states; 0 for none")
    parser.add_argument("--quick", action="store_true", help=f"a trial of seconds: {QUICK_STEPS} steps each")
    options = parser.parse_args()
    for name in ("threads", "verifier_steps", "drafter_steps"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {getattr(options, name)}")
    return options


if __name__ == "__main__":
    main()
