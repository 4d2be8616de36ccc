"""The plugin: what vLLM calls in each of its processes, and what of vLLM it wraps."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from cactus_decoding.errors import UnsupportedEngine
from cactus_decoding.integrations.vllm import admission, cpu, runner_v1, runner_v2
from cactus_decoding.integrations.vllm.patching import Call, Point, require_all
from cactus_decoding.integrations.vllm.settings import of_environment

TESTED = "0.32.0"
"""The versions of vLLM that the tests ran on."""


def points() -> dict[Point, str]:
    """Every function that is wrapped on this machine, and what it is for."""
    found = {
        admission.VERIFY: "check a request's parameters",
        admission.START: "check the server's defaults",
        admission.PROCESS: "complete a request with the defaults",
        runner_v1.UPDATE: "V1 runner: requests end",
        runner_v1.SAMPLE: "V1 runner: whose rows",
        runner_v1.REJECT: "V1 runner: the shift",
    }
    if has_triton():
        found |= {
            runner_v2.FINISH: "V2 runner: requests end",
            runner_v2.ADD: "V2 runner: requests begin",
            runner_v2.VERIFY: "V2 runner: whose rows",
            runner_v2.REJECT: "V2 runner: the shift",
        }
    if on_cpu():
        found[cpu.POINT] = "CPU: the mend of vLLM's sampling parameters"
    return found


def register() -> None:
    """Wrap vLLM's functions; a second call does nothing.

    The entry point of ``vllm.general_plugins``.

    Raises:
        UnsupportedEngine: a function of this vLLM is not as it is known, or its front end cannot be reached. Nothing
            was wrapped then.
    """
    found = points()
    try:
        _require_python_front_end()
        require_all(list(found), vllm_version(), TESTED)
    except UnsupportedEngine:
        _let_vllm_ask_again()
        raise
    if admission.PROCESS.wrapped():
        return
    requests = admission.Admission(lambda: of_environment(os.environ))
    around: dict[Point, Callable[[Call], Any]] = {
        **admission.around(requests), **runner_v1.AROUND, **runner_v2.AROUND,
        cpu.POINT: cpu.expanded,
    }  # fmt: skip
    for point in found:
        point.wrap(around[point])


def _require_python_front_end() -> None:
    """vLLM's front end in Rust calls none of what is wrapped, so requests would be served as if they asked nothing."""
    from vllm import envs

    if getattr(envs, "VLLM_USE_RUST_FRONTEND", False):
        raise UnsupportedEngine(
            "VLLM_USE_RUST_FRONTEND is set, and Cactus checks requests in vLLM's front end in Python. Unset it, or "
            "start vLLM without the plugin: VLLM_PLUGINS='' vllm ..."
        )


def _let_vllm_ask_again() -> None:
    """vLLM calls its plugins once per process, also where that failed: a second engine would start without this one."""
    from vllm import plugins

    plugins.plugins_loaded = False


def unregister() -> None:
    """Put every function of vLLM back as it was."""
    for point in points():
        point.unwrap()


def registered() -> bool:
    """Whether vLLM's functions are wrapped in this process."""
    return admission.PROCESS.wrapped()


def vllm_version() -> str:
    """vLLM's own version."""
    import vllm

    return str(vllm.__version__)


def has_triton() -> bool:
    """Whether vLLM finds a Triton to use, without which it has no V2 runner."""
    from vllm.triton_utils import HAS_TRITON

    return bool(HAS_TRITON)


def on_cpu() -> bool:
    """Whether vLLM runs on the CPU."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())
