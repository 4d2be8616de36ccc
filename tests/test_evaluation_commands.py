"""``cactus eval`` and ``cactus sweep`` as a person and as a program meet them."""

import json

import pytest

from tests.evaluated import plan_of, responses_in


def test_eval_prints_a_table_or_one_document_and_names_its_files(cactus_command, tmp_path):
    words = ["eval", "--rules", "cactus:1.0,verifier", "--limit", "6", "--rows", "6", "--threads", "1"]
    words += ["--audit-every", "2", "--out", str(tmp_path / "out")]
    status, out, err = cactus_command(*words, "--json")
    document = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    (task,) = document["tasks"]
    assert (status, task["problems"]) == (0, 6)
    assert [row["rule"] for row in task["settings"]] == ["lossless", "cactus:delta=1", "verifier"]
    assert len(responses_in(tmp_path / "out")) == 18
    assert err.split() == [str(tmp_path / "out" / f"report.{kind}") for kind in ("html", "md", "json")]
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report == document
    assert document["run"]["plan"] == plan_of(rows=6, limit=6, audit_every=2).identity()
    assert all(word in document["run"]["sessions"][0]["command"] for word in words)

    status, out, _ = cactus_command(*words)
    assert status == 0
    for row in task["settings"]:
        assert row["label"] in out
    assert f"cactus:delta=1: {task['settings'][1]['verdict']['text']}" in out
    assert all(len(line) <= 80 for line in out.split("\n") if "points" not in line and "problems" not in line)


def test_lossless_is_always_among_the_rules(cactus_command, tmp_path):
    words = ("eval", "--rules", "verifier", "--limit", "2", "--threads", "1", "--out", str(tmp_path / "out"), "--json")
    status, out, _ = cactus_command(*words)
    assert status == 0
    assert [row["rule"] for row in json.loads(out)["tasks"][0]["settings"]] == ["lossless", "verifier"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["eval", "--rules", "lossless,cactsu:1"], "Did you mean 'cactus'?"),
        (["eval", "--rules", "cactus:1,cactus:delta=1.0"], "the rule 'cactus:delta=1' is given twice"),
        (["eval", "--rules", ""], "there is no rule to evaluate"),
        (["sweep", "--rules", "verifier", "--delta", "", "--alpha", ""], "Add a rule, such as lossless"),
        (["eval", "--tasks", "no/such.jsonl"], "'no/such.jsonl' cannot be read"),
        (["eval", "--tasks", ","], "there is no task to evaluate"),
        (["eval", "--model", "some/model"], "there is no task for 'some/model'. Name some: --tasks"),
        (["eval", "--data", "gsm8k"], "data is 'gsm8k', but must be TASK=FILE"),
        (["eval", "--data", "=x"], "data is '=x', but must be TASK=FILE"),
        (["eval", "--data", "gsm8k=x.jsonl"], "a data file is given for 'gsm8k', which is none of the tasks"),
        (["eval", "--margin", "0"], "margin is 0 points"),
        (["eval", "--margin", "-2"], "margin is -2 points"),
        (["eval", "--margin", "100"], "margin is 100 points"),
        (["eval", "--margin", "nan"], "margin is nan points"),
        (["eval", "--temperature", "-1"], "temperature is -1"),
        (["eval", "--max-relaxed", "few"], "max_relaxed is 'few'"),
        (["sweep", "-m", "5,x"], "draft-length is '5,x', but must be numbers with commas"),
        (["sweep", "-m", ""], "draft-length is ''"),
        (["sweep", "-m", "0"], "m is 0"),
        (["sweep", "--temperature", "1;2"], "temperature is '1;2'"),
        (["sweep", "--delta", "much"], "'cactus:much' has 'much'"),
        (["sweep", "--alpha", "0.5"], "alpha is 0.5"),
        (["sweep", "--margin", "200"], "margin is 200 points"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_written(cactus_command, tmp_path, words, message):
    status, out, err = cactus_command(*words, "--limit", "1", "--out", str(tmp_path / "out"))
    assert (status, out) == (2, "")
    assert message in " ".join(err.split())
    assert not (tmp_path / "out").exists()


def test_a_draft_length_of_nothing_is_refused(cactus_command, tmp_path):
    status, _, err = cactus_command("eval", "-m", "0", "--out", str(tmp_path / "out"))
    assert status == 2
    assert "greater than or equal to 1" in " ".join(err.replace("│", " ").split()) or "range x>=1" in err
