"""What a pair is measured on: a person's own prompts, or else some of ours."""

from __future__ import annotations

from pathlib import Path

PROMPTS = (
    "Explain in a few sentences why the sky is blue at noon and red in the evening.",
    "Correct the spelling and give the whole text again: Yesterday we went to the libary to return the books, but the "
    "libary was closed, so we left the books in the box beside the door and walked home along the river.",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring and two examples.",
)


def prompts_for(model: str, given: list[str] | None, file: Path | None, problems: int) -> list[str]:
    """What the person gave, or so many problems of its own for Abacus, or general ones."""
    from cactus_decoding.embedded.problems import DEMO_SEED, make_problems
    from cactus_decoding.errors import InvalidParameter
    from cactus_decoding.generation.loading import ABACUS

    texts = list(given or ())
    if file is not None:
        lines = file.read_text(encoding="utf-8").splitlines()
        texts += [line for line in lines if line.strip()]
        if not texts:
            raise InvalidParameter(f"the file {str(file)!r} holds no prompt. Write one per line.")
    if texts:
        return texts
    return [problem.question for problem in make_problems(problems, DEMO_SEED)] if model == ABACUS else list(PROMPTS)
