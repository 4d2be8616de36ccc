"""The pairs of modules that have been seen, kept weakly: made and tested once, again where a module has changed."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary, proxy

from torch import nn

from cactus_decoding.drafters import Drafter, ModelDrafter, PromptLookup
from cactus_decoding.errors import PairMismatch
from cactus_decoding.generation.pair import Pair
from cactus_decoding.models.base import Vocabulary
from cactus_decoding.models.transformers import TransformersModel

_SURPLUS = 512  # rows by which two heads of one vocabulary may differ, being padded to round numbers
_PAIRS: WeakKeyDictionary[nn.Module, WeakKeyDictionary[Any, tuple[object, Pair]]] = WeakKeyDictionary()


def pair_of(model: nn.Module, draft: nn.Module | str | None) -> Pair:
    """The pair of two modules, with its self-tests and measurements; kept as long as both live unchanged."""
    modules = [module for module in (model, draft) if isinstance(module, nn.Module)]
    state = [_state(module) for module in modules]
    pairs = _PAIRS.setdefault(model, WeakKeyDictionary())
    key = draft if isinstance(draft, nn.Module) else PromptLookup
    if key not in pairs or pairs[key][0] != state:
        pairs[key] = state, _new_pair(model, draft)
    return pairs[key][1]


def _state(module: nn.Module) -> object:
    """Changes with whatever a lean forward would miss: other parameters or layers, hooks, another dtype or device.

    New values in the same parameters, as training makes them, are no change: every forward reads them anew.
    """
    parts = [
        (id(part), type(part), len(part._forward_hooks), len(part._forward_pre_hooks), "forward" in part.__dict__)
        for part in module.modules()
    ]
    return parts, [(id(weight), weight.dtype, weight.device) for weight in module.parameters()]


def _new_pair(model: nn.Module, draft: nn.Module | str | None) -> Pair:
    verifier = _speculating(model, "verifier", Vocabulary(_head(model)))
    drafter: Drafter = PromptLookup(device=verifier.device)
    if isinstance(draft, nn.Module):
        if abs(_head(model) - _head(draft)) > _SURPLUS:
            raise PairMismatch(
                f"the model knows {_head(model)} ids and draft_model {_head(draft)}, so they have different "
                'tokenizers. Choose a drafter of the same model family, or draft_model="prompt-lookup".'
            )
        drafter = ModelDrafter(_speculating(draft, "drafter", verifier.vocabulary))
    return Pair(verifier, drafter, None, frozenset())


def _speculating(module: Any, role: str, vocabulary: Vocabulary) -> TransformersModel:
    """A model over a weak reference to ``module``: kept here it does not keep the module."""
    return TransformersModel(proxy(module), f"the {role} ({type(module).__name__})", vocabulary)


def _head(module: Any) -> int:
    return int(module.config.get_text_config().vocab_size)
