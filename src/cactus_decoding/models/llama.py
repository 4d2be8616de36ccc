"""The forward of the Llama family (Llama, Mistral, Qwen 2 and 3) without a framework around it.

A small model's forward in transformers is mostly Python: modules, hooks, masks, cache objects. This one makes the
same tensors from the same parameters in a third of the calls, over a cache with a length per row. It is used where
`LlamaForward.of` finds nothing it does not know, and `models.transformers` compares it with the module's own
forward at load; everything else goes through the module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cactus_decoding.models.cache import RaggedCache, Window

_FEW = 8  # rows up to which a wide product is turned round on a CPU, see `product`
_WIDE, _LARGE, _WIDE_IF_LARGE = 4, 512, 2  # outputs per input, fewer from so many inputs on
_FAMILY = {"llama", "mistral", "qwen2", "qwen3"}
_STATIC_ROPE = {"default", "linear", "llama3"}  # those whose tables do not depend on the length of the text


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's parameters: the module's own, so changes to them are seen. A bias or head norm may be None."""

    norm: Tensor
    q: tuple[Tensor, Tensor | None]
    k: tuple[Tensor, Tensor | None]
    v: tuple[Tensor, Tensor | None]
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: tuple[Tensor, Tensor | None]
    mlp_norm: Tensor
    gate: tuple[Tensor, Tensor | None]
    up: tuple[Tensor, Tensor | None]
    down: tuple[Tensor, Tensor | None]


