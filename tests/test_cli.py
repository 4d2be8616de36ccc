"""The commands as a person and as a program meet them."""

import json
import re
import subprocess
import sys

import pytest

from cactus_decoding.cli import main
from cactus_decoding.rules import RULES

QUESTION = "Tom has 5 apples. He buys 7 more apples. He gives 4 apples to Mia. How many apples does Tom have now?"


@pytest.fixture
def cactus_command(monkeypatch, capsys):
    """Run ``cactus ...`` in this process: (exit status, stdout, stderr)."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["cactus", *words])
        try:
            main()
            status = 0
        except SystemExit as left:
            status = left.code or 0
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def test_generate_prints_the_text_alone_on_stdout(cactus_command, abacus):
    status, out, err = cactus_command("generate", QUESTION, "--seed", "3", "--rule", "lossless")
    assert status == 0
    assert out == abacus.generate(QUESTION, seed=3).text + "\n"
    assert "per call" in err
    assert "seed 3" in err


def test_generate_json_is_one_document_and_nothing_else(cactus_command):
    status, out, err = cactus_command("generate", QUESTION, "--json", "--seed", "3", "--delta", "0.5", "-m", "4")
    document = json.loads(out)
    assert (status, err) == (0, "")
    assert document["rule"] == {"name": "cactus", "delta": 0.5, "solver": "second_order", "divergence": "kl"}
    assert document["stats"]["tokens"] == len(document["ids"])
    verdicts = [verdict for event in document["events"] for verdict in event["verdicts"]]
    assert len(verdicts) == document["stats"]["drafted"]
    assert verdicts.count("relaxed") == document["stats"]["relaxed"]


def test_show_tokens_reads_without_colour(cactus_command):
    status, out, err = cactus_command("generate", QUESTION, "--show-tokens", "--seed", "3", "--delta", "1")
    _, document, _ = cactus_command("generate", QUESTION, "--json", "--seed", "3", "--delta", "1")
    document = json.loads(document)
    end = document["events"][-1]  # the end-of-text token has a mark but no text to show it on
    ended_by = ("bonus" if end["bonus"] else "recovered") if end["emitted"] is not None else "kept or relaxed"
    assert (status, document["finish_reason"]) == (0, "eos")
    assert "\x1b[" not in out
    assert out.count("(") == document["stats"]["relaxed"] > 0
    assert out.count("[") == document["stats"]["recovered"] - (ended_by == "recovered")
    assert out.count("{") == document["stats"]["bonus"] - (ended_by == "bonus")
    for mark in ("kept", "(relaxed)", "[recovered]", "{bonus}"):
        assert mark in err


def test_the_prompt_may_come_from_stdin(cactus_command, monkeypatch):
    class Stdin:
        def read(self):
            return QUESTION

    monkeypatch.setattr(sys, "stdin", Stdin())
    piped = cactus_command("generate", "-", "--seed", "3")
    assert piped[1] == cactus_command("generate", QUESTION, "--seed", "3")[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--delta", "-1"], "delta is -1.0, but a divergence budget is a finite number"),
        (["--rule", "magic"], "rule is 'magic', which is none of lossless, cactus, ratio"),
        (["--rule", "lossless", "--delta", "0.5"], "the rule 'lossless' has no setting 'delta'; it takes none"),
        (["--rule", "ratio", "--delta", "0.5"], "the rule 'ratio' has no setting 'delta'; it takes alpha, recovery"),
        (["--rule", "ratio", "--alpha", "0.5"], "alpha is 0.5"),
        (["-m", "0"], "m is 0, but must be a whole number, at least 1"),
        (["--model", "no/such/model"], "draft is missing"),
        (["--top-p", "0"], "top_p is 0.0"),
    ],
)
def test_errors_are_one_message_on_stderr_and_status_2(cactus_command, words, message):
    status, out, err = cactus_command("generate", QUESTION, *words)
    assert (status, out) == (2, "")
    assert err.startswith("cactus: ")
    assert message in " ".join(err.split())


def test_contradicting_options_are_refused(cactus_command):
    status, out, err = cactus_command("generate", QUESTION, "--json", "--show-tokens")
    assert (status, out) == (2, "")
    assert "leave --show-tokens out" in " ".join(err.replace("│", " ").split())


def test_an_unknown_option_is_refused(cactus_command):
    status, out, _ = cactus_command("generate", QUESTION, "--gamma", "1")
    assert (status, out) == (2, "")


def test_a_budget_at_temperature_zero_warns_on_stderr():
    command = [sys.executable, "-c", "from cactus_decoding.cli import main; main()", "generate", QUESTION]
    found = subprocess.run([*command, "--temperature", "0"], capture_output=True, text=True, check=True)
    assert found.stdout.endswith("\n")
    assert found.stderr.count("cactus: warning: ") == 1
    assert "does nothing at temperature 0" in found.stderr


def test_rules_lists_what_each_guarantees(cactus_command):
    _, out, _ = cactus_command("rules")
    for name, rule in RULES.items():
        assert name in out
        assert rule.guarantee in out
        assert rule.source in out
    document = json.loads(cactus_command("rules", "--json")[1])
    assert document["cactus"]["settings"] == {"delta": 0.25, "solver": "second_order", "divergence": "kl"}


def test_demo_compares_four_ways_and_shows_one_solution(cactus_command):
    status, out, _ = cactus_command("demo", "--problems", "2")
    assert status == 0
    for way in ("verifier alone", "lossless", "cactus 0.5", "ratio 3"):
        assert way in out
    assert re.search(r"#### ?.?\d", out)
    assert "{bonus}" in out


def test_demo_json(cactus_command):
    status, out, _ = cactus_command("demo", "--problems", "3", "--json")
    document = json.loads(out)
    assert status == 0
    alone, lossless, relaxed, ratio = document["ways"]
    assert [way["rule"] and way["rule"]["name"] for way in document["ways"]] == [None, "lossless", "cactus", "ratio"]
    assert alone["tokens_per_call"] == alone["speed"] == 1
    assert ratio["speed"] > 0
    assert lossless["relaxed"] == 0 < relaxed["relaxed"]
    assert relaxed["acceptance"] > lossless["acceptance"]


def test_version(cactus_command):
    assert cactus_command("--version")[1].startswith("cactus-decoding 0.")
