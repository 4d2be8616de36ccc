"""Does deciding for whole blocks pay with a raised target, at equal deviation from the verifier?

    python -m benchmarks.block [--models 10] [--large-models 3] [--seed 1]

Models are random first-order Markov chains, the drafter a perturbed verifier. Contestants: Cactus and bounded ratio

- token by token (`token`),
- as block verification against the one law that the rule emits token by token (`law`): same law, by theorem never
  fewer tokens,
- Cactus as block verification with its target h^n of the drafted token carried along the block (`carry`).

Small vocabularies are enumerated: the exact law of whole texts, decoded block after block, and its KL from the
verifier's per token. A vocabulary of 20 is sampled, and the KL is that of a token given the one before it, which
overlooks what `carry` lets depend on older ones. A curve (KL, kept per block) of each contestant over its dial gives
what is kept at equal KL; differences are paired by model, with 95% intervals over models. Prints tables, then one JSON
document as the last line. Under three minutes on one thread.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from statistics import mean

import torch
from scipy.stats import t as student

from benchmarks.markov import Contestant, Model, exactly, law_targets, model, own_targets, sampled
from benchmarks.racing import finish, show
from cactus_decoding.rules import BoundedRatio, Cactus, Frontier, Lossless, Mentored, Rule

DISTANCES = {"close": 0.5, "middling": 1.0, "far": 2.0}  # standard deviation of the drafter's error in its logits
EXACT = ((3, 4, 6), (5, 3, 8), (8, 3, 9))  # (m, vocabulary, length of the texts)
LARGE = 20  # the vocabulary that is sampled
SAMPLED = (("close", 5), ("middling", 3), ("middling", 5), ("middling", 8), ("far", 5))
DIALS = {
    "cactus": [Cactus(delta) for delta in (0.002, 0.006, 0.015, 0.04, 0.1, 0.2, 0.4, 0.8)],
    "ratio": [BoundedRatio(alpha) for alpha in (1.03, 1.1, 1.2, 1.4, 1.8, 2.5, 4.0, 8.0)],
}
TARGETS = (0.1, 0.3, 0.6)  # KL at which contestants are compared, as a share of that where every draft is kept
FEWEST = 3  # models for an interval
FIXED: dict[str, Rule] = {
    "ratio 1.5": BoundedRatio(1.5),
    "ratio 2.5": BoundedRatio(2.5),
    "mentored .15": Mentored(0.15),
    "frontier 2.5": Frontier(2.5),
    "cactus .25": Cactus(0.25),
}


CONTESTANTS: dict[str, tuple[str, Callable[[Model, Rule], Contestant]]] = {
    "cactus token": ("cactus", lambda pair, rule: Contestant(own_targets(pair, rule), False)),
    "cactus carry": ("cactus", lambda pair, rule: Contestant(own_targets(pair, rule), True)),
    "cactus law": ("cactus", lambda pair, rule: Contestant(law_targets(pair, rule), True)),
    "ratio token": ("ratio", lambda pair, rule: Contestant(law_targets(pair, rule), False)),
    "ratio law": ("ratio", lambda pair, rule: Contestant(law_targets(pair, rule), True)),
}
DIFFERENCES = (
    ("cactus carry", "cactus token"),
    ("cactus law", "cactus token"),
    ("cactus carry", "cactus law"),
    ("ratio law", "ratio token"),
    ("cactus carry", "ratio law"),
)


def at(curve: Sequence[tuple[float, float]], kl: float) -> float:
    """Kept per block at this KL, linear in its root between the dial's settings; NaN beyond them."""
    for (low, less), (high, more) in pairwise(curve):
        if low <= kl <= high:
            return less + (more - less) * (kl**0.5 - low**0.5) / (high**0.5 - low**0.5)
    return float("nan")


