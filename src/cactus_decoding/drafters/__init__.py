"""What proposes tokens."""

from cactus_decoding.drafters.base import Drafter, DraftRows, Proposal
from cactus_decoding.drafters.model import ModelDrafter
from cactus_decoding.drafters.prompt_lookup import PromptLookup

__all__ = ["DraftRows", "Drafter", "ModelDrafter", "PromptLookup", "Proposal"]
