"""``cactus vllm-check``: will the plugin act in this vLLM?"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cactus_decoding.cli import options as opt
from cactus_decoding.cli.console import out, print_json

if TYPE_CHECKING:
    from cactus_decoding.integrations.vllm.inspection import Engine, Inspection
    from cactus_decoding.integrations.vllm.settings import Settings


def vllm_check(
    model: Annotated[
        str | None, typer.Argument(help="The model, as for vllm serve; its weights are not loaded.", show_default=False)
    ] = None,
    speculative_config: Annotated[
        str | None, typer.Option(help="JSON, as for vllm serve.", show_default=False, metavar="JSON")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Print what the plugin finds in the installed vLLM, and whether it will act. Exit status 1 where it will not."""
    speculation = _speculation(model, speculative_config)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    from cactus_decoding.integrations.vllm.inspection import inspect_engine

    inspection = inspect_engine(model, speculation)
    if as_json:
        print_json(inspection.to_dict())
    else:
        _show(inspection)
    if not inspection.acts:
        raise typer.Exit(1)


def _speculation(model: str | None, text: str | None) -> dict[str, Any] | None:
    from cactus_decoding.errors import InvalidParameter

    if text is None:
        return None
    if model is None:
        raise InvalidParameter("--speculative-config needs the model it speculates for: cactus vllm-check MODEL ...")
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidParameter(f"--speculative-config is {text!r}, which is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidParameter(f"--speculative-config is {text!r}, but must be a JSON object.")
    return found


def _show(inspection: Inspection) -> None:
    tested = f"tested with {inspection.tested}"
    _line("vLLM", f"{inspection.version} ({tested}), on {inspection.platform}, {_triton(inspection.triton)}")
    _line("plugin", inspection.loads or "vLLM loads it")
    for point in inspection.points:
        state = "differs" if point.problem else "as known"
        _line("wraps", f"{point.place} ({point.purpose}): {state}")
    if inspection.settings is not None:
        _line("server", _settings(inspection.settings))
    _line("engine", _engine(inspection.engine))
    for problem in inspection.problems:
        _line("PROBLEM", problem)
    out.print("The plugin will act." if inspection.acts else "The plugin will not act.", style="bold")


def _line(heading: str, text: str) -> None:
    out.print(f"{heading:<8}", text, markup=False, soft_wrap=True)


def _triton(found: bool) -> str:
    return "with Triton: V1 and V2 model runner" if found else "without Triton: V1 model runner only"


def _settings(settings: Settings) -> str:
    defaults = ", ".join(f"{name}={value}" for name, value in settings.defaults.items()) or "lossless unless asked"
    maximum = ", ".join(f"{name} {value:g}" for name, value in settings.maximum.items()) or "none"
    return f"defaults: {defaults}; maximum: {maximum}; requests are {'' if settings.log_requests else 'not '}logged"


def _engine(engine: Engine | None) -> str:
    if engine is None:
        return "not looked at: give MODEL and --speculative-config as for vllm serve"
    if engine.draft_method is None:
        return f"{engine.runner} model runner, no drafts"
    return (
        f"{engine.runner} model runner, drafts by {engine.draft_method}, {engine.draft_length} at a time, "
        f"sampled {engine.draft_sampling}, verified {engine.verification}"
    )
