"""The commands as a person and as a program meet them."""

import json
import math
import re
import subprocess
import sys
from dataclasses import asdict

import pytest

from cactus_decoding.rules import RECOMMENDED, RULES, spec_of

QUESTION = "Tom has 5 apples. He buys 7 more apples. He gives 4 apples to Mia. How many apples does Tom have now?"


def test_generate_prints_the_text_alone_on_stdout(cactus_command, abacus):
    status, out, err = cactus_command("generate", QUESTION, "--seed", "3", "--rule", "lossless", "-m", "5")
    assert status == 0
    assert out == abacus.generate(QUESTION, seed=3, m=5).text + "\n"
    assert "per call" in err
    assert "seed 3" in err


def test_generate_json_is_one_document_and_nothing_else(cactus_command):
    status, out, err = cactus_command("generate", QUESTION, "--json", "--seed", "3", "--delta", "0.5", "-m", "4")
    document = json.loads(out)
    assert (status, err) == (0, "")
    assert document["rule"] == {
        "name": "cactus",
        "delta": 0.5,
        "solver": "second_order",
        "divergence": "kl",
        "max_ratio": 4.0,
    }
    assert document["stats"]["tokens"] == len(document["ids"])
    verdicts = [verdict for event in document["events"] for verdict in event["verdicts"]]
    assert len(verdicts) == document["stats"]["drafted"]
    assert verdicts.count("relaxed") == document["stats"]["relaxed"]


def test_the_default_rule_is_the_recommended_one_and_a_named_rule_is_as_published(cactus_command):
    def rule(*words):
        _, out, _ = cactus_command("generate", QUESTION, "--json", "--max-new-tokens", "2", "-m", "1", *words)
        return json.loads(out)["rule"]

    assert rule() == {"name": RECOMMENDED.name, **asdict(RECOMMENDED)}
    assert (rule("--rule", "cactus")["max_ratio"], rule("--rule", "cactus:1")["delta"]) == (None, 1)
    _, told, _ = cactus_command("generate", "--help")
    assert all(setting in told for setting in spec_of(RECOMMENDED).partition(":")[2].split(","))


def test_show_tokens_reads_without_colour(cactus_command):
    words = ("generate", QUESTION, "--seed", "3", "--delta", "1", "-m", "5")
    status, out, err = cactus_command(*words, "--show-tokens")
    _, document, _ = cactus_command(*words, "--json")
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


