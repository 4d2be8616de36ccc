"""What proposes tokens."""

from cactus_decoding.drafters.base import Drafter, Proposal
from cactus_decoding.drafters.model import ModelDrafter
from cactus_decoding.drafters.prompt_lookup import PromptLookup

__all__ = ["Drafter", "ModelDrafter", "PromptLookup", "Proposal"]
