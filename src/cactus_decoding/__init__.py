"""Speculative decoding with constrained acceptance.

    import cactus_decoding as cactus

    pair = cactus.load_pair("abacus")
    out = pair.generate("Tom has 5 apples. He buys 7 more. How many apples does he have?", rule=cactus.Cactus(0.25))
    print(out.text, out.stats.tokens_per_call)
"""

from importlib.metadata import version

from cactus_decoding.errors import CactusError
from cactus_decoding.generation.loading import load_pair
from cactus_decoding.generation.pair import Output, Pair, Stream
from cactus_decoding.rules import RULES, BoundedRatio, Cactus, Lossless, Rule
from cactus_decoding.sampling import SamplingParams

__version__ = version("cactus-decoding")

__all__ = [
    "RULES",
    "BoundedRatio",
    "Cactus",
    "CactusError",
    "Lossless",
    "Output",
    "Pair",
    "Rule",
    "SamplingParams",
    "Stream",
    "__version__",
    "load_pair",
]
