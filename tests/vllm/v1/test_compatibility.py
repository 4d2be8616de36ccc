"""A vLLM that is not as it is known is refused whole."""

import subprocess
import sys

import pytest

from cactus_decoding.errors import UnsupportedEngine
from cactus_decoding.integrations.vllm import runner_v1
from tests.vllm.engines import VERIFIER


@pytest.fixture
def unregistered(plugin):
    plugin.unregister()
    yield plugin
    plugin.register()


def test_a_changed_signature_is_named_and_nothing_is_wrapped(unregistered, monkeypatch):
    def rejection_sample(draft_token_ids, num_drafts_per_request, target_probs): ...

    monkeypatch.setattr(f"{runner_v1.REJECT.module}.rejection_sample", rejection_sample)
    with pytest.raises(UnsupportedEngine) as raised:
        unregistered.register()
    message = str(raised.value)
    assert f"vLLM {unregistered.vllm_version()}" in message
    assert "vllm.v1.sample.rejection_sampler.rejection_sample has no argument num_draft_tokens" in message
    assert "(draft_token_ids, num_drafts_per_request, target_probs)" in message
    assert unregistered.TESTED in message
    assert "VLLM_PLUGINS=" in message
    assert not any(point.wrapped() for point in unregistered.points())


def test_a_function_that_is_gone_is_named(unregistered, monkeypatch):
    monkeypatch.delattr(f"{runner_v1.SAMPLE.module}.GPUModelRunner._sample")
    with pytest.raises(UnsupportedEngine, match=r"GPUModelRunner\._sample is gone"):
        unregistered.register()
    assert not any(point.wrapped() for point in unregistered.points())


def test_registering_twice_wraps_once(plugin):
    plugin.register()
    plugin.register()
    plugin.unregister()
    try:
        assert not any(point.wrapped() for point in plugin.points())
    finally:
        plugin.register()
    assert all(point.wrapped() for point in plugin.points())


def test_an_engine_does_not_start_on_a_changed_vllm():
    code = f"""
import vllm.sampling_params

def _verify_args(this): ...

vllm.sampling_params.SamplingParams._verify_args = _verify_args
from vllm import LLM
LLM({VERIFIER!r})
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert "UnsupportedEngine: vLLM 0.32.0 differs" in ended.stderr
    assert "SamplingParams._verify_args has no argument self: it is SamplingParams._verify_args(this)" in ended.stderr
