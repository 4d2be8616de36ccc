"""Questions that a model of 135 million parameters can answer at all, some of the time.

    python -m benchmarks.easy [--count 400] [--seed 1] > easy.jsonl

JSON lines for `cactus eval`, made up from lists of words: facts to find in a short text, sentences to repeat, names to
replace, and sums and products of single digits. Chosen by a pilot of the verifier alone (docs/log.md).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

NAMES = (
    "Anna", "Peter", "Maria", "Oscar", "Nora", "Felix", "Clara", "Simon", "Julia", "Martin", "Laura", "Victor",
    "Helen", "Robert", "Alice", "George", "Emma", "Henry", "Lucy", "Arthur",
)  # fmt: skip
CITIES = (
    "Lisbon", "Vienna", "Oslo", "Prague", "Dublin", "Athens", "Warsaw", "Madrid", "Berlin", "Rome", "Helsinki", "Paris",
    "Boston", "Toronto", "Sydney", "Cairo",
)  # fmt: skip
JOBS = (
    "baker", "teacher", "nurse", "carpenter", "pilot", "gardener", "painter", "dentist", "farmer", "librarian",
    "plumber", "lawyer", "tailor", "chemist",
)  # fmt: skip
PETS = ("a grey cat", "a small dog", "two rabbits", "a parrot", "a turtle", "three hens", "a white horse", "a goldfish")
MONTHS = ("January", "March", "April", "May", "June", "July", "September", "October", "November", "December")


@dataclass(frozen=True)
class Person:
    """Someone, and the sentence that tells of them."""

    name: str
    city: str
    job: str
    pet: str
    phone: str
    day: str

    @property
    def sentence(self) -> str:
        return (
            f"{self.name} is a {self.job} from {self.city}, keeps {self.pet}, has the phone number {self.phone} and "
            f"was born on {self.day}."
        )


def people(rng: Random, count: int) -> list[Person]:
    """Without anything in common."""
    columns = [rng.sample(words, count) for words in (NAMES, CITIES, JOBS, PETS)]
    phones = [f"555-{number:04d}" for number in rng.sample(range(10_000), count)]
    days = [f"{rng.randint(1, 28)} {month}" for month in rng.sample(MONTHS, count)]
    return [Person(*parts) for parts in zip(*columns, phones, days)]


def find_fact(rng: Random) -> dict[str, str]:
    """One fact about one of three."""
    some = people(rng, 3)
    asked = rng.choice(some)
    question, fact = rng.choice(
        [
            (f"What is the phone number of {asked.name}?", "phone"),
            (f"Which city is {asked.name} from?", "city"),
            (f"What is the job of {asked.name}?", "job"),
            (f"When was {asked.name} born?", "day"),
            (f"Who is the {asked.job}?", "name"),
        ]
    )
    others = "|".join(rf"\b{getattr(person, fact)}\b" for person in some if person is not asked)
    answer = rf"(?s)^(?!.*({others})).*\b{getattr(asked, fact)}\b"  # this fact, and not those of the others
    text = " ".join(person.sentence for person in some)
    return {"prompt": f"{text}\n\n{question} Answer in a few words.", "answer": answer, "compare": "regex"}


def repeat_sentence(rng: Random) -> dict[str, str]:
    """The whole sentence about one of three."""
    some = people(rng, 3)
    asked = rng.choice(some)
    text = "\n".join(person.sentence for person in some)
    prompt = f"{text}\n\nCopy the sentence about {asked.name}, word for word."
    return {"prompt": prompt, "answer": asked.sentence, "compare": "contains"}


def replace_name(rng: Random) -> dict[str, str]:
    """A text of two sentences with another name in it."""
    one, other = people(rng, 2)
    text = f"{one.name} lives in {one.city}. Every morning {one.name} feeds {one.pet} and goes to work as a {one.job}."
    answer = text.replace(one.name, other.name)
    prompt = f"{text}\n\nWrite the text again with the name {other.name} in place of {one.name}."
    return {"prompt": prompt, "answer": answer, "compare": "contains"}


def calculate(rng: Random) -> dict[str, str]:
    """Two digits added or multiplied."""
    left, right = rng.randint(2, 9), rng.randint(2, 9)
    word, result = rng.choice([("plus", left + right), ("times", left * right)])
    ask = rng.choice(["Give only the number.", "Answer with a number.", "Reply with the result alone."])
    prompt = f"What is {left} {word} {right}? {ask}"
    return {"prompt": prompt, "answer": str(result), "compare": "number"}


KINDS: dict[str, Callable[[Random], dict[str, str]]] = {
    "fact": find_fact,
    "repeat": repeat_sentence,
    "replace": replace_name,
    "calculate": calculate,
}


def problems(count: int, seed: int) -> list[dict[str, str]]:
    """The kinds in turns, no question twice; the same for a seed."""
    rng, kinds = Random(seed), list(KINDS)
    found: dict[str, dict[str, str]] = {}
    while len(found) < count:
        kind = kinds[len(found) % len(kinds)]
        problem = KINDS[kind](rng)
        found.setdefault(problem["prompt"], {"id": f"{kind}-{len(found)}", **problem})
    return list(found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description="Easy questions, as JSON lines.")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    for problem in problems(args.count, args.seed):
        print(json.dumps(problem))


if __name__ == "__main__":
    main()