def generated(cactus_command, *words):
    """The document of a run with seed 3 and the lossless rule."""
    _, out, err = cactus_command("generate", QUESTION, "--json", "--seed", "3", "--rule", "lossless", *words)
    return json.loads(out, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON: {err}"))


def test_options_reach_the_engine(cactus_command, abacus):
    lifted, forbidden = 425, 447  # the latter begins the text without a bias
    words = [
        "-m", "4", "--max-new-tokens", "60", "--temperature", "0.8", "--top-p", "0.9", "--presence-penalty", "2",
        "--frequency-penalty", "-3", "--repetition-penalty", "1.3", "--logit-bias", f"{lifted}=2.5",
        "--logit-bias", f"{forbidden}=-inf", "--ignore-eos", "--logprobs", "2",
    ]  # fmt: skip
    options = {
        "m": 4, "max_new_tokens": 60, "temperature": 0.8, "top_p": 0.9, "presence_penalty": 2.0,
        "frequency_penalty": -3.0, "repetition_penalty": 1.3, "logit_bias": {lifted: 2.5, forbidden: -math.inf},
        "ignore_eos": True, "logprobs": 2, "seed": 3,
    }  # fmt: skip
    found, expected = generated(cactus_command, *words), abacus.generate(QUESTION, **options)
    assert found["ids"] == list(expected.ids)
    assert len(found["ids"]) == 60
    for token, listed in zip(expected.logprobs, found["logprobs"], strict=True):
        assert (listed["id"], listed["logprob"], listed["h_logprob"]) == (token.id, token.logprob, token.h_logprob)
        top = [(entry["id"], entry["logprob"]) for entry in listed["top"]]
        assert top == [(i, value if value > -math.inf else None) for i, value in token.top]
    for name in options.keys() - {"m", "max_new_tokens", "logprobs", "seed"}:
        others = {other: value for other, value in options.items() if other != name}
        assert abacus.generate(QUESTION, **others).ids != expected.ids, f"{name} does nothing here"


def test_a_stop_id_ends_the_text(cactus_command):
    free = generated(cactus_command, "-m", "5")
    stop = free["ids"][8]
    assert stop not in free["ids"][:8]
    cut = generated(cactus_command, "-m", "5", "--stop-token-id", str(stop), "--stop-token-id", "1")
    assert (cut["ids"], cut["finish_reason"]) == (free["ids"][:9], "stop")
    assert "logprobs" not in cut


@pytest.mark.parametrize(("given", "budget"), [("3", 3), ("0.1", 3)])
def test_a_budget_of_relaxed_tokens_may_be_a_number_or_a_share(cactus_command, given, budget):
    words = ("generate", QUESTION, "--seed", "3", "--delta", "2", "--ignore-eos", "--max-new-tokens", "39", "-m", "5")
    _, out, err = cactus_command(*words, "--json", "--max-relaxed", given)
    stats = json.loads(out)["stats"]
    assert stats["relaxed"] == budget
    _, out, err = cactus_command(*words, "--max-relaxed", given)
    assert f"(lossless from token {stats['lossless_from']} on)" in err
    assert json.loads(cactus_command(*words, "--json")[1])["stats"]["relaxed"] > budget


def test_m_of_zero_and_auto(cactus_command):
    alone = generated(cactus_command, "-m", "0")
    assert alone["stats"]["verifier_calls"] == len(alone["ids"])
    assert alone["stats"]["drafted"] == 0
    assert generated(cactus_command)["stats"]["tokens"] > 1  # auto, the default


def test_the_prompt_may_come_from_stdin(cactus_command, monkeypatch):
    class Stdin:
        def read(self):
            return QUESTION

    monkeypatch.setattr(sys, "stdin", Stdin())
    piped = cactus_command("generate", "-", "--seed", "3", "-m", "5")
    assert piped[1] == cactus_command("generate", QUESTION, "--seed", "3", "-m", "5")[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--delta", "-1"], "delta is -1.0, but a divergence budget is a finite number"),
        (["--rule", "magic"], "rule is 'magic', which is none of lossless, cactus, ratio"),
        (["--rule", "lossless", "--delta", "0.5"], "the rule 'lossless' has no setting 'delta'; it takes none"),
        (["--rule", "ratio", "--delta", "0.5"], "the rule 'ratio' has no setting 'delta'; it takes alpha, recovery"),
        (["--rule", "ratio:alpha=0.5"], "alpha is 0.5"),
        (["-m", "-1"], "m is -1, but must be a whole number, at least 0"),
        (["-m", "2.5"], """m is '2.5', but must be "auto" or a whole number"""),
        (["--max-relaxed", "few"], "max_relaxed is 'few', but must be a whole number of tokens, or a share"),
        (["--max-relaxed", "1.5"], "max_relaxed is 1.5, but a share must lie in [0, 1)"),
        (["--logit-bias", "5"], "logit_bias is '5', but must be ID=VALUE"),
        (["--logit-bias", "5=1", "--logit-bias", "5=2"], "logit_bias names the id 5 twice"),
        (["--logit-bias", "768=1"], "logit_bias names the id 768"),
        (["--stop-token-id", "768"], "stop_token_ids names the id 768"),
        (["--repetition-penalty", "0"], "repetition_penalty is 0.0"),
        (["--json", "--logprobs", "101"], "logprobs is 101, but must be a whole number, from 0 to 100"),
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
    for words, message in [
        (["--json", "--show-tokens"], "leave --show-tokens out"),
        (["--logprobs", "3"], "--logprobs shows in --json only; add --json"),
    ]:
        status, out, err = cactus_command("generate", QUESTION, *words)
        assert (status, out) == (2, "")
        assert message in " ".join(err.replace("│", " ").split())


def test_an_unknown_option_is_refused(cactus_command):
    status, out, _ = cactus_command("generate", QUESTION, "--gamma", "1")
    assert (status, out) == (2, "")


def test_a_budget_at_temperature_zero_warns_on_stderr():
    command = [sys.executable, "-c", "from cactus_decoding.cli import main; main()", "generate", QUESTION]
    words = ("--temperature", "0", "--threads", "1", "-m", "4", "--max-new-tokens", "8")
    found = subprocess.run([*command, *words], capture_output=True, text=True, check=True)
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
    settings = {"delta": 0.25, "solver": "second_order", "divergence": "kl", "max_ratio": None}
    assert document["cactus"]["settings"] == settings


def test_demo_compares_four_ways_and_shows_one_solution(cactus_command):
    status, out, _ = cactus_command("demo", "--problems", "2")
    assert status == 0
    for way in ("verifier alone", "lossless", "cactus 0.25", "ratio 3"):
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
