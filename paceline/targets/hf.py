"""Targets that are Transformers models: a tree mask and positions passed through the model's own forward.

Layer `l` means the output of decoder layer `l`, counted from 0. Transformers' `hidden_states[l + 1]` is the same tensor, except
for the last layer, where Transformers gives it after the final norm and we give it before.

Axes: N nodes, V vocabulary, T cached tokens, F features, H hidden size.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from threading import get_ident
from typing import Any

import torch
from torch import nn

from ..draft import HeadStart
from ..errors import UnsupportedModel
from ..tree import Tree
from . import attention
from .base import Output
from .kv import SlotCache
from .layers import LayerRunner
from .step import Step
from .support import check_supported

PREFILL_CHUNK = 512  # tokens per forward while a prompt is read


class HFTarget:
    """A Transformers causal language model with a slot cache.

    The model is used as it is, but for its attention implementation, which is set to ours: from then on it belongs to the target, and
    calling it directly fails. Raises UnsupportedModel, naming the reason, for models whose state cannot be rolled back.

    Args:
        model: any `...ForCausalLM` with a rolled-back cache; on any device.
        tokenizer: its tokenizer, if text is wanted.
        name: how reports call it.
    """

    def __init__(self, model: Any, tokenizer: Any = None, name: str = "") -> None:
        check_supported(model)
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.config = model.config.get_text_config()
        self.name = name or self.config.model_type
        model.set_attn_implementation(attention.NAME)
        self.cache = SlotCache()
        self.vocab_size: int = self.config.vocab_size
        self.max_length: int | None = getattr(self.config, "max_position_embeddings", None)
        self.eos_token_ids = _eos_token_ids(model, tokenizer)
        self.decoder_layers: nn.ModuleList = _decoder_layers(model, self.config.num_hidden_layers)
        self.base: Callable[..., Any] = model.base_model  # (1, N) ids -> hidden states, without the output layer
        self.full: Callable[..., Any] = model
        self._cache_name = "cache" if "cache" in inspect.signature(type(model).forward).parameters else "past_key_values"
        self._masks = _mask_kinds(self.config)

    @property
    def device(self) -> torch.device:
        return torch.device(self.model.device)

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """Token strings and their ids; empty without a tokenizer."""
        return dict(self.tokenizer.get_vocab()) if self.tokenizer is not None else {}

    @cached_property
    def runner(self) -> LayerRunner:
        """Runs decoder layers one by one. Made when it is first wanted, which is after the weights are packed."""
        return LayerRunner(self)

    @property
    def num_layers(self) -> int:
        """L, decoder layers."""
        return len(self.decoder_layers)

    def layers(self, span: range, trees: Sequence[Tree], slots: Sequence[int], hidden: torch.Tensor | None = None) -> torch.Tensor:
        """Run decoder layers `span` on the last nodes of each tree, see `LayeredTarget.layers`."""
        return self.runner.run(span, trees, slots, hidden)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(n, H) outputs of any layer -> (n, V) by the model's own final norm and output layer."""
        return self.runner.logits(hidden)

    def rest(self, trees: Sequence[Tree], slots: Sequence[int], head_starts: Sequence[HeadStart | None]) -> torch.Tensor:
        """(sum of N, V) logits of all nodes, by the part of a forward that head starts have left over."""
        return self.runner.rest(trees, slots, head_starts)

    @torch.inference_mode()
    def multiply(self, rows: int, layer: int) -> torch.Tensor:
        """See `Target.multiply`."""
        linears = dict.fromkeys(_linears(self.decoder_layers[layer % self.num_layers]))  # joined ones stand in several places
        ones = {n: torch.ones(1, rows, n, dtype=self.dtype, device=self.device) for n in {each.in_features for each in linears}}
        return torch.stack([linear(ones[linear.in_features])[0, 0, 0] for linear in linears]) if linears else torch.empty(0)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.model.dtype
        return dtype

    @torch.inference_mode()
    def prefill(self, slots: Sequence[int], tokens: Sequence[Sequence[int]], layer_ids: Sequence[int] = ()) -> list[torch.Tensor] | None:
        """Append tokens to each slot, in packed chunks of at most PREFILL_CHUNK tokens, and commit them."""
        parts: list[list[torch.Tensor]] = [[] for _ in slots]
        for chunk in _chunks([len(t) for t in tokens], PREFILL_CHUNK):
            trees = [Tree.chain(tokens[i][start:end]) for i, start, end in chunk]
            owners = [slots[i] for i, _, _ in chunk]
            _, features = self._forward(self.base, trees, owners, layer_ids)
            offset = 0
            for (i, _, _), slot, tree in zip(chunk, owners, trees, strict=True):
                self.cache.commit(slot, range(len(tree)))
                if features is not None:
                    parts[i].append(features[offset : offset + len(tree)])
                offset += len(tree)
        return [torch.cat(p) if p else torch.empty(0) for p in parts] if layer_ids else None

    @torch.inference_mode()
    def verify(
        self,
        trees: Sequence[Tree],
        slots: Sequence[int],
        layer_ids: Sequence[int] = (),
        head_starts: Sequence[HeadStart | None] = (),
    ) -> Output:
        """One forward over the nodes of all trees that are not in scratch yet, or the rest of one where there are head starts."""
        if any(head_starts) and not layer_ids:
            return Output(self.rest(trees, slots, head_starts), [len(t) for t in trees])
        sizes = [len(t) - self.cache.scratch(s) for t, s in zip(trees, slots, strict=True)]
        logits, features = self._forward(self.full, trees, slots, layer_ids)
        return Output(logits[:, : self.vocab_size], sizes, features)

    def _forward(
        self, run: Callable[..., Any], trees: Sequence[Tree], slots: Sequence[int], layer_ids: Sequence[int]
    ) -> tuple[torch.Tensor, Any]:
        """Run new nodes of each tree; returns the model's first output (sum of N, V or H) and features (sum of N, F) or None."""
        starts = [self.cache.scratch(s) for s in slots]
        step = self.cache.step(slots, [len(t) - d for t, d in zip(trees, starts, strict=True)])
        with self._capture(layer_ids) as captured:
            out = run(**self.arguments(trees, starts, [self.cache.length(s) for s in slots], step))[0]
        step.close()
        return out[0], torch.cat([captured[i][0] for i in layer_ids], -1) if layer_ids else None

    def arguments(self, trees: Sequence[Tree], starts: Sequence[int], lengths: Sequence[int], step: Step) -> dict[str, Any]:
        """What the model's forward takes for the nodes of each tree from `starts` on, behind `lengths` committed tokens."""
        ids = [t for tree, d in zip(trees, starts, strict=True) for t in tree.tokens[d:]]
        positions = [n + x for tree, d, n in zip(trees, starts, lengths, strict=True) for x in tree.depth[d:]]
        return {
            "input_ids": torch.tensor([ids], device=self.device),
            "position_ids": torch.tensor([positions], device=self.device),
            "attention_mask": self._attention_mask(trees, starts, lengths),
            self._cache_name: step,
            "use_cache": True,
        }

    def _attention_mask(self, trees: Sequence[Tree], starts: Sequence[int], lengths: Sequence[int]) -> Any:
        """Additive (1, 1, sum of N, longest T) masks: one tensor, or one per layer type where the model mixes them."""
        made = {window: self._mask(trees, starts, lengths, window) for window in set(self._masks.values())}
        if set(self._masks) == {"all"}:
            return made[self._masks["all"]]
        return {kind: made[window] for kind, window in self._masks.items()}

    def _mask(self, trees: Sequence[Tree], starts: Sequence[int], lengths: Sequence[int], window: int | None) -> torch.Tensor:
        rows = sum(len(t) - d for t, d in zip(trees, starts, strict=True))
        width = max(n + len(t) for t, n in zip(trees, lengths, strict=True))
        mask = torch.full((rows, width), torch.finfo(self.dtype).min, dtype=self.dtype)
        row = 0
        for tree, done, length in zip(trees, starts, lengths, strict=True):
            sees = mask[row : row + len(tree) - done]
            sees[:, :length] = 0
            sees[:, length : length + len(tree)].masked_fill_(tree.ancestors[done:], 0)
            if window is not None:
                depth = torch.tensor(tree.depth)
                key = torch.cat([torch.arange(length), depth + length])
                far = (depth[done:, None] + length) - key[None] >= window
                sees[:, : length + len(tree)].masked_fill_(far, torch.finfo(self.dtype).min)
            row += len(sees)
        return mask[None, None].to(self.device)

    @contextmanager
    def _capture(self, layer_ids: Sequence[int]) -> Iterator[dict[int, torch.Tensor]]:
        """Collect the outputs of these decoder layers during one forward, of this thread: others may use the model meanwhile."""
        captured: dict[int, torch.Tensor] = {}
        thread = get_ident()

        def keep(layer: int) -> Any:
            def hook(_module: Any, _args: Any, output: Any) -> None:
                if get_ident() == thread:
                    captured[layer] = output[0] if isinstance(output, tuple) else output

            return self.decoder_layers[layer].register_forward_hook(hook)

        hooks = [keep(i) for i in layer_ids]
        try:
            yield captured
        finally:
            for hook in hooks:
                hook.remove()


