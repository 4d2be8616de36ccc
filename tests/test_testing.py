"""The mock models: their laws are those of the table, their rows keep to the protocol, their scripts are said."""

import re
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cactus_decoding.drafters import PromptLookup
from cactus_decoding.errors import BatchFailed, BrokenLogits, InvalidParameter, PairMismatch
from cactus_decoding.generation.pair import Pair
from cactus_decoding.models.base import Vocabulary
from cactus_decoding.models.transformers import TransformersModel
from cactus_decoding.rules import BoundedRatio, Cactus, Lossless
from cactus_decoding.testing import (
    BROKEN,
    END,
    REPLY,
    MockModel,
    byte_tokenizer,
    mock_pair,
    random_table,
    scripted_pair,
    table_law,
)
from tests.tiny import tiny_model

DOC = Path(__file__).parent.parent / "docs" / "testing.md"


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_a_table_is_looked_up_by_the_last_few_ids(order):
    table = random_table(0, size=4, order=order)
    law = table_law(table)
    assert torch.equal(law([1, 3, 2, 1]), table[(3, 2, 1)[3 - order :]])
    assert torch.equal(law([2]), table[(0, 0, 2)[3 - order :]])  # what would stand before counts as 0


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (torch.ones(2, 3) / 3, r"shape \[2, 3\]"),
        (torch.tensor(1.0), r"shape \[\]"),
        (torch.tensor([[0.5, 0.5], [0.9, 0.2]]), "does not sum to 1 .off by 0.1"),
        (torch.tensor([1.5, -0.5]), "below 0"),
    ],
)
def test_what_is_no_table_of_laws_is_refused(table, message):
    with pytest.raises(InvalidParameter, match=message):
        MockModel(table)


def test_float32_tables_and_rows_of_nan_are_taken():
    table = random_table(0, 50).float()
    table[3] = torch.nan
    assert table_law(table)([3]).isnan().all()


@cache
def real_model():
    return TransformersModel(tiny_model(0, layers=1), "the real one", Vocabulary(8))


class Compared:
    """The rows of a mock, those of a transformers model, and plain lists, all told the same."""

    most = 6

    def __init__(self):
        self.table = random_table(0, size=8, order=2)
        self.mock, self.real = MockModel(self.table).open(), real_model().open()
        self.texts = []

    def add(self):
        if len(self.texts) < self.most:
            self.texts.append([])
            self.mock.add()
            self.real.add()

    def drop(self, row):
        if row < len(self.texts):
            self.texts[row] = self.texts[-1]
            self.texts.pop()
            self.mock.drop(row)
            self.real.drop(row)

    def rewind(self, row, length):
        if row < len(self.texts):
            del self.texts[row][length:]
            self.mock.rewind(row, length)
            self.real.rewind(row, length)

    def extend(self, first, ids, counts):
        """As many logits of each row as `counts` modulo 3, or fewer."""
        counts = counts[: len(self.texts[first:])]
        if not any(counts):
            return
        keep, ids = [min(count, count % 3) for count in counts], torch.tensor(ids[: len(counts)])
        for text, row, count in zip(self.texts[first:], ids.tolist(), counts):
            text.extend(row[:count])
        logits = self.mock.extend(ids, counts, keep, first)
        self.real.extend(ids, counts, keep, first)
        for text, kept, row in zip(self.texts[first:], keep, logits):
            for place in range(kept):
                context = (0, 0, *text[: len(text) - kept + place + 1])[-2:]
                assert torch.equal(row[place], self.table[context].log())


place = st.integers(0, Compared.most - 1)
lines = st.lists(st.lists(st.integers(0, 7), min_size=4, max_size=4), min_size=Compared.most, max_size=Compared.most)
counts = st.lists(st.integers(0, 4), min_size=Compared.most, max_size=Compared.most)
calls = st.one_of(
    st.just(("add",)),
    st.tuples(st.just("drop"), place),
    st.tuples(st.just("rewind"), place, st.integers(0, 12)),
    st.tuples(st.just("extend"), st.integers(0, 2), lines, counts),
)


