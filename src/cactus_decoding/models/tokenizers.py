"""Do two models speak the same tokens? Compared by their strings, not by how many rows their heads have."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from cactus_decoding.errors import PairMismatch
from cactus_decoding.models.base import Vocabulary


def vocabulary_of(tokenizer: PreTrainedTokenizerBase, rows: int) -> Vocabulary:
    """The ids that have a token, and a row in a head of ``rows``; padding to a round number does not add any."""
    ids = set(tokenizer.get_vocab().values())
    size = min(max(ids) + 1, rows)
    return Vocabulary(size, tuple(i for i in range(size) if i not in ids))


def require_same_tokens(verifier: PreTrainedTokenizerBase, drafter: PreTrainedTokenizerBase) -> None:
    """Raise `PairMismatch`, naming the first id that means different tokens to the two.

    An id that only one side knows is no conflict: that side's token has probability 0 on the other.
    """
    ours = {i: token for token, i in verifier.get_vocab().items()}
    theirs = {i: token for token, i in drafter.get_vocab().items()}
    different = [i for i in ours.keys() & theirs.keys() if ours[i] != theirs[i]]
    if different:
        first = min(different)
        raise PairMismatch(
            f"drafter and verifier have different tokenizers: {len(different)} ids mean different tokens, the first is "
            f"id {first} ({ours[first]!r} for the verifier, {theirs[first]!r} for the drafter). Choose a drafter of "
            "the same model family, or draft='prompt-lookup', which needs no second model."
        )
