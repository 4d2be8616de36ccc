"""What the tests of evaluations share: runs of the Abacus pair, what is in their folders, and records made by hand."""

import gzip
import json
import math

from cactus_decoding.evaluation.plan import Plan, Setting
from cactus_decoding.evaluation.running import Run
from cactus_decoding.sampling import SamplingParams

PLAIN = SamplingParams()
LOSSLESS = Setting.of("lossless", 5, PLAIN)
CACTUS = Setting.of("cactus:1", 5, PLAIN)
VERIFIER = Setting.of("verifier", 5, PLAIN)
TIMES = ("seconds", "verifier_seconds", "drafter_seconds", "tokens_per_second")


def plan_of(settings=(LOSSLESS, CACTUS), tasks=("abacus",), **rest):
    return Plan("abacus", None, tuple(settings), tuple(tasks), **{"limit": 8, "rows": 4, **rest})


def carried_out(plan, folder, **how):
    """The plan in its folder, run to its end; the tasks it was made of."""
    with Run(plan, folder, **how) as run:
        run.carry_out(run.units())
    return run.tasks


def lines_in(folder):
    """Every whole line of every file of responses, by the file's place: what a kill must not take away."""
    while True:
        try:
            return _lines_in(folder)
        except FileNotFoundError:  # a run at work has just put the compressed file in its place
            continue


def _lines_in(folder):
    found = {}
    for path in sorted(folder.glob("responses/*/*/*.jsonl*")):
        if path.suffix == ".new":
            continue
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        place = str(path.relative_to(folder)).removesuffix(".gz")
        lines = data[: data.rfind(b"\n") + 1].split(b"\n")[:-1]
        found[place] = max(found.get(place, []), lines, key=len)
    return found


def responses_in(folder):
    """Every response without its times, by file, problem and sample; each there once."""
    found = {}
    for place, lines in lines_in(folder).items():
        for line in lines:
            record = json.loads(line)
            for name in TIMES:
                del record["stats"][name]
            key = (place, record["item"], record["sample"])
            assert key not in found
            found[key] = record
    return found


def bytes_in(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def record_of(item, score=1.0, sample=0, text="right", **stats):
    """A response: 10 tokens in 4 calls, 12 drafts of which 6 were kept, 1 relaxed and 2 refused, unless said."""
    counts = {
        "tokens": 10, "verifier_calls": 4, "drafted": 12, "kept": 6, "relaxed": 1, "refused": 2, "seconds": 0.5,
        "audit": None, **stats,
    }  # fmt: skip
    return {
        "item": item,
        "sample": sample,
        "score": score,
        "text": text,
        "finish_reason": "eos",
        "stats": counts,
        "places": [[5, 4, 1], [4, 3, 0]],
        "tokens": [[text, "kept"]],
    }


def alike(one, other):
    """The same but for the last digits of measured numbers, which hang on who was decoded beside whom."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-3, abs_tol=1e-4)
    return one == other
