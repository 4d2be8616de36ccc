"""Problems from files and from the generator, and how an answer to them is judged."""

import json

import pytest

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.evaluation.tasks.abacus import Abacus
from cactus_decoding.evaluation.tasks.base import Item
from cactus_decoding.evaluation.tasks.jsonl import COMPARISONS, JsonLines
from cactus_decoding.evaluation.tasks.registry import make_task


def written(folder, *entries):
    path = folder / "mine.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("compare", "answer", "right", "wrong"),
    [
        ("exact", "New York", ["New York", " new  york\n"], ["New York!", "York", ""]),
        ("contains", "new york", ["It is New\nYork.", "new york"], ["New Jersey", ""]),
        ("number", "1200", ["1200", "3, then 1,200", "1200.0.", "x = 1,200."], ["1200 of 7", "120", "", "-1200"]),
        ("number", -2.5, ["-2.5", "so -2.50"], ["2.5", "-2"]),
        ("choice", "B", ["B", "Not A but (B).", "answer: B"], ["b", "A or B or C", "BC", ""]),
        ("regex", r"^\d+ km$", ["12 km"], ["12 km away", "km", ""]),
    ],
)  # fmt: skip
def test_each_comparison_tells_right_from_wrong(tmp_path, compare, answer, right, wrong):
    task = JsonLines(written(tmp_path, {"prompt": "?", "answer": answer, "compare": compare}))
    (item,) = task.items
    assert {text: task.score(item, text) for text in right} == dict.fromkeys(right, 1.0)
    assert {text: task.score(item, text) for text in wrong} == dict.fromkeys(wrong, 0.0)


def test_every_comparison_is_tried_above_and_exact_is_the_one_meant_by_silence(tmp_path):
    assert set(COMPARISONS) == {"exact", "contains", "number", "choice", "regex"}
    task = JsonLines(written(tmp_path, {"prompt": "?", "answer": 7}))
    assert [task.score(task.items[0], text) for text in ("7", "7 or so")] == [1.0, 0.0]


def test_ids_are_given_or_count_and_blank_lines_do_not(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text(
        '\n{"prompt": "a", "answer": "x"}\n\n{"prompt": [{"role": "user", "content": "b"}], "answer": 1, "id": 9}\n'
    )
    first, second = make_task(str(path)).items
    assert (first.id, second.id) == ("0", "9")
    assert second.prompt == [{"role": "user", "content": "b"}]


GOOD = '{"prompt": "?", "answer": "x"}'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "no JSON"),
        ("[1]", "no object with a prompt and an answer"),
        ('{"answer": "x"}', "no object with a prompt and an answer"),
        ('{"prompt": "", "answer": "x"}', "prompt is ''"),
        ('{"prompt": 3, "answer": "x"}', "prompt is 3"),
        ('{"prompt": "?", "answer": "x", "promt": 1}', "'promt', which is none of id, prompt"),
        ('{"prompt": "?", "answer": "x", "compare": "fuzzy"}', "compare is 'fuzzy'"),
        ('{"prompt": "?", "answer": "x", "compare": ["exact"]}', "compare is ['exact']"),
        ('{"prompt": "?", "answer": true}', "answer is True"),
        ('{"prompt": "?", "answer": null}', "answer is None"),
        ('{"prompt": "?", "answer": " "}', "cannot be compared as 'exact'"),
        ('{"prompt": "?", "answer": "three", "compare": "number"}', "answer is 'three'"),
        ('{"prompt": "?", "answer": "BC", "compare": "choice"}', "answer is 'BC'"),
        ('{"prompt": "?", "answer": "(", "compare": "regex"}', "answer is '('"),
        ('{"prompt": "?", "answer": "x", "id": "0"}', "the id '0' is there twice"),
    ],
)
def test_a_line_that_does_not_fit_is_refused_with_its_number(tmp_path, line, message):
    path = tmp_path / "mine.jsonl"
    path.write_text(f"{GOOD}\n\n{line}\n")
    with pytest.raises(InvalidParameter) as caught:
        make_task(str(path))
    assert message in str(caught.value)
    assert f"{str(path)!r}, line 3" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"), [(b"\n \n", "holds no problem"), (b"\xff\xfe", "cannot be read"), (None, "cannot be read")]
)
def test_a_file_without_problems_is_refused_by_name(tmp_path, data, message):
    path = tmp_path / "mine.jsonl"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(InvalidParameter, match=message) as caught:
        make_task(str(path))
    assert repr(str(path)) in str(caught.value)


@pytest.mark.parametrize(("text", "score"), [("so\n#### {}", 1.0), ("#### 1{}", 0.0), ("it is {}", 0.0), ("", 0.0)])
def test_an_abacus_answer_stands_in_its_own_line(text, score):
    task = make_task("abacus", count=3)
    for item in task.items:
        assert task.score(item, text.format(item.answer)) == score


def test_more_abacus_problems_begin_with_the_same_ones():
    assert Abacus(40).items[:15] == Abacus(15).items
    assert Abacus(40).fingerprint(15) == Abacus(15).fingerprint(15) != Abacus(40).fingerprint(16)
    assert len({item.prompt for item in Abacus(40).items}) == 40


def test_a_fingerprint_changes_with_every_word_and_with_how_it_is_judged(tmp_path):
    plain = {"id": "a", "prompt": "How many?", "answer": "3"}
    changes = [{}, {"id": "b"}, {"prompt": "How  many?"}, {"answer": "4"}, {"compare": "number"}]
    prints = [JsonLines(written(tmp_path, plain | change)).fingerprint(1) for change in changes]
    task = Abacus(1)
    task.items = [Item(task.items[0].id, task.items[0].prompt, task.items[0].answer, {"max_new_tokens": 9})]
    assert len({*prints, task.fingerprint(1), Abacus(1).fingerprint(1)}) == len(changes) + 2
    assert JsonLines(written(tmp_path, plain | {"compare": "exact"})).fingerprint(1) == prints[0]
