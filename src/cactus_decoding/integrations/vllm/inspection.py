"""What the plugin finds on this machine, and whether it will act: what ``cactus vllm-check`` prints."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from typing import Any

from cactus_decoding.errors import CactusError, MissingExtra
from cactus_decoding.integrations.vllm.settings import Settings, of_environment

GROUP = "vllm.general_plugins"
NAME = "cactus"


@dataclass(frozen=True, slots=True)
class PatchPoint:
    """A function of vLLM that is wrapped."""

    place: str
    purpose: str
    problem: str | None


@dataclass(frozen=True, slots=True)
class Engine:
    """What an engine started with a given model and speculation would use."""

    runner: str
    draft_method: str | None
    draft_length: int | None
    draft_sampling: str | None
    verification: str | None
    closed: str | None
    """Why it can relax nothing."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """Everything that was found."""

    version: str
    tested: str
    platform: str
    triton: bool
    loads: str | None
    """Why vLLM will not load the plugin; None where it will."""
    points: tuple[PatchPoint, ...]
    settings: Settings | None
    problem: str | None
    """With the settings or the engine's configuration."""
    engine: Engine | None

    @property
    def problems(self) -> list[str]:
        """Everything that keeps the plugin from acting."""
        found = [point.problem for point in self.points if point.problem]
        closed = None if self.engine is None else self.engine.closed
        return [text for text in (self.loads, *found, self.problem, closed) if text]

    @property
    def acts(self) -> bool:
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"acts": self.acts, "problems": self.problems, **asdict(self)}


def inspect_engine(model: str | None, speculative_config: dict[str, Any] | None) -> Inspection:
    """Look at the installed vLLM and, where a model is given, at the engine it would make of it.

    No weights are loaded. Raises `MissingExtra` where there is no vLLM.
    """
    try:
        import vllm
        from vllm.platforms import current_platform
    except ImportError as error:
        raise MissingExtra(
            'vLLM is not installed in this environment: pip install "cactus-decoding[vllm]", or install vLLM as its '
            "own instructions say and cactus-decoding beside it."
        ) from error
    from cactus_decoding.integrations.vllm import plugin

    points = tuple(PatchPoint(point.place, purpose, point.problem()) for point, purpose in plugin.points().items())
    settings, engine, problem = None, None, None
    try:
        settings = of_environment(os.environ)
        if model is not None:
            engine = _engine(model, speculative_config)
    except CactusError as error:
        problem = str(error)
    return Inspection(
        version=str(vllm.__version__),
        tested=plugin.TESTED,
        platform=str(current_platform.device_type),
        triton=plugin.has_triton(),
        loads=_why_not_loaded(),
        points=points,
        settings=settings,
        problem=problem,
        engine=engine,
    )


def _why_not_loaded() -> str | None:
    found = [point for point in entry_points(group=GROUP) if point.name == NAME]
    if not found:
        return f"no entry point {NAME!r} in {GROUP}: cactus-decoding is not installed in vLLM's environment."
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and NAME not in allowed.split(","):
        return f"VLLM_PLUGINS is {allowed!r}, which leaves {NAME!r} out: unset it, or add {NAME!r}."
    return None


def _engine(model: str, speculative_config: dict[str, Any] | None) -> Engine:
    from vllm.engine.arg_utils import EngineArgs

    from cactus_decoding.integrations.vllm.admission import why_closed

    try:
        config = EngineArgs(model=model, speculative_config=speculative_config).create_engine_config()
    except (ValueError, OSError) as error:
        raise CactusError(f"vLLM refuses this model or speculation: {error}") from error
    speculative = config.speculative_config
    return Engine(
        runner="V2" if config.use_v2_model_runner else "V1",
        draft_method=speculative and str(speculative.method),
        draft_length=speculative and int(speculative.num_speculative_tokens),
        draft_sampling=speculative and str(speculative.draft_sample_method),
        verification=speculative and str(speculative.rejection_sample_method),
        closed=why_closed(config),
    )
