"""Models made of tables, for the tests of code that uses this package.

Nothing is downloaded or trained. A model here looks its next-token law up, so laws are exact, a script is said word
for word, and a test takes milliseconds. All the rest is real: `mock_pair` and `scripted_pair` give a `Pair` with
the engine, sessions, rules, streams and statistics of any other. A row of NaN in a table, or `BROKEN` in a
script, makes a response fail.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from cactus_decoding.drafters import Drafter, ModelDrafter
from cactus_decoding.errors import InvalidParameter, PairMismatch
from cactus_decoding.generation.drafting import StepCosts
from cactus_decoding.generation.pair import Pair
from cactus_decoding.models.base import Vocabulary

CONTEXT = 4096  # ids a row of a mock model holds, unless it is told otherwise
BROKEN = "\0"  # in a script: here the verifier returns NaN
REPLY, END = "<|reply|>", "<|end|>"  # in a scripted pair: what ends a prompt, and what ends a response
_REPLY, _END = 256, 257
_ROUNDING = 1e-5  # how far from 1 a row of a table may sum: float32 passes
_DRAFT_COST = 0.1  # of a verifier call; any fixed number makes m="auto" repeat itself

Law = Callable[[Sequence[int]], Tensor]
"""The ids so far, at least one -> ``[V]`` probabilities of the next."""


def table_law(table: Tensor) -> Law:
    """The law of a table whose last axis is the next id and whose others are the last few ids, the latest one last.

    ``[V]`` is the same behind everything, ``[V, V]`` depends on the last id, ``[V, V, V]`` on the last two, and so
    on; what would stand before the first id counts as id 0. A row of NaN breaks the response that comes upon it.

    Raises `InvalidParameter` where the axes differ, or a row is neither a distribution nor NaN.
    """
    k = table.dim() - 1
    if k < 0 or len(set(table.shape)) != 1:
        raise InvalidParameter(f"the table has shape {list(table.shape)}, but must be [V], [V, V], [V, V, V], ...")
    table = table.to("cpu", torch.float64)
    off = (table.sum(-1) - 1.0).abs().nan_to_num(0.0).max()
    if bool((table < 0.0).any()) or off > _ROUNDING:
        raise InvalidParameter(
            f"a row of the table does not sum to 1 (off by {float(off):.3g}), or holds a number below 0. Rows are "
            "probabilities: divide each by its sum."
        )
    return lambda ids: table[(*(0,) * k, *ids)[len(ids) :]]


def random_table(seed: int, size: int = 8, order: int = 1, spread: float = 1.5) -> Tensor:
    """A table of random laws, ``[size] * (order + 1)`` in float64; the larger ``spread``, the surer each law is."""
    generator = torch.Generator().manual_seed(seed)
    return (spread * torch.randn([size] * (order + 1), generator=generator, dtype=torch.float64)).softmax(-1)


class MockModel:
    """A `cactus_decoding.models.base.Model` that looks up what comes next, on the CPU, in float64.

    Args:
        law: a table, see `table_law`, or a function from the ids so far to ``[size]`` probabilities.
        size: how many ids there are; a table knows.
        context: the most ids a row may hold.
    """

    def __init__(
        self, law: Tensor | Law, size: int | None = None, *, name: str = "the mock", context: int = CONTEXT
    ) -> None:
        if isinstance(law, Tensor):
            size = law.shape[-1] if law.dim() else 0
        if size is None:
            raise InvalidParameter("size is missing: a law that is a function does not tell how many ids there are.")
        self.law = table_law(law) if isinstance(law, Tensor) else law
        self.name = name
        self.vocabulary = Vocabulary(size)
        self.rows = size
        self.context = context
        self.device = torch.device("cpu")
        self.way = "together, looked up"

    def open(self) -> MockRows:
        return MockRows(self)


class MockRows:
    """The rows of a `MockModel`. They hold the ids that were fed and not taken back, and a law sees no others.

    Raises `InvalidParameter` for what the protocol of `Rows` forbids, such as use after `close`.
    """

    def __init__(self, model: MockModel) -> None:
        self.lengths: list[int] = []
        self.seconds = 0.0
        self._model = model
        self._ids: list[list[int]] = []
        self._closed = False

    def add(self) -> None:
        self._require(not self._closed, "these rows are closed")
        self._ids.append([])
        self.lengths.append(0)

    def drop(self, row: int) -> None:
        self._require(0 <= row < len(self._ids), f"there is no row {row} to drop")
        self._ids[row], self.lengths[row] = self._ids[-1], self.lengths[-1]
        self._ids.pop()
        self.lengths.pop()

    def extend(self, ids: Tensor, counts: Sequence[int], keep: Sequence[int], first: int = 0) -> Tensor:
        began = time.perf_counter()
        self._require_fitting(ids, counts, keep, first)
        logits = torch.zeros(len(counts), max(keep), self._model.vocabulary.size, dtype=torch.float64)
        for place, (count, kept) in enumerate(zip(counts, keep)):
            held = self._ids[first + place]
            held += ids[place, :count].tolist()
            self.lengths[first + place] = len(held)
            for behind in range(kept):
                logits[place, behind] = self._model.law(held[: len(held) - kept + behind + 1]).log()
        self.seconds += time.perf_counter() - began
        return logits

    def rewind(self, row: int, length: int) -> None:
        del self._ids[row][length:]
        self.lengths[row] = len(self._ids[row])

    def close(self) -> None:
        self._ids, self.lengths, self._closed = [], [], True

    def _require_fitting(self, ids: Tensor, counts: Sequence[int], keep: Sequence[int], first: int) -> None:
        n, w = ids.shape
        size, context = self._model.vocabulary.size, self._model.context
        lengths = self.lengths[first : first + n]
        self._require(n == len(counts) == len(keep) == len(lengths), f"{n} rows of ids from row {first} do not fit")
        self._require(all(0 <= k <= c <= w for k, c in zip(keep, counts)), f"keep {keep}, counts {counts}, width {w}")
        self._require(any(counts), "there is nothing to feed")
        self._require(bool(((ids >= 0) & (ids < size)).all()), f"an id is none of the {size}")
        fed = max(length + count for length, count in zip(lengths, counts))
        self._require(fed <= context, f"a row would hold {fed} ids of {context}")

    def _require(self, condition: bool, what: str) -> None:
        if not condition:
            raise InvalidParameter(f"{self._model.name} was used against its protocol: {what}.")


class MockPair(Pair):
    """A pair whose steps cost what it says, and not what was measured: ``m="auto"`` repeats itself too."""

    def step_costs(self, n: int) -> StepCosts:
        return StepCosts(((0, 1.0), (1, 1.0 + _DRAFT_COST)))


def mock_pair(
    verifier: Tensor | MockModel | None = None,
    drafter: Tensor | MockModel | Drafter | None = None,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    eos: Iterable[int] = (),
) -> Pair:
    """A pair with the laws you give; without any, one that babbles in small letters and takes texts.

    Args:
        verifier: a table of probabilities (see `table_law`), or a model. By default random letters over bytes, with
            `byte_tokenizer`.
        drafter: likewise, or any drafter; by default three quarters the verifier's law and one quarter flat.
        tokenizer: without one, prompts and outputs are ids.
        eos: the ids that end a response.

    Raises:
        InvalidParameter: a table is not one of probabilities.
        PairMismatch: drafter and verifier have different numbers of ids.
    """
    if verifier is None:
        verifier, tokenizer = _babble(), tokenizer or byte_tokenizer()
    if isinstance(verifier, Tensor):
        verifier = MockModel(verifier, name="the verifier (mock)")
    size = verifier.vocabulary.size
    if drafter is None:
        drafter = MockModel(_flattened(verifier.law), size, name="the drafter (mock)", context=verifier.context)
    if isinstance(drafter, Tensor):
        drafter = MockModel(drafter, name="the drafter (mock)", context=verifier.context)
    if isinstance(drafter, MockModel):
        if drafter.vocabulary.size != size:
            raise PairMismatch(f"the verifier has {size} ids and the drafter {drafter.vocabulary.size}.")
        drafter = ModelDrafter(drafter)
    return MockPair(verifier, drafter, tokenizer, frozenset(eos))


def _babble() -> Tensor:
    table = torch.zeros(256, 256, dtype=torch.float64)
    letters = list(b" abcdefghijklmnopqrstuvwxyz")
    table[:, letters] = random_table(0, 256)[:, letters]
    return table / table.sum(-1, keepdim=True)


def _flattened(law: Law) -> Law:
    def flattened(ids: Sequence[int]) -> Tensor:
        row = law(ids)
        return torch.where(row.isnan(), 0.0, 0.75 * row) + torch.where(row.isnan(), 1.0, 0.25) / len(row)

    return flattened


def scripted_pair(reply: str | Callable[[str], str], *, acceptance: float = 0.75) -> Pair:
    """A pair that answers what it is told, whatever the rule, the seed and the temperature, and then ends.

    Prompts may be texts or messages, whose contents are joined by newlines. A prompt of ids must end with `REPLY`, as
    what the pair's tokenizer encodes does; any other is answered with nothing. Ids are bytes, `REPLY` and `END`.

    Args:
        reply: the answer, or a function from the prompt to it. Where it says `BROKEN` the verifier returns NaN, and
            the response fails, up to a block before.
        acceptance: the chance that the drafter is right at a byte of the reply, drawn by its place and so the same
            every time. It is always sure.
    """
    if not 0.0 <= acceptance <= 1.0:
        raise InvalidParameter(f"acceptance is {acceptance}, but must lie in [0, 1].")
    tokenizer = byte_tokenizer((REPLY, END))
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {REPLY}", special_tokens=[(REPLY, _REPLY)]
    )
    tokenizer.chat_template = "{{ messages | map(attribute='content') | join('\n') }}" + REPLY
    script = _Script(reply)
    verifier = MockModel(script, _END + 1, name="the verifier (scripted)")
    drafter = MockModel(_Prompter(script, acceptance), _END + 1, name="the drafter (scripted)")
    return mock_pair(verifier, drafter, tokenizer=tokenizer, eos=[_END])


class _Script:
    """All mass on the reply's next byte."""

    def __init__(self, reply: str | Callable[[str], str]) -> None:
        self._reply = reply
        self._bytes = lru_cache(maxsize=None)(self._encoded)

    def __call__(self, ids: Sequence[int]) -> Tensor:
        wanted, _ = self.next(ids)
        return torch.full((_END + 1,), torch.nan) if wanted == ord(BROKEN) else _certain(wanted)

    def next(self, ids: Sequence[int]) -> tuple[int, int]:
        """The id that is to follow, and its place in the reply."""
        begin = next((at for at in range(len(ids), 0, -1) if ids[at - 1] == _REPLY), None)
        if begin is None:
            return _END, 0
        place, text = len(ids) - begin, self._bytes(tuple(ids[: begin - 1]))
        return (text[place] if place < len(text) else _END), place

    def _encoded(self, prompt: tuple[int, ...]) -> bytes:
        if isinstance(self._reply, str):
            return self._reply.encode()
        text = bytes(i for i in prompt if i < _REPLY).decode(errors="replace")
        reply = self._reply(text)
        if not isinstance(reply, str):
            raise InvalidParameter(f"the reply to {text!r} is {reply!r}, but must be a text. Script that prompt too.")
        return reply.encode()


class _Prompter:
    """Sure of the script's next byte, or, at places where it has to be wrong, of another one."""

    def __init__(self, script: _Script, acceptance: float) -> None:
        self._script = script
        self._acceptance = acceptance

    def __call__(self, ids: Sequence[int]) -> Tensor:
        wanted, place = self._script.next(ids)
        right = random.Random(place).random() < self._acceptance
        return _certain(wanted if right else (wanted + 1) % _REPLY)


def _certain(token: int) -> Tensor:
    law = torch.zeros(_END + 1, dtype=torch.float64)
    law[token] = 1.0
    return law


def byte_tokenizer(extra: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """One id per byte, its value, then one per special token in ``extra``."""
    core = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(_byte_characters())}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast(tokenizer_object=core)  # type: ignore[no-untyped-call]
    tokenizer.add_special_tokens({"additional_special_tokens": list(extra)})
    return tokenizer


def _byte_characters() -> list[str]:
    """The character that stands for each byte in byte-level vocabularies: itself, if it can be seen."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = itertools.count(256)
    return [chr(byte if byte in visible else next(others)) for byte in range(256)]
