"""A model run some decoder layers at a time, through its own modules and its own forward.

The model is copied without its weights: the copy shares every module, but each decoder layer stands behind a gate, which lets a forward
into the layers that it is for and past the others. So embedding, rotary positions and the mask of each layer's kind are the model's own
business. What the gates were handed on the way is kept until the rows have been through all layers: where the same rows go on, their layers
are called with it straight. What a forward is for comes with its cache argument (`step.LayerStep`); nothing shared is ever changed, and
threads do not meet.

Axes: N nodes, V vocabulary, H hidden size.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..draft import HeadStart
from ..errors import UnsupportedModel
from ..tree import Tree
from .step import LayerStep

if TYPE_CHECKING:
    from .hf import HFTarget

_TOLERANCE = 0.02  # of the logits' spread: bfloat16 rounds by less


class Gate(nn.Module):
    """Stands for decoder layer `index` of `count`. The first takes the forward's hidden states in, the last takes them out."""

    def __init__(self, layer: nn.Module, index: int, count: int) -> None:
        super().__init__()
        self.layer, self.index, self.last = layer, index, index == count - 1

    def __getattr__(self, name: str) -> Any:
        """Some models ask a layer of what kind it is."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)

    def forward(self, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        step = next(a for a in (*args, *kwargs.values()) if isinstance(a, LayerStep))
        if self.index == 0 and step.hidden is not None:
            hidden = step.hidden
        step.calls[self.index] = (args, kwargs)
        if self.index in step.span:
            hidden = self.layer(hidden, *args, **kwargs)
        if self.last:
            step.hidden = hidden
        return hidden


class LayerRunner:
    """Runs a target's layers. Raises UnsupportedModel if that does not give what the whole model gives."""

    def __init__(self, target: HFTarget) -> None:
        self._target, self.num_layers = weakref.proxy(target), len(target.decoder_layers)
        path = next(name for name, module in target.model.named_modules() if module is target.decoder_layers)
        gates = nn.ModuleList(Gate(layer, i, self.num_layers) for i, layer in enumerate(target.decoder_layers))
        self._full: Any = _with(target.model, path.split("."), gates)
        self._base: Any = self._full.base_model
        self._layers = list(target.decoder_layers)
        self._known: dict[Any, LayerStep] = {}  # by rows that are on their way
        self._tail: Callable[[torch.Tensor], torch.Tensor] | None = None
        self._check()
        self._tail = self._straight_tail()

    @torch.inference_mode()
    def run(self, span: range, trees: Sequence[Tree], slots: Sequence[int], hidden: torch.Tensor | None = None) -> torch.Tensor:
        """See `LayeredTarget.layers`. `hidden` and the result are (sum of new nodes, H)."""
        cache = self._target.cache
        starts, lengths = [cache.scratch_at(slot, span.start) for slot in slots], [cache.length(slot) for slot in slots]
        rows = (*zip(slots, lengths, starts, strict=True), *((tree.tokens, tree.parents) for tree in trees))
        sizes = [len(tree) - start for tree, start in zip(trees, starts, strict=True)]
        known = None if hidden is None else self._known.get(rows)
        step = cache.layer_step(slots, sizes, span, None if hidden is None else hidden[None], known)
        if known is not None and step is known:
            for index in span:
                args, kwargs = step.calls[index]
                step.hidden = self._layers[index](step.hidden, *args, **kwargs)
        else:
            self._base(**self._target.arguments(trees, starts, lengths, step))
            self._known[rows] = step
        step.close()
        assert step.hidden is not None, "the last gate takes the hidden states out"
        out: torch.Tensor = step.hidden[0]
        return out

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(n, H) outputs of any layer -> (n, V) by the model's own final norm and output layer."""
        return (self._tail or self._by_forward)(hidden)[:, : self._target.vocab_size]

    def _by_forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(n, H) -> (n, V) by a forward past all layers."""
        target = self._target
        step = LayerStep([], [], range(0), hidden[None])
        given = target.arguments([Tree.chain([0] * len(hidden))], [0], [0], step)
        given["position_ids"].zero_()  # no layer runs, so neither tokens nor positions matter
        found: torch.Tensor = self._full(**given)[0][0]
        return found

    @torch.inference_mode()
    def _straight_tail(self) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """The final norm and the output layer one after the other, if that is all that the model does behind its layers."""
        model, size = self._target.model, self._target.config.hidden_size
        norm, output = final_norm(model.base_model), model.get_output_embeddings()
        sample = torch.linspace(-9, 9, 4 * size, dtype=self._target.dtype, device=self._target.device).view(4, size)

        def straight(hidden: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = output(norm(hidden))
            return out

        try:
            same = torch.equal(straight(sample), self._by_forward(sample))
        except (TypeError, RuntimeError):  # other modules come last
            same = False
        return straight if same else None

    @torch.inference_mode()
    def rest(self, trees: Sequence[Tree], slots: Sequence[int], head_starts: Sequence[HeadStart | None]) -> torch.Tensor:
        """(sum of N, V) logits of all nodes, from what is done of them on: each layer runs once, on all that have come so far."""
        done = [d for tree, start in zip(trees, head_starts, strict=True) for d in (start.depth if start else [0] * len(tree))]
        known = [start.hidden for start in head_starts if start is not None]
        hidden = known[0].new_empty(len(done), known[0].shape[1])
        offset = 0
        for tree, start in zip(trees, head_starts, strict=True):
            if start is not None:
                hidden[offset : offset + len(tree)] = start.hidden
            offset += len(tree)
        for span in _spans(done, self.num_layers):
            self._all_through(span, trees, slots, done, hidden)
        for slot in slots:
            self._target.cache.settle(slot, self.num_layers)
        self._forget()
        return self.logits(hidden)

    def _forget(self) -> None:
        """The rows that were on their way have arrived. A step and what it was handed keep each other alive."""
        while self._known:
            self._known.popitem()[1].calls.clear()

    def _all_through(self, span: range, trees: Sequence[Tree], slots: Sequence[int], done: list[int], hidden: torch.Tensor) -> None:
        """Run the nodes that have been through `span.start` layers, of all trees, and note it in `done` and `hidden`."""
        entering, owners, rows, offset = [], [], [], 0
        for tree, slot in zip(trees, slots, strict=True):
            nodes = [n for n in range(len(tree)) if done[offset + n] == span.start]
            if nodes:
                end = nodes[-1] + 1  # later ones are not there yet
                entering.append(Tree(tree.tokens[:end], tree.parents[:end]))
                owners.append(slot)
                rows += [offset + n for n in nodes]
            offset += len(tree)
        where = torch.tensor(rows, device=hidden.device)
        hidden[where] = self.run(span, entering, owners, hidden[where] if span.start else None)
        for row in rows:
            done[row] = span.stop

    def _check(self) -> None:
        """Compare the model's logits of a few tokens with those of its layers in parts, the first token ahead of the others."""
        target, tree = self._target, Tree.chain(range(min(4, self._target.vocab_size)))
        slot = target.cache.open(len(tree))
        try:
            want = target.verify([tree], [slot]).logits.float()
            target.cache.truncate(slot, 0)
            got = self.rest([tree], [slot], [self._ahead(tree, slot)]).float()
            error = float((got - want).abs().max() / want.std())
        except Exception as reason:  # whatever a model makes of gates
            raise UnsupportedModel(_refusal(target.name, f"{type(reason).__name__}: {reason}")) from None
        finally:
            target.cache.free(slot)
        if not error < _TOLERANCE:
            raise UnsupportedModel(_refusal(target.name, f"its logits are off by {error:.1%} of their spread"))

    def _ahead(self, tree: Tree, slot: int) -> HeadStart:
        """Take the first token through two thirds of the layers, in two parts."""
        first = Tree.chain(tree.tokens[:1])
        one = max(1, self.num_layers // 3)
        two = max(one, 2 * self.num_layers // 3)
        hidden = self.run(range(one), [first], [slot])
        if two > one:
            hidden = self.run(range(one, two), [first], [slot], hidden)
        return HeadStart((two, *[0] * (len(tree) - 1)), torch.cat([hidden] * len(tree)))  # only the first row is read


def _with(module: nn.Module, path: Sequence[str], new: nn.Module) -> nn.Module:
    """A copy that shares all modules with the original, but for the one at `path`."""
    if not path:
        return new
    twin = copy.copy(module)
    twin._modules = {**module._modules, path[0]: _with(module._modules[path[0]], path[1:], new)}  # type: ignore[arg-type]
    return twin


def final_norm(base: nn.Module) -> nn.Module:
    """The norm behind the last layer."""
    found = (getattr(base, name, None) for name in ("norm", "final_layernorm", "final_layer_norm", "ln_f"))
    return next((m for m in found if m is not None), nn.Identity())


def _spans(done: Sequence[int], layers: int) -> Iterator[range]:
    """Layers between which no node joins."""
    return (range(a, b) for a, b in pairwise(sorted({*done, layers})))


def _refusal(name: str, reason: str) -> str:
    return f"the layers of {name} cannot be run one by one ({reason.splitlines()[0][:200]}); use another method, such as lookup"
