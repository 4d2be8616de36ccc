"""``cactus vllm-check`` beside a real vLLM."""

import json
import subprocess
import sys

import pytest

from tests.vllm.engines import GREEDY, NGRAM, VERIFIER


def test_it_says_what_it_found_and_that_it_will_act():
    code = "from cactus_decoding.cli import main; main()"
    command = [sys.executable, "-c", code, "vllm-check", VERIFIER, "--speculative-config", json.dumps(GREEDY)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "0.32.0 (tested with 0.32.0), on cpu" in ended.stdout
    assert "vllm.v1.sample.rejection_sampler.rejection_sample (V1 runner: the shift): as known" in ended.stdout
    assert "V1 model runner, drafts by draft_model, 3 at a time, sampled greedy, verified standard" in ended.stdout
    assert ended.stdout.rstrip().endswith("The plugin will act.")


@pytest.mark.parametrize(
    ("speculation", "environment", "reason"),
    [
        (None, {}, "this engine drafts nothing"),
        (
            {**NGRAM, "rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5, 0.4, 0.3]},
            {},
            "rejection_sample_method='synthetic'",
        ),
        (NGRAM, {"VLLM_PLUGINS": "other"}, "VLLM_PLUGINS is 'other', which leaves 'cactus' out"),
        (NGRAM, {"CACTUS_VLLM_DELTA": "-1"}, "cactus_delta is -1"),
    ],
    ids=["no drafts", "synthetic", "left out", "bad setting"],
)
def test_it_says_why_it_will_not(plugin, cactus_command, monkeypatch, speculation, environment, reason):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    words = [] if speculation is None else ["--speculative-config", json.dumps(speculation)]
    status, out, err = cactus_command("vllm-check", VERIFIER, *words, "--json")
    assert status == 1, err
    found = json.loads(out)
    assert not found["acts"]
    assert reason in " ".join(found["problems"])
