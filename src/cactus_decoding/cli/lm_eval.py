"""``cactus lm-eval``: lm-evaluation-harness, which itself cannot know a model of another package."""

from __future__ import annotations

import typer

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Every word behind the command, ``--help`` too, is lm-eval's."""


def lm_eval(context: typer.Context) -> None:
    """Run lm-evaluation-harness with the model "cactus": cactus lm-eval --model cactus --model_args ... --tasks ..."""
    from cactus_decoding.integrations.lm_eval import main

    main(context.args)
