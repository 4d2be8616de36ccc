"""In the process that takes requests: refuse what cannot be had, and complete the rest with the server's defaults.

Only this process needs the settings. What it lets through carries its own parameters in full, so that workers, on
whatever machine, read nothing but the request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cactus_decoding.errors import InvalidParameter, UnsupportedEngine
from cactus_decoding.integrations.vllm.metrics import open_page
from cactus_decoding.integrations.vllm.patching import Call, Point
from cactus_decoding.integrations.vllm.relaxation import GREEDY_BELOW, NAMES, RESOLVED, Relaxation, describe
from cactus_decoding.integrations.vllm.settings import Settings

logger = logging.getLogger("vllm.cactus")

_PROCESSOR = "vllm.v1.engine.input_processor"
VERIFY = Point("vllm.sampling_params", "SamplingParams._verify_args", ("self",))
START = Point(_PROCESSOR, "InputProcessor.__init__", ("self", "vllm_config"))
PROCESS = Point(_PROCESSOR, "InputProcessor.process_inputs", ("self", "params"))


@dataclass(slots=True)
class Admission:
    """Which requests the servers of this process let through."""

    read: Callable[[], Settings]
    """Gives the settings, when an engine's front end starts; other processes have no use for them."""
    settings: Settings | None = None
    open_: bool = False
    """Whether an engine of this process can relax."""
    closed: str | None = None
    """Why the engine that was started last cannot; None where it can."""

    def verify_args(self, call: Call) -> Any:
        """Sampling parameters are made: the earliest moment, at which a streaming request can still fail as a whole.

        They are also made where they arrive in another process, which has no front end and judges nothing.
        """
        result = call.proceed()
        extra_args = call["self"].extra_args
        if self.settings is not None and extra_args and not isinstance(extra_args.get(RESOLVED), dict):
            self._relaxation_of(extra_args, None if self.open_ else self.closed)
        return result

    def start(self, call: Call) -> Any:
        """A front end starts. Settings that are wrong, or that its engine cannot honour, end it here."""
        self.settings = self.read()
        self.closed = why_closed(call["vllm_config"])
        self.open_ |= self.closed is None
        default = self.settings.relaxation_of({})
        if default is not None and self.closed is not None:
            rule = describe(default.rule)
            raise UnsupportedEngine(f"This server's defaults relax acceptance ({rule}), and {self.closed}")
        open_page()
        logger.info("Cactus: by default %s", "lossless" if default is None else describe(default.rule))
        return call.proceed()

    def process(self, call: Call) -> Any:
        """A request is taken in: its own copy of the sampling parameters says in full what it gets."""
        params = call["params"]
        if not hasattr(params, "extra_args"):  # pooling
            return call.proceed()
        extra_args = params.extra_args or {}
        if RESOLVED in extra_args:
            raise _refused(f"{RESOLVED} is set by this server alone: leave it out.")
        if self.settings is None:  # the plugin was registered after this front end had started
            self.settings = self.read()
        config = call["self"].vllm_config
        relaxation = self._relaxation_of(extra_args, why_closed(config))
        if relaxation is not None and relaxation.max_relaxed is not None and _sharded(config):
            raise _refused(
                f"cactus_max_relaxed is {relaxation.max_relaxed}, but this server shares its requests out between "
                "ranks (enable_batch_sharded_sampling), which do not tell each other what was relaxed. Leave it out."
            )
        request = call.proceed()
        given = any(name in extra_args for name in NAMES)
        if relaxation is None and not given:
            return request
        if relaxation is not None and given and params.temperature < GREEDY_BELOW:
            logger.warning(
                "Cactus: request %s asks for %s at temperature 0, where the verifier's law is one token: it has no "
                "effect.", request.request_id, describe(relaxation.rule),
            )  # fmt: skip
        if request.sampling_params is params:
            request.sampling_params = params.clone()
        request.sampling_params.extra_args = completed(extra_args, relaxation, self.settings.log_requests)
        return request

    def _relaxation_of(self, extra_args: Mapping[str, Any], closed: str | None) -> Relaxation | None:
        assert self.settings is not None
        try:
            relaxation = self.settings.relaxation_of(extra_args)
        except InvalidParameter as error:
            raise _refused(str(error)) from error
        if relaxation is not None and closed is not None:
            raise _refused(f"The request asks for relaxed acceptance ({describe(relaxation.rule)}), and {closed}")
        return relaxation


def completed(extra_args: Mapping[str, Any], relaxation: Relaxation | None, log: bool) -> dict[str, Any] | None:
    """A request's ``extra_args`` with its relaxation in full, or with nothing of it where it is lossless."""
    others = {name: value for name, value in extra_args.items() if name not in NAMES}
    if relaxation is None:
        return others or None
    return {**others, **relaxation.parameters(), RESOLVED: {"log": log}}


def _sharded(vllm_config: Any) -> bool:
    """Whether each rank of a tensor-parallel group samples some of the requests, another rank after a preemption."""
    return bool(getattr(vllm_config.parallel_config, "enable_batch_sharded_sampling", False))


def why_closed(vllm_config: Any) -> str | None:
    """Why an engine of this configuration can relax nothing; None where it can."""
    speculative = vllm_config.speculative_config
    if speculative is None:
        return "this engine drafts nothing: start it with --speculative-config."
    method = getattr(speculative, "rejection_sample_method", "standard")
    if method != "standard":
        return (
            f"this engine verifies with rejection_sample_method={method!r}, which decides by itself what is kept: "
            "start it with 'standard', the default."
        )
    if getattr(vllm_config, "watermark_config", None) is not None:
        return "this engine watermarks its output, which was never tried beside it: start it without."
    return None


def _refused(message: str) -> Exception:
    """The error that vLLM answers with HTTP 400."""
    from vllm.exceptions import VLLMValidationError

    error: Exception = VLLMValidationError(message)
    return error


def around(admission: Admission) -> dict[Point, Any]:
    """The points of vLLM where requests come in, and who decides there."""
    return {VERIFY: admission.verify_args, START: admission.start, PROCESS: admission.process}
