"""The kinds of stories that word problems tell: sentences, and the calculation steps that follow from them.

Needs nothing but the standard library. Every random choice goes through `Random.random()`, the one method whose
sequence Python guarantees across versions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

T = TypeVar("T")

LARGEST = 99
"""No operand and no result exceeds this number, and none is below 1."""

STEPS = range(2, 5)
"""How many calculation steps a problem may take."""

PEOPLE = (
    ("Mia", "She", "her"), ("Tom", "He", "him"), ("Ana", "She", "her"), ("Leo", "He", "him"),
    ("Eva", "She", "her"), ("Sam", "He", "him"), ("Zoe", "She", "her"), ("Max", "He", "him"),
    ("Ivy", "She", "her"), ("Ben", "He", "him"), ("Lily", "She", "her"), ("Dan", "He", "him"),
    ("Nora", "She", "her"), ("Jack", "He", "him"), ("Ruth", "She", "her"), ("Omar", "He", "him"),
)  # fmt: skip
THINGS = (
    "apples", "pens", "books", "cards", "coins", "eggs", "shells", "stamps",
    "balls", "cookies", "stickers", "cups", "beads", "lemons", "candles", "stones",
)  # fmt: skip
GOODS = ("pens", "books", "cups", "balls", "lamps", "cakes", "hats", "toys", "mugs", "kites")
CONTAINERS = (("boxes", "box"), ("bags", "bag"), ("packs", "pack"), ("baskets", "basket"), ("jars", "jar"))
DAYS = ("Monday", "Tuesday", "Friday", "Sunday")
PURPOSES = ("food", "books", "games", "clothes")


@dataclass(frozen=True, slots=True)
class Step:
    """One calculation: all that a line of a solution has to say, free of wording.

    `subject` opens the clause ("Mia", "they", "the bags", "each friend"); `verb` is a kind of verb ("have",
    "cost", ...), not a form of it; `unit` is what the numbers count; `remains` marks a result that is left over.
    """

    subject: str
    verb: str
    left: int
    operator: str
    right: int
    unit: str
    remains: bool = False

    @property
    def result(self) -> int:
        """The number the calculation comes to; divisions are exact by construction."""
        return _OPERATIONS[self.operator](self.left, self.right)


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left // right,
}


class Story:
    """A problem in the making: sentences told so far, steps so far, and the source of chance."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.sentences: list[str] = []
        self.steps: list[Step] = []

    def number(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return low + int(self.rng.random() * (high - low + 1))

    def pick(self, options: Sequence[T]) -> T:
        return options[self.number(0, len(options) - 1)]

    def pick_distinct(self, options: Sequence[T], count: int) -> list[T]:
        left = list(options)
        return [left.pop(self.number(0, len(left) - 1)) for _ in range(count)]

    def weighted(self, options: Sequence[tuple[int, T]]) -> T:
        """One of the options, each drawn in proportion to its whole-number weight."""
        ticket = self.number(1, sum(weight for weight, _ in options))
        for weight, option in options:
            ticket -= weight
            if ticket <= 0:
                return option
        raise AssertionError("a ticket within the sum of the weights always finds its option")

    def chance(self, percent: int) -> bool:
        return self.number(1, 100) <= percent

    def tell(self, *sentences: str) -> None:
        """Add one of the sentences given (ways to say the same)."""
        self.sentences.append(self.pick(sentences))

    def solve(
        self, subject: str, verb: str, calculation: tuple[int, str, int], unit: str, *, remains: bool = False
    ) -> int:
        """Add a step and return its result."""
        self.steps.append(Step(subject, verb, *calculation, unit, remains))
        return self.steps[-1].result

    def ask(self, *questions: str, about: str) -> None:
        """Close the story with a question; one story in six gets a sentence before it that changes nothing."""
        if self.chance(17):
            idle = (
                f"{about} is {self.number(6, 15)} years old.",
                f"{about} has {self.number(2, 5)} cousins.",
                f"{about} lives {self.number(2, 9)} miles from school.",
            )
            self.sentences.insert(self.number(1, len(self.sentences)), self.pick(idle))
        self.tell(*questions)

    def fits(self) -> bool:
        """Whether the steps are as many as allowed, all numbers in range, and all divisions exact."""
        return len(self.steps) in STEPS and all(
            min(step.left, step.right, step.result) >= 1
            and max(step.left, step.right, step.result) <= LARGEST
            and (step.operator != "/" or step.left % step.right == 0)
            for step in self.steps
        )


def _belongings(story: Story) -> None:
    """Someone owns things, gains some, loses some, and may share what is there."""
    (name, he, him), (other, _, _) = story.pick_distinct(PEOPLE, 2)
    things = story.pick(THINGS)
    owned = story.number(5, 40)
    story.tell(f"{name} has {owned} {things}.", f"{name} starts with {owned} {things}.")
    for _ in range(story.number(1, 3)):
        event = story.weighted(((3, _gain), (4, _loss), (2, _packs)))
        owned = event(story, (name, he, him), other, things, owned)
    if story.chance(25):
        friends = story.number(2, 9)
        story.tell(f"{he} shares all the {things} equally among {friends} friends.")
        story.solve("each friend", "get", (owned, "/", friends), things)
        story.ask(f"How many {things} does each friend get?", about=name)
    else:
        story.ask(f"How many {things} does {name} have now?", f"How many {things} are there now?", about=name)


def _gain(story: Story, who: tuple[str, str, str], other: str, things: str, owned: int) -> int:
    name, he, him = who
    more = story.number(3, 30)
    story.tell(
        f"{he} buys {more} more {things}.",
        f"{he} finds {more} more {things}.",
        f"{other} gives {him} {more} more {things}.",
    )
    return story.solve(name, "have", (owned, "+", more), things)


def _loss(story: Story, who: tuple[str, str, str], other: str, things: str, owned: int) -> int:
    name, he, _ = who
    fewer = story.number(2, 30)
    story.tell(
        f"{he} gives {fewer} {things} to {other}.",
        f"{he} loses {fewer} {things}.",
        f"{he} sells {fewer} of the {things}.",
    )
    return story.solve(name, "have", (owned, "-", fewer), things, remains=True)


def _packs(story: Story, who: tuple[str, str, str], other: str, things: str, owned: int) -> int:
    name, he, _ = who
    plural, single = story.pick(CONTAINERS)
    count, each = story.number(2, 9), story.number(2, 9)
    story.tell(f"{he} buys {count} {plural} with {each} {things} in each {single}.")
    held = story.solve(f"the {plural}", "hold", (count, "*", each), things)
    return story.solve(name, "have", (owned, "+", held), things)


def _comparison(story: Story) -> None:
    """Two or three people whose belongings are told by comparison."""
    people = [name for name, _, _ in story.pick_distinct(PEOPLE, story.weighted(((1, 2), (1, 3))))]
    things = story.pick(THINGS)
    amounts = [story.number(4, 30)]
    story.tell(f"{people[0]} has {amounts[0]} {things}.")
    for name in people[1:]:
        known = story.number(0, len(amounts) - 1)
        amounts.append(_relate(story, name, people[known], things, amounts[known]))
    if people[2:] and story.chance(30):
        story.ask(f"How many {things} does {people[2]} have?", about=people[0])
        return
    total = amounts[0]
    for amount in amounts[1:]:
        total = story.solve("they", "have", (total, "+", amount), things)
    story.ask(f"How many {things} do they have together?", f"How many {things} are there in all?", about=people[0])


def _relate(story: Story, name: str, than: str, things: str, amount: int) -> int:
    kind = story.weighted(((4, "more"), (4, "fewer"), (2, "times"), (2, "half")))
    if kind == "more":
        change = story.number(2, 30)
        story.tell(f"{name} has {change} more {things} than {than}.")
        return story.solve(name, "have", (amount, "+", change), things)
    if kind == "fewer":
        change = story.number(2, 25)
        story.tell(f"{name} has {change} fewer {things} than {than}.")
        return story.solve(name, "have", (amount, "-", change), things)
    if kind == "half":
        story.tell(f"{name} has half as many {things} as {than}.")
        return story.solve(name, "have", (amount, "/", 2), things)
    times, factor = story.pick((("twice", 2), ("twice", 2), ("3 times", 3)))
    story.tell(f"{name} has {times} as many {things} as {than}.")
    return story.solve(name, "have", (amount, "*", factor), things)


def _wages(story: Story) -> None:
    """Someone works on two days, is paid by the hour, and may spend or add to the pay."""
    name, he, _ = story.pick(PEOPLE)
    first, second = story.pick_distinct(DAYS, 2)
    wage, early, late = story.number(3, 9), story.number(2, 5), story.number(2, 5)
    story.tell(f"{name} earns ${wage} each hour.", f"{name} gets ${wage} each hour.")
    story.tell(f"{he} works {early} hours on {first} and {late} hours on {second}.")
    hours = story.solve(name, "work", (early, "+", late), "hours")
    money = story.solve(name, "earn", (hours, "*", wage), "dollars")
    if story.chance(65):
        spent = story.number(3, 30)
        story.tell(f"{he} spends ${spent} on {story.pick(PURPOSES)}.")
        story.solve(name, "have", (money, "-", spent), "dollars", remains=True)
        story.ask(f"How many dollars does {name} have left?", about=name)
    else:
        story.ask(f"How many dollars does {name} earn?", about=name)


def _shopping(story: Story) -> None:
    """Someone buys one or two kinds of goods and pays, perhaps with change or a coupon."""
    name, he, _ = story.pick(PEOPLE)
    first, second = story.pick_distinct(GOODS, 2)
    count, price = story.number(2, 9), story.number(2, 9)
    if story.chance(30):
        purse = story.number(20, LARGEST)
        story.tell(f"{name} has ${purse}.")
        story.tell(f"{he} buys {count} {first} for ${price} each.")
        cost = story.solve(f"the {first}", "cost", (count, "*", price), "dollars")
        story.solve(name, "have", (purse, "-", cost), "dollars", remains=True)
        story.ask(f"How many dollars does {name} have left?", about=name)
        return
    count_2, price_2 = story.number(2, 9), story.number(2, 9)
    story.tell(f"{name} buys {count} {first} for ${price} each and {count_2} {second} for ${price_2} each.")
    cost = story.solve(f"the {first}", "cost", (count, "*", price), "dollars")
    cost_2 = story.solve(f"the {second}", "cost", (count_2, "*", price_2), "dollars")
    total = story.solve(name, "pay", (cost, "+", cost_2), "dollars")
    if story.chance(50):
        rebate = story.number(2, 12)
        story.tell(f"{he} has a coupon for ${rebate}.")
        story.solve(name, "pay", (total, "-", rebate), "dollars")
    story.ask(f"How many dollars does {name} pay?", about=name)


def _sharing(story: Story) -> None:
    """Full containers, some of the things lost, the rest shared among friends."""
    name, he, _ = story.pick(PEOPLE)
    things = story.pick(THINGS)
    plural, single = story.pick(CONTAINERS)
    count, each, friends = story.number(2, 9), story.number(2, 9), story.number(2, 9)
    story.tell(
        f"{name} has {count} {plural} with {each} {things} in each {single}.",
        f"{name} buys {count} {plural} with {each} {things} in each {single}.",
    )
    held = story.solve(f"the {plural}", "hold", (count, "*", each), things)
    kept = friends * story.number(2, 9)
    lost = held - kept
    story.tell(f"{he} loses {lost} {things}.", f"{he} sells {lost} of the {things}.")
    story.solve(name, "have", (held, "-", lost), things, remains=True)
    story.tell(f"{he} shares the rest equally among {friends} friends.")
    story.solve("each friend", "get", (kept, "/", friends), things)
    story.ask(f"How many {things} does each friend get?", about=name)


def _reading(story: Story) -> None:
    """Someone reads some pages a day; how many are read, or left to read?"""
    name, _, _ = story.pick(PEOPLE)
    pages, daily, days = story.number(30, LARGEST), story.number(3, 9), story.number(3, 9)
    if whole := story.chance(70):
        story.tell(f"A book has {pages} pages.")
    story.tell(f"{name} reads {daily} pages each day for {days} days.")
    done = story.solve(name, "read", (daily, "*", days), "pages")
    if not whole or story.chance(50):
        more = story.number(2, 20)
        story.tell(f"Then {name} reads {more} more pages.")
        done = story.solve(name, "read", (done, "+", more), "pages")
    if whole:
        story.solve(name, "have", (pages, "-", done), "pages", remains=True)
        story.ask(f"How many pages does {name} have left?", about=name)
    else:
        story.ask(f"How many pages does {name} read?", about=name)


def _saving(story: Story) -> None:
    """Someone saves week by week for something dear."""
    name, he, _ = story.pick(PEOPLE)
    weekly, weeks = story.number(3, 9), story.number(3, 9)
    story.tell(f"{name} saves ${weekly} each week for {weeks} weeks.")
    money = story.solve(name, "save", (weekly, "*", weeks), "dollars")
    if story.chance(50):
        before = story.number(4, 30)
        story.tell(f"{he} already has ${before} in a jar.")
        money = story.solve(name, "have", (money, "+", before), "dollars")
    if story.chance(60):
        price = money + story.number(3, 40)
        story.tell(f"A game costs ${price}.", f"A kite costs ${price}.")
        story.solve(name, "need", (price, "-", money), "dollars")
        story.ask(f"How many more dollars does {name} need?", about=name)
    else:
        story.ask(f"How many dollars does {name} have now?", about=name)


KINDS: tuple[tuple[int, Callable[[Story], None]], ...] = (
    (30, _belongings), (20, _comparison), (12, _wages), (16, _shopping), (8, _sharing), (7, _reading), (7, _saving),
)  # fmt: skip
