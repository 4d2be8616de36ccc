"""In the process that takes requests: refuse what cannot be had, and complete the rest with the server's defaults.

Only this process needs the settings. What it lets through carries its own parameters in full, so that workers, on
whatever machine, read nothing but the request.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cactus_decoding.errors import InvalidParameter, UnsupportedEngine
from cactus_decoding.integrations.vllm.patching import Call, Point
from cactus_decoding.integrations.vllm.relaxation import (
    GREEDY_BELOW,
    NAMES,
    RESOLVED,
    Relaxation,
    describe,
)
from cactus_decoding.integrations.vllm.settings import Settings

logger = logging.getLogger("vllm.cactus")

_PROCESSOR = "vllm.v1.engine.input_processor"
VERIFY = Point("vllm.sampling_params", "SamplingParams._verify_args", ("self",))
START = Point(_PROCESSOR, "InputProcessor.__init__", ("self", "vllm_config"))
PROCESS = Point(_PROCESSOR, "InputProcessor.process_inputs", ("self", "params"))


@dataclass(slots=True)
class Admission:
    """Which requests a server with these settings lets through."""

    settings: Settings
    closed: str | None = None
    """Why the engine that was started last in this process can relax nothing; None where it can."""

    def verify_args(self, call: Call) -> Any:
        """Sampling parameters are made: the earliest moment, at which a streaming request can still fail as a whole."""
        result = call.proceed()
        extra_args = call["self"].extra_args
        if extra_args and not isinstance(extra_args.get(RESOLVED), dict):  # which no request over HTTP can send
            self._relaxation_of(extra_args, self.closed)
        return result

    def start(self, call: Call) -> Any:
        """An engine starts. Defaults that it cannot honour end it here."""
        result = call.proceed()
        self.closed = why_closed(call["vllm_config"])
        default = self.settings.relaxation_of({})
        if default is not None and self.closed is not None:
            rule = describe(default.rule)
            raise UnsupportedEngine(f"this server's defaults relax acceptance ({rule}), and {self.closed}")
        return result

    def process(self, call: Call) -> Any:
        """A request is taken in: its own copy of the sampling parameters says in full what it gets."""
        params = call["params"]
        if not hasattr(params, "extra_args"):  # pooling
            return call.proceed()
        extra_args = params.extra_args
        if extra_args and RESOLVED in extra_args:
            raise _refused(f"{RESOLVED} is set by this server alone: leave it out.")
        relaxation = self._relaxation_of(extra_args, why_closed(call["self"].vllm_config))
        request = call.proceed()
        if relaxation is None:
            return request
        if params.temperature < GREEDY_BELOW:
            logger.warning(
                "Cactus: request %s asks for %s at temperature 0, where the verifier's law is one token: it has no "
                "effect.", request.request_id, describe(relaxation.rule),
            )  # fmt: skip
        if request.sampling_params is params:
            request.sampling_params = params.clone()
        request.sampling_params.extra_args = completed(extra_args, relaxation, self.settings.log_requests)
        return request

    def _relaxation_of(self, extra_args: Mapping[str, Any] | None, closed: str | None) -> Relaxation | None:
        try:
            relaxation = self.settings.relaxation_of(extra_args)
        except InvalidParameter as error:
            raise _refused(str(error)) from error
        if relaxation is not None and closed is not None:
            raise _refused(f"the request asks for relaxed acceptance ({describe(relaxation.rule)}), and {closed}")
        return relaxation


def completed(extra_args: Mapping[str, Any] | None, relaxation: Relaxation, log: bool) -> dict[str, Any]:
    """A request's ``extra_args`` with its relaxation in full; those of others stay as they are."""
    others = {name: value for name, value in (extra_args or {}).items() if name not in NAMES}
    return {**others, **relaxation.parameters(), RESOLVED: {"log": log}}


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
        return "this engine watermarks its output, with which relaxed acceptance was never tried."
    return None


def _refused(message: str) -> Exception:
    """The error that vLLM answers with HTTP 400."""
    from vllm.exceptions import VLLMValidationError

    error: Exception = VLLMValidationError(message)
    return error


def around(admission: Admission) -> dict[Point, Any]:
    """The points of vLLM where requests come in, and who decides there."""
    return {VERIFY: admission.verify_args, START: admission.start, PROCESS: admission.process}