def interval(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and half of its 95% interval over the models that have one; None of too few."""
    sound = torch.tensor([value for value in values if not math.isnan(value)], dtype=torch.float64)
    if len(sound) < FEWEST:
        return {"mean": None, "half": None, "n": len(sound)}
    half = float(student.ppf(0.975, len(sound) - 1)) * float(sound.std()) / len(sound) ** 0.5
    return {"mean": float(sound.mean()), "half": half, "n": len(sound)}


Meter = Callable[[Model, Contestant, int], tuple[float, float]]
"""(pair, contestant, the model's number) -> (KL per token, kept per block)."""


def lossless(models: list[Model], measure: Meter) -> dict[str, dict[str, float | None]]:
    """Kept per block without loss, token by token and by block, and the gain."""
    kept = []
    for number, pair in enumerate(models):
        targets = law_targets(pair, Lossless())
        kept.append([measure(pair, Contestant(targets, block), number)[1] for block in (False, True)])
    return {
        "token": interval([by_token for by_token, _ in kept]),
        "block": interval([by_block for _, by_block in kept]),
        "gain": interval([by_block / by_token - 1 for by_token, by_block in kept]),
    }


def at_equal_kl(models: list[Model], measure: Meter) -> dict[str, dict]:
    """By share of the KL: what each contestant keeps, and the paired differences."""
    curves: dict[str, list] = {name: [] for name in CONTESTANTS}
    most = []
    for number, pair in enumerate(models):
        exact = law_targets(pair, Lossless())
        most.append(measure(pair, Contestant(law_targets(pair, BoundedRatio(1e9)), False), number)[0])
        starts = {block: (0.0, measure(pair, Contestant(exact, block), number)[1]) for block in (False, True)}
        for name, (family, make) in CONTESTANTS.items():
            ways = [make(pair, rule) for rule in DIALS[family]]
            curves[name].append([starts[ways[0].block]] + [measure(pair, way, number) for way in ways])
    found = {}
    for share in TARGETS:
        kept = {
            name: [at(curve, share * kl) for curve, kl in zip(of_models, most)] for name, of_models in curves.items()
        }
        found[str(share)] = {
            "kl": share * mean(most),
            "kept": {name: interval(values) for name, values in kept.items()},
            "differences": {f"{a} - {b}": interval([x - y for x, y in zip(kept[a], kept[b])]) for a, b in DIFFERENCES},
        }
    return found


def at_the_same_law(models: list[Model], measure: Meter) -> dict[str, dict]:
    """Rules token by token and as block verification against their own law."""
    found = {}
    for name, rule in FIXED.items():
        rows = []
        for number, pair in enumerate(models):
            targets = law_targets(pair, rule)
            by_token = own_targets(pair, rule) if isinstance(rule, Cactus) else targets
            token = measure(pair, Contestant(by_token, False), number)
            block = measure(pair, Contestant(targets, True), number)
            rows.append((*token, *block))
        found[name] = {
            "kl_token": mean(row[0] for row in rows),
            "kl_block": mean(row[2] for row in rows),
            "kept_token": interval([row[1] for row in rows]),
            "kept_block": interval([row[3] for row in rows]),
            "gain": interval([row[3] / row[1] - 1 for row in rows]),
            "tokens_gain": interval([(row[3] + 1) / (row[1] + 1) - 1 for row in rows]),
        }
    return found


def told(figure: dict[str, float | None], digits: int = 3) -> str:
    if figure["mean"] is None:
        return "-"
    return f"{figure['mean']:.{digits}f} ± {figure['half']:.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Block verification with a raised target.")
    parser.add_argument("--models", type=int, default=10, help="small ones, enumerated, per closeness")
    parser.add_argument("--large-models", type=int, default=3, help="sampled, per closeness")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    figures: dict[str, dict] = {}
    for closeness, distance in DISTANCES.items():
        for m, size, length in EXACT:
            count = args.models if m < EXACT[-1][0] else (args.models + 1) // 2
            models = [model(args.seed * 1000 + i, size, distance) for i in range(count)]
            figures[f"{closeness}, m = {m}, V = {size}"] = compare(models, partial(exactly, m=m, length=length))
    for closeness, m in SAMPLED:
        models = [model(args.seed * 1000 + i, LARGE, DISTANCES[closeness]) for i in range(args.large_models)]
        figures[f"{closeness}, m = {m}, V = {LARGE}"] = compare(models, partial(sampled, m=m))
    report(figures)
    finish({"figures": figures, "seconds": round(time.perf_counter() - began, 1), **vars(args)})


def compare(models: list[Model], measure: Meter) -> dict[str, dict]:
    shared = [float(torch.minimum(pair.p, pair.q).sum(-1).mean()) for pair in models]
    return {
        "overlap": {"mean": mean(shared)},
        "lossless": lossless(models, measure),
        "same_law": at_the_same_law(models, measure),
        "equal_kl": at_equal_kl(models, measure),
    }


def report(figures: dict[str, dict]) -> None:
    show(
        "The same law: kept per block, block verification over token by token",
        "relative gain of the mean kept per block ± 95% over models",
        ("overlap", "lossless", *FIXED),
        [
            (
                name,
                f"{row['overlap']['mean']:.2f}",
                told(row["lossless"]["gain"]),
                *(told(row["same_law"][rule]["gain"]) for rule in FIXED),
            )
            for name, row in figures.items()
        ],
    )
    for share in map(str, TARGETS):
        show(
            f"Equal deviation: {share} of the KL per token at which every draft is kept",
            "kept per block by Cactus token by token, then paired differences of kept ± 95% over models",
            ("KL", "token", "carry - token", "law - token", "carry - law", "ratio law - token", "carry - ratio law"),
            [
                (
                    name,
                    f"{row['equal_kl'][share]['kl']:.3f}",
                    told(row["equal_kl"][share]["kept"]["cactus token"], 2),
                    *(told(figure) for figure in row["equal_kl"][share]["differences"].values()),
                )
                for name, row in figures.items()
            ],
        )


if __name__ == "__main__":
    main()