def _chunks(sizes: Sequence[int], limit: int) -> Iterator[list[tuple[int, int, int]]]:
    """Cut ragged rows into packed chunks of at most `limit` tokens: lists of (row, start, end)."""
    chunk: list[tuple[int, int, int]] = []
    free = limit
    for row, size in enumerate(sizes):
        start = 0
        while start < size:
            end = min(size, start + free)
            chunk.append((row, start, end))
            free -= end - start
            start = end
            if free == 0:
                yield chunk
                chunk, free = [], limit
    if chunk:
        yield chunk


def _mask_kinds(config: Any) -> dict[str, int | None]:
    """The sliding window (or None) of each layer type; the key "all" stands for models that take one mask for all layers."""
    window = getattr(config, "sliding_window", None)
    types = set(getattr(config, "layer_types", None) or [])
    if types:
        takes_mapping = {"full_attention": None, "sliding_attention": window}
        unknown = types - set(takes_mapping)
        if unknown:
            raise UnsupportedModel(
                f"{config.model_type} has layers of type {sorted(unknown)}, whose cache cannot be rolled back; "
                "use a model with full or sliding attention"
            )
        return {kind: takes_mapping[kind] for kind in types}
    return {"all": window}


def _eos_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    generation = getattr(model, "generation_config", None)
    found = getattr(generation, "eos_token_id", None)
    if found is None:
        found = getattr(tokenizer, "eos_token_id", None)
    if found is None:
        return frozenset()
    return frozenset(found if isinstance(found, list | tuple) else [found])


def _decoder_layers(model: Any, count: int) -> nn.ModuleList:
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise UnsupportedModel(f"{type(model).__name__} has no list of {count} decoder layers")


def _linears(module: nn.Module) -> Iterator[Any]:
    """The linear layers below a module, whatever form their weights have."""
    for child in module.children():
        if hasattr(child, "in_features"):
            yield child
        else:
            yield from _linears(child)
