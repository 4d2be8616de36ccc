"""vLLM's V2 runner needs Triton. On a CPU its kernels run in Triton's interpreter, which vLLM takes for a backend."""

import os
from types import SimpleNamespace

import pytest

from tests.vllm import engines

engines.in_this_process()
os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
assert os.environ.get("TRITON_INTERPRET") == "1", (
    "run these with TRITON_INTERPRET=1: Triton reads it when it is imported"
)

import triton.backends  # noqa: E402


class _Driver:
    @staticmethod
    def is_active():
        return False


triton.backends.backends["cpu"] = SimpleNamespace(driver=_Driver, compiler=None)


@pytest.fixture(scope="session")
def plugin():
    from vllm.plugins import load_general_plugins

    from cactus_decoding.integrations.vllm import plugin

    load_general_plugins()
    assert plugin.registered()
    assert plugin.has_triton()
    return plugin


@pytest.fixture(scope="session")
def llm(plugin):
    """Greedy drafts: the kernel that draws random ones has a mask that the interpreter refuses."""
    return engines.engine(engines.GREEDY)
