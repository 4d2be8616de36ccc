"""FLy: a mismatch stands if the verifier was unsure there and agrees with everything that follows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cactus_decoding.rules.base import Rule, require_whole, require_within

_LARGEST = 3  # the entropy is taken over this many of q's largest, as in the authors' code and in vLLM's


@dataclass(frozen=True, slots=True)
class Fly(Rule):
    """Keep what the lossless rule keeps, and of what it refuses each n where the verifier does not seem to mind.

    That is where

    - the entropy of q, ``-sum q ln q`` over its 3 largest, is at least ``entropy`` (more than one
      continuation is plausible), and
    - the next ``window`` drafted tokens are all kept by the lossless rule (the verifier's text goes on in the same
      way). A token with fewer than that behind it in its block stays refused.

    So a draft of at least ``window + 2`` tokens is needed for any effect, and what becomes of a token depends on
    those behind it: there is no law of one position.

    Args:
        entropy: in nats, at least 0.
        window: at least 1.

    The entropy is that of q after temperature and filters, so at temperature 0 nothing passes. Source: arXiv
    2511.22972.
    """

    entropy: float = 0.3
    window: int = 6

    name = "fly"
    summary = "keep a refused n too if q is unsure there and the next tokens of the draft are all kept"
    guarantee = "no bound: a token of tiny q(n) is kept if what follows it agrees"
    source = "arXiv 2511.22972"
    looks_ahead = True

    def __post_init__(self) -> None:
        require_within("entropy", self.entropy, 0.0, None, "published is 0.3")
        require_whole("window", self.window, 1, "published is 6")

    @property
    def between(self) -> bool:
        return False

    def statistics(self, p: Tensor, q: Tensor) -> Tensor:
        """The entropy of each row of q, over its largest."""
        largest = q.topk(min(_LARGEST, q.shape[-1]), dim=-1).values
        return -torch.xlogy(largest, largest).sum(-1, keepdim=True)

    def target(self, p_n: Tensor, q_n: Tensor, s: Tensor | None = None) -> Tensor:
        return q_n

    def reconsider(self, keep: Tensor, q_n: Tensor, s: Tensor | None, lengths: Tensor) -> Tensor:
        assert s is not None
        m = keep.shape[-1]
        before = torch.nn.functional.pad(keep.to(torch.int64).cumsum(-1), (1, 0))  # [B, m + 1] kept before a place
        places = torch.arange(m, device=keep.device)
        ends = places + self.window
        kept_behind = before[:, (ends + 1).clamp_max(m)] - before[:, places + 1]
        agreed = (kept_behind == self.window) & (ends < lengths.unsqueeze(-1))
        return ~keep & agreed & (s[..., 0] >= self.entropy) & (q_n > 0.0)
