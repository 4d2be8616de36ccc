"""``cactus rules``: what can be chosen."""

from __future__ import annotations

from cactus_decoding.cli import options as opt
from cactus_decoding.cli.console import out, print_json


def rules(as_json: opt.Json = False) -> None:
    """List the acceptance rules: settings, what each does and guarantees, and its source."""
    from cactus_decoding.rules import RULES, settings_of

    if as_json:
        print_json(
            {
                name: {
                    "settings": settings_of(rule),
                    "does": rule.summary,
                    "guarantees": rule.guarantee,
                    "source": rule.source,
                }
                for name, rule in RULES.items()
            }
        )
        return
    for name, rule in RULES.items():
        settings = "  ".join(f"{key}={value}" for key, value in settings_of(rule).items()) or "none"
        out.print(f"[bold]{name}[/bold]")
        for heading, text in (
            ("settings", settings),
            ("does", rule.summary),
            ("rely on", rule.guarantee),
            ("source", rule.source),
        ):
            out.print(f"  {heading:<9} ", text, sep="", markup=False, soft_wrap=True)
    out.print("\nn: the drafted token; p, q, h: drafter, verifier, working target; (x)+: max(x, 0).")