@settings(max_examples=40)
@given(st.lists(calls, max_size=25))
def test_rows_hold_what_was_fed_and_not_taken_back_as_those_of_real_models_do(schedule):
    compared = Compared()
    compared.add()
    with torch.inference_mode():
        for verb, *arguments in schedule:
            getattr(compared, verb)(*arguments)
            assert compared.mock.lengths == compared.real.lengths == [len(text) for text in compared.texts]


def one(ids):
    return torch.tensor([ids])


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda rows: rows.extend(one([1, 2]), [3], [1]), r"counts \[3\], width 2"),
        (lambda rows: rows.extend(one([1, 2]), [1], [2]), r"keep \[2\], counts \[1\]"),
        (lambda rows: rows.extend(one([1, 2]), [0], [0]), "nothing to feed"),
        (lambda rows: rows.extend(one([1, 8]), [1], [1]), "an id is none of the 8"),
        (lambda rows: rows.extend(one([1, 2]), [2], [1], 1), "1 rows of ids from row 1 do not fit"),
        (lambda rows: rows.extend(one([1] * 7), [7], [1]), "would hold 7 ids of 6"),
        (lambda rows: rows.drop(1), "no row 1"),
        (lambda rows: (rows.close(), rows.add()), "closed"),
    ],
)
def test_rows_refuse_what_the_protocol_forbids(misuse, message):
    rows = MockModel(random_table(0), context=6, name="the judge").open()
    rows.add()
    with pytest.raises(InvalidParameter, match=f"the judge was used against its protocol: .*{message}"):
        misuse(rows)


def test_a_function_can_be_a_law_and_needs_a_size():
    def counting(ids):
        return torch.eye(5)[len(ids) % 5]

    with pytest.raises(InvalidParameter, match="size is missing"):
        MockModel(counting)
    out = mock_pair(MockModel(counting, 5)).generate([0, 0], max_new_tokens=7)
    assert out.ids == (2, 3, 4, 0, 1, 2, 3)


def test_greedy_decoding_follows_the_largest_entries():
    table = random_table(4, 20)
    token, expected = 7, []
    for _ in range(15):
        token = int(table[token].argmax())
        expected.append(token)
    assert list(mock_pair(table).generate([7], temperature=0, max_new_tokens=15).ids) == expected


def test_the_default_pair_takes_and_says_text_and_repeats_itself():
    pair = mock_pair()
    assert isinstance(pair, Pair)
    first, again = (pair.generate("hello", max_new_tokens=60, seed=1, rule=Cactus(0.3)) for _ in range(2))
    other = mock_pair().generate("hello", max_new_tokens=60, seed=1, rule=Cactus(0.3))
    assert first.text == again.text == other.text  # with m="auto": no clock decides
    assert first.events == again.events == other.events
    assert re.fullmatch("[a-z ]{60}", first.text)
    assert first.text != pair.generate("hello", max_new_tokens=60, seed=2).text
    assert 0.6 < first.stats.acceptance < 1.0


def test_a_pair_is_made_of_what_it_is_given():
    verifier, drafter = random_table(0, 5), random_table(1, 5)
    assert mock_pair(verifier, verifier).generate([1], m=4, max_new_tokens=50, seed=1).stats.acceptance == 1.0
    assert mock_pair(verifier, drafter).generate([1], m=4, max_new_tokens=50, seed=1).stats.acceptance < 1.0
    assert mock_pair(verifier, drafter, eos=range(5)).generate([1], seed=1).finish_reason == "eos"
    repeating = mock_pair(torch.eye(5), PromptLookup()).generate([1, 1], m=3, max_new_tokens=9)
    assert repeating.ids == (1,) * 9
    assert repeating.stats.accepted == 6
    with pytest.raises(PairMismatch, match="verifier has 5 ids and the drafter 8"):
        mock_pair(verifier, random_table(1, 8))


@pytest.mark.parametrize("broken", ["verifier", "drafter"])
def test_a_row_of_nan_breaks_the_response_that_comes_upon_it(broken):
    tables = {"verifier": random_table(0), "drafter": random_table(1)}
    tables[broken][5] = torch.nan
    pair = mock_pair(**tables)
    with pytest.raises(BrokenLogits, match=f"the {broken} returned NaN"):
        pair.generate([5], m=2)
    if broken == "verifier":  # the drafter that is made of it is whole
        with pytest.raises(BrokenLogits, match="the verifier"):
            mock_pair(tables["verifier"]).generate([5], m=2)


