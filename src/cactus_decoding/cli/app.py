"""The commands, and how errors leave them: one message on stderr, exit status 2."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated

import typer

from cactus_decoding.cli.calibrate import calibrate
from cactus_decoding.cli.demo import demo
from cactus_decoding.cli.doctor import doctor
from cactus_decoding.cli.evaluation import evaluate, sweep
from cactus_decoding.cli.explain import explain
from cactus_decoding.cli.generate import generate
from cactus_decoding.cli.lm_eval import PASSED_ON, lm_eval
from cactus_decoding.cli.rules import rules
from cactus_decoding.cli.vllm_check import vllm_check
from cactus_decoding.errors import CactusError

app = typer.Typer(
    help="Speculative decoding with constrained acceptance.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"cactus-decoding {version('cactus-decoding')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Speculative decoding with constrained acceptance."""


for command in (calibrate, demo, doctor, explain, generate, rules, sweep):
    app.command()(command)
app.command("eval")(evaluate)
app.command("vllm-check")(vllm_check)
app.command("lm-eval", context_settings=PASSED_ON)(lm_eval)


def main() -> None:
    """Entry point: run a command; turn the package's own errors and warnings into plain messages."""
    warnings.showwarning = _print_warning  # type: ignore[assignment]
    try:
        app()
    except CactusError as error:
        typer.echo(f"cactus: {error}", err=True)
        sys.exit(2)


def _print_warning(message: Warning | str, *_: object) -> None:
    typer.echo(f"cactus: warning: {message}", err=True)
