"""A draft model that is trained: its own forward over whole texts, low-rank adapters, and the folder that keeps it.

While it trains, its attention is Transformers' own; while it drafts, that of targets. Weights change between rounds only.

Axes: T tokens, R rows, V vocabulary, r rank.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from torch import nn

from ...errors import UnsupportedModel
from ...targets import attention
from ...targets.hf import HFTarget
from ..disk import put

_OWN_ATTENTION = "sdpa"


class LowRank(nn.Module):
    """y = W x + (alpha / r) B A x with W frozen (LoRA, Hu et al. 2022). B starts at zero, so nothing changes at first."""

    def __init__(self, inner: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.inner, self.scale = inner, alpha / rank
        self.down = nn.Parameter(torch.empty(rank, inner.in_features, device=inner.weight.device))  # A
        self.up = nn.Parameter(torch.zeros(inner.out_features, rank, device=inner.weight.device))  # B
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x) + self.scale * (x @ self.down.T @ self.up.T)
        return out

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """One layer that computes the same."""
        self.inner.weight += self.scale * (self.up @ self.down)
        return self.inner


def add_adapters(model: HFTarget, rank: int, alpha: float, seed: int) -> None:
    """Put one around every linear layer of the decoder layers. Raises UnsupportedModel if there is none."""
    torch.manual_seed(seed)
    found = [(parent, name, child) for parent, name, child in _children(model) if type(child) is nn.Linear]
    if not found:
        raise UnsupportedModel(f"{model.name} has no linear layers that adapters fit around; leave draft.lora_rank out to train all of it")
    for parent, name, child in found:
        setattr(parent, name, LowRank(child, rank, alpha))


def merge_adapters(model: HFTarget) -> None:
    """Turn every adapter and its layer into one layer again; nothing where there are none."""
    for parent, name, child in _children(model):
        if isinstance(child, LowRank):
            setattr(parent, name, child.merged())


def _children(model: HFTarget) -> list[tuple[nn.Module, str, nn.Module]]:
    return [(parent, name, child) for parent in model.decoder_layers.modules() for name, child in parent.named_children()]


class Learner(nn.Module):
    """A draft model (in plain float32 weights) as the loop sees it: the parameters that are trained, and nothing else, are its own.

    Args:
        draft: the model. It belongs to the learner.
        trained: whether anything is.
        rank: of adapters, which alone are trained then; None trains all weights.
    """

    def __init__(self, draft: HFTarget, *, trained: bool = False, rank: int | None = None, alpha: float = 1.0, seed: int = 0) -> None:
        super().__init__()
        self.__dict__["draft"] = draft  # no submodule: frozen weights are neither checkpointed nor stepped
        draft.model.requires_grad_(trained and rank is None)
        if trained and rank is not None:
            add_adapters(draft, rank, alpha, seed)
        for name, parameter in draft.model.named_parameters():
            if parameter.requires_grad:
                self.register_parameter(name.replace(".", "/"), parameter)

    draft: HFTarget

    def logits(self, tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """(R, V) in float32: the law behind each of these places (R,) of a text (T,)."""
        self.draft.model.set_attn_implementation(_OWN_ATTENTION)
        out: torch.Tensor = self.draft.model(input_ids=tokens[None], use_cache=False, logits_to_keep=places).logits[0]
        return out.float()

    def drafting(self) -> HFTarget:
        """The model, ready to draft with the weights of now. A new drafter has slots of its own: nothing that old weights made is read."""
        self.draft.model.set_attn_implementation(attention.NAME)
        return self.draft

    def save(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        """Write an ordinary Transformers folder. Adapters are merged, also in this learner."""
        merge_adapters(self.draft)
        self.draft.model.set_attn_implementation(_OWN_ATTENTION)

        def write(scratch: Path) -> None:
            weights = {name: tensor.to(dtype) for name, tensor in self.draft.model.state_dict().items()}
            self.draft.model.save_pretrained(scratch, state_dict=weights)
            described = json.loads((scratch / "config.json").read_text())
            (scratch / "config.json").write_text(json.dumps(described | {"dtype": str(dtype).removeprefix("torch.")}, indent=2) + "\n")
            if self.draft.tokenizer is not None:
                self.draft.tokenizer.save_pretrained(scratch)

        put(folder, write)