@settings(max_examples=30)
@given(
    reply=st.text(st.characters(exclude_characters=BROKEN, exclude_categories=["Cs"]), max_size=40),
    m=st.one_of(st.just("auto"), st.integers(0, 6)),
    rule=st.sampled_from([Lossless(), Cactus(1.0), BoundedRatio(3.0)]),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    acceptance=st.floats(0, 1),
    penalty=st.sampled_from([0.0, 1.0]),
)
def test_a_script_is_said_whatever_the_options(reply, m, rule, temperature, acceptance, penalty):
    pair = scripted_pair(reply, acceptance=acceptance)
    out = pair.generate("Say it!", m=m, rule=rule, temperature=temperature, presence_penalty=penalty)
    assert out.text == reply
    assert out.finish_reason == "eos"
    assert out.ids == (*reply.encode(), 257)
    assert out.stats.relaxed == 0
    assert "".join(pair.stream("Say it!", m=m)) == reply


@pytest.mark.parametrize("acceptance", [0.0, 0.25, 0.75, 1.0])
def test_drafts_of_a_script_are_kept_as_often_as_told(acceptance):
    stats = scripted_pair("nanana " * 50, acceptance=acceptance).generate("Batman?", m=2, max_new_tokens=350).stats
    assert stats.examined > 200
    assert stats.acceptance == pytest.approx(acceptance, abs=0.07 if 0.0 < acceptance < 1.0 else 0.0)


def test_an_acceptance_that_is_no_chance_is_refused():
    with pytest.raises(InvalidParameter, match=r"acceptance is 1\.5"):
        scripted_pair("x", acceptance=1.5)


def test_a_script_may_depend_on_the_prompt_in_whatever_form_it_comes():
    pair = scripted_pair(str.upper)
    ids = pair.tokenizer.encode("größe")
    messages = [{"role": "system", "content": "Be"}, {"role": "user", "content": "brief"}]
    assert [out.text for out in pair.generate(["größe", ids, messages])] == ["GRÖSSE", "GRÖSSE", "BE\nBRIEF"]
    assert pair.generate("größe", chat=False).text == "GRÖSSE"
    assert pair.generate(list(b"no end of a prompt")).text == ""
    assert pair.tokenizer.convert_ids_to_tokens([256, 257]) == [REPLY, END]
    with pytest.raises(InvalidParameter, match="the reply to 'c' is None"):
        scripted_pair({"a": "b"}.get).generate("c")


def test_stops_and_caps_cut_a_script():
    pair = scripted_pair("one, two, three")
    assert pair.generate("Count!", stop=", t").text == "one"
    capped = pair.generate("Count!", max_new_tokens=5)
    assert (capped.text, capped.finish_reason) == ("one, ", "length")


def test_a_broken_script_fails_alone():
    pair = scripted_pair({"a": "yes", "b": "no" + BROKEN, "c": BROKEN}.__getitem__)
    with pytest.raises(BatchFailed) as caught:
        pair.generate(["a", "b", "c"])
    assert caught.value.outputs[0].text == "yes"
    assert caught.value.errors.keys() == {1, 2}
    stream = pair.stream("b", m=0)
    assert next(stream) == "n"
    assert next(stream) == "o"
    with pytest.raises(BrokenLogits, match="behind token 2"):
        next(stream)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_ids_of_the_byte_tokenizer_are_bytes(text):
    tokenizer = byte_tokenizer()
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text


def test_special_tokens_of_the_byte_tokenizer_follow_the_bytes():
    tokenizer = byte_tokenizer(["<|a|>", "<|b|>"])
    assert tokenizer.encode("x<|b|>y<|a|>") == [120, 257, 121, 256]
    assert len(tokenizer) == 258
    assert tokenizer.decode([120, 257], skip_special_tokens=True) == "x"


def test_the_page_on_testing_does_what_it_says():
    blocks = re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL)
    names = {}
    for block in blocks:
        exec(block, names)
    names["test_first_line"]()
    assert len(blocks) == 4