class LlamaForward:
    """Logits of a Llama-like module. Made by `of`."""

    def __init__(self, module: Any) -> None:
        config = module.config
        self._embedding: Tensor = module.model.embed_tokens.weight
        self._norm: Tensor = module.model.norm.weight
        self._head = _linear(module.lm_head)
        self._layers = [_layer(layer) for layer in module.model.layers[: config.num_hidden_layers]]
        self._eps: float = config.rms_norm_eps
        self._dim = int(module.model.layers[0].self_attn.head_dim)
        self._rotary = module.model.rotary_emb
        self._cos = self._sin = self._embedding.new_empty(0)

    @staticmethod
    def of(module: Any) -> LlamaForward | None:
        """The lean forward of ``module``, or None where it has something this one would not compute."""
        config = module.config
        rope = getattr(config, "rope_parameters", None) or {}
        plain = (
            config.model_type in _FAMILY
            and rope.get("rope_type", "default") in _STATIC_ROPE
            and config.hidden_act == "silu"
            and all(_is_plain(part) for part in module.modules())
        )
        return LlamaForward(module) if plain else None

    def __call__(
        self, ids: Tensor, cache: RaggedCache, window: Window, counts: Sequence[int], keep: Sequence[int]
    ) -> Tensor:
        """``[n, w]`` ids -> ``[n, max(keep), V]`` logits; see `Rows.extend`."""
        x = functional.embedding(ids, self._embedding)
        rotation = self._rotation(window)
        for number, layer in enumerate(self._layers):
            x = x + self._attend(layer, number, self._normed(x, layer.norm), rotation, cache, window)
            y = self._normed(x, layer.mlp_norm)
            gate = functional.silu(product(y, *layer.gate))
            x = x + product(gate.mul_(product(y, *layer.up)), *layer.down)
        x = last_ones(x, counts, keep)
        return product(self._normed(x, self._norm), *self._head)

    def _attend(
        self, layer: _Layer, number: int, x: Tensor, rotation: tuple[Tensor, Tensor], cache: RaggedCache, window: Window
    ) -> Tensor:
        n, w, _ = x.shape
        q = product(x, *layer.q).view(n, w, -1, self._dim)
        k = product(x, *layer.k).view(n, w, -1, self._dim)
        v = product(x, *layer.v).view(n, w, -1, self._dim)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._normed(q, layer.q_norm), self._normed(k, layer.k_norm)
        keys, values = cache.write(number, window, self._rotated(k, rotation), v)
        heads = functional.scaled_dot_product_attention(
            self._rotated(q, rotation).transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=window.mask,
            enable_gqa=q.shape[2] != k.shape[2],
        )
        return product(heads.transpose(1, 2).reshape(n, w, -1), *layer.o)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self._eps)

    def _rotated(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Rotary position embedding, ``[n, w, heads, dim]``: the halves change places, the first one's sign turns."""
        cos, sin = rotation
        return torch.addcmul(x * cos, x.roll(self._dim // 2, -1), sin)

    def _rotation(self, window: Window) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines, ``[w, 1, dim]`` or ``[n, w, 1, dim]``."""
        if window.reach > len(self._cos):
            self._make_tables(max(window.reach, 2 * len(self._cos)))
        if window.positions is None:
            return self._cos[window.begin : window.reach], self._sin[window.begin : window.reach]
        return self._cos[window.positions], self._sin[window.positions]

    def _make_tables(self, length: int) -> None:
        positions = torch.arange(length, device=self._embedding.device).unsqueeze(0)
        cos, sin = (table[0].unsqueeze(1).clone() for table in self._rotary(self._embedding, positions))
        sin[..., : self._dim // 2].neg_()
        self._cos, self._sin = cos, sin


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``torch.nn.functional.linear`` of ``[n, w, d]``.

    For a handful of rows, which is what speculation has, CPU libraries are at their worst where the output is much
    wider than the input, as in the head: there the product is taken the other way round, in half the time.
    """
    n, w, d = x.shape
    size, ratio = n * w, len(weight) / d
    wide = ratio >= (_WIDE if d < _LARGE else _WIDE_IF_LARGE)
    if 1 < size <= _FEW and wide and bias is None and x.device.type == "cpu" and x.dtype == torch.float32:
        return torch.mm(weight, x.reshape(size, d).t()).t().contiguous().view(n, w, -1)
    return functional.linear(x, weight, bias)


def last_ones(x: Tensor, counts: Sequence[int], keep: Sequence[int]) -> Tensor:
    """Of row i of ``[n, w, d]`` the last ``keep[i]`` of its first ``counts[i]``: ``[n, max(keep), d]``."""
    n, w, _ = x.shape
    most = max(keep)
    if n == 1 or (min(counts) == w and min(keep) == most):
        return x[:, counts[0] - most : counts[0]]
    begins = torch.tensor([count - kept for count, kept in zip(counts, keep)], device=x.device)
    places = (begins.unsqueeze(1) + torch.arange(most, device=x.device)).clamp_max(w - 1)
    return x[torch.arange(n, device=x.device).unsqueeze(1), places]


def _is_plain(part: nn.Module) -> bool:
    """No adapter, no quantised layer, no hook: nothing that would be passed over."""
    hooked = part._forward_hooks or part._forward_pre_hooks or "forward" in part.__dict__
    homes = ("transformers.models.", "transformers.activations")
    known = type(part) in (nn.Linear, nn.Embedding) or type(part).__module__.startswith(homes)
    return not hooked and (known or isinstance(part, nn.ModuleList | nn.SiLU))


def _linear(layer: nn.Linear) -> tuple[Tensor, Tensor | None]:
    return layer.weight, layer.bias


def _layer(layer: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    q_norm, k_norm = (getattr(getattr(attention, name, None), "weight", None) for name in ("q_norm", "k_norm"))
    return _Layer(
        norm=layer.input_layernorm.weight,
        q=_linear(attention.q_proj),
        k=_linear(attention.k_proj),
        v=_linear(attention.v_proj),
        q_norm=q_norm,
        k_norm=k_norm,
        o=_linear(attention.o_proj),
        mlp_norm=layer.post_attention_layernorm.weight,
        gate=_linear(mlp.gate_proj),
        up=_linear(mlp.up_proj),
        down=_linear(mlp.down_proj),
    )
