"""The JetSpec head: one forward over a block of slots drafts several tokens (arXiv 2606.18394, section 4; see docs/heads.md).

The block is `[anchor, mask, ..., mask]`. Slot k predicts the token that belongs in slot k, k steps after the anchor. A slot sees the
whole context before the anchor, as keys and values of the fused target features, and the slots of its own block up to itself.

Axes: B sequences, A blocks, Q slots, S context rows, F features, H hidden size, V vocabulary, Vd draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import embedding, scaled_dot_product_attention

from ..errors import CheckpointMismatch
from .borrow import embedding_weight, output_weight
from .config import JetSpecConfig
from .context import Context
from .layers import Layer
from .rope import Rotary

__all__ = ["Context", "JetSpecConfig", "JetSpecHead"]

KeyValue = tuple[torch.Tensor, torch.Tensor]


class JetSpecHead(nn.Module):
    """The trained part of a JetSpec drafter. The target's embedding and output matrices are borrowed: neither saved nor trained.

    Embedding rows and output rows are used as they are: a target's scale on its embeddings (Gemma) and cap on its logits are left
    out in training and in decoding alike, so the head learns without them.

    Args:
        config: its shapes.
        embed_weight: (V, H) the target's embedding, on the device where the head will be.
        output_weight: (V, H) the target's output matrix. With a reduced vocabulary its rows are copied, else it is referenced.
        draft_vocab_ids: (Vd,) ascending target ids of the draft vocabulary; needed if `config.draft_vocab_size` is set.
    """

    draft_vocab_ids: torch.Tensor  # (Vd,) target ids
    draft_index: torch.Tensor  # (V,) rows of the draft vocabulary, -1 for tokens outside it

    def __init__(
        self, config: JetSpecConfig, embed_weight: torch.Tensor, output_weight: torch.Tensor, draft_vocab_ids: torch.Tensor | None = None
    ) -> None:
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        self.fc = nn.Linear(config.feature_size, hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(hidden, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(hidden, eps=config.rms_norm_eps)
        self.last_proj = nn.Linear(hidden, config.block_size * hidden, bias=False) if config.last_feature else None  # for each slot
        if self.last_proj is not None:
            nn.init.zeros_(self.last_proj.weight)
        self.mask_embedding = nn.Parameter(0.02 * torch.randn(hidden)) if config.mask_token_id is None else None
        if config.markov_rank:
            self.markov_prev = nn.Parameter(torch.randn(config.draft_size, config.markov_rank) * config.markov_rank**-0.5)
            self.markov_next = nn.Parameter(torch.zeros(config.draft_size, config.markov_rank))  # zero: the correction starts at none
        self.output: Callable[[torch.Tensor], torch.Tensor] | None = None  # the output layer in a quicker form; no module of ours
        self.rotary = Rotary(config.rope_parameters, config.head_dim)
        self._borrow(embed_weight.detach(), output_weight.detach(), draft_vocab_ids)

    def _borrow(self, embed: torch.Tensor, output: torch.Tensor, ids: torch.Tensor | None) -> None:
        config, device = self.config, embed.device
        want = (config.vocab_size, config.hidden_size)
        for name, weight in (("embedding", embed), ("output matrix", output)):
            if weight.shape[0] < want[0] or weight.shape[1] != want[1]:
                raise CheckpointMismatch(
                    f"the target's {name} is {list(weight.shape)} and the head needs {list(want)}; is it another target?"
                )
        if (ids is None) is not (config.draft_vocab_size is None):
            raise CheckpointMismatch(f"draft_vocab_size is {config.draft_vocab_size} and draft_vocab_ids are {ids}; give both or neither")
        whole = torch.arange(config.vocab_size, device=device)
        if ids is not None and (len(ids) != config.draft_size or not bool((ids.diff() > 0).all())):
            raise CheckpointMismatch(f"draft_vocab_ids must be {config.draft_size} ascending token ids, got {len(ids)}")
        self.draft_vocab_ids = whole if ids is None else ids.to(device).long()
        self.draft_index = torch.full_like(whole, -1)
        self.draft_index[self.draft_vocab_ids] = torch.arange(config.draft_size, device=device)
        # plain attributes: not in the state dict, not trained, not cast with the head
        self.embed_weight = embed
        self.borrows_output = True
        self.output_weight = output[: config.vocab_size] if ids is None else output[self.draft_vocab_ids].clone()

    @classmethod
    def for_target(cls, target: Any, config: JetSpecConfig, draft_vocab_ids: torch.Tensor | None = None) -> JetSpecHead:
        """A new random head on this target (an HFTarget), on its device, in float32."""
        return cls(config, embedding_weight(target), output_weight(target), draft_vocab_ids).to(target.device)

    def own_output(self, weight: torch.Tensor) -> None:
        """Score with this matrix (Vd, H) instead of the target's rows. Raises CheckpointMismatch if it has another shape."""
        want = [self.config.draft_size, self.config.hidden_size]
        if list(weight.shape) != want:
            raise CheckpointMismatch(
                f"the output matrix of the head is {list(weight.shape)}, and it drafts {want[0]} tokens of width {want[1]}"
            )
        self.output_weight, self.borrows_output = weight, False

    @property
    def dtype(self) -> torch.dtype:
        return self.norm.weight.dtype

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """(..., F) target features -> (..., H) context."""
        out: torch.Tensor = self.hidden_norm(self.fc(features.to(self.dtype)))
        return out

    def context_kv(self, fused: torch.Tensor, positions: torch.Tensor) -> list[KeyValue]:
        """Per layer the keys and values, (..., kv heads, T, D) each, of fused features (..., T, H) at these positions (..., T)."""
        table = self.rotary(positions)
        return [layer.self_attn.key_value(fused, table) for layer in self.layers]  # type: ignore[operator,union-attr]

    def slots(self, anchors: torch.Tensor, count: int, last: torch.Tensor | None = None) -> torch.Tensor:
        """(...,) anchor tokens, and (..., H) the context rows before them if `last_feature` -> (..., count, H) embedded blocks: the
        anchor, then masks."""
        first = embedding(anchors, self.embed_weight).to(self.dtype)
        mask_id = self.config.mask_token_id
        mask = self.embed_weight[mask_id].to(self.dtype) if self.mask_embedding is None else self.mask_embedding
        block = torch.cat([first.unsqueeze(-2), mask.expand(*first.shape[:-1], count - 1, -1)], -2)
        if self.last_proj is None or last is None:
            return block
        added: torch.Tensor = self.last_proj(last).unflatten(-1, (self.config.block_size, -1))
        return block + added[..., :count, :]

    def forward(
        self, fused: torch.Tensor, anchor_tokens: torch.Tensor, anchor_positions: torch.Tensor, valid: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Training: fused (B, S, H) and A blocks per sequence -> hidden (B, A, block_size - 1, H) of the drafting slots.

        `anchor_tokens`, `anchor_positions` (B, A): each block's first token and its place. `valid` (B, A) is False for padding blocks,
        which see only themselves; what they return means nothing.
        """
        size = self.config.block_size
        places = anchor_positions[..., None] + torch.arange(size, device=fused.device)  # (B, A, block_size)
        table = self.rotary(places.flatten(1))
        context = self.context_kv(fused, torch.arange(fused.shape[1], device=fused.device))
        mask = self._additive(block_mask(anchor_positions, fused.shape[1], size, valid=valid, causal=self.config.causal))
        x = self.slots(anchor_tokens, size, self._rows_before(fused, anchor_positions)).flatten(1, 2)  # (B, A * block_size, H)
        for layer, (keys, values) in zip(self.layers, context, strict=True):

            def attend(
                q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: torch.Tensor = keys, values: torch.Tensor = values
            ) -> torch.Tensor:
                return grouped_attention(q, torch.cat([keys, k], 2), torch.cat([values, v], 2), mask)

            x = layer(x, table, attend)
        return self.norm(x).unflatten(1, (-1, size))[:, :, 1:]  # type: ignore[no-any-return]

    def draft(self, anchors: torch.Tensor, contexts: Sequence[Context], depth: int | None = None) -> torch.Tensor:
        """Decoding: (B,) anchor tokens, each with its cached context -> logits (B, depth, Vd), one forward for all.

        The anchor stands right behind its context. `depth` is at most `block_size - 1`, the default.
        """
        depth = self.config.depth if depth is None else depth
        size = 1 + depth if self.config.causal else self.config.block_size  # causal: fewer slots change no other
        starts = torch.tensor([c.length for c in contexts], device=anchors.device)
        table = self.rotary(starts[:, None] + torch.arange(size, device=anchors.device))
        block = torch.ones(size, size, dtype=torch.bool, device=anchors.device).tril_(0 if self.config.causal else size)
        masks = [
            self._additive(nn.functional.pad(block, (c.length, 0), value=True)[None, None]) for c in contexts
        ]  # once, not per layer: (Q, T + Q)
        x = self.slots(anchors, size, self._last_rows(contexts, anchors))  # (B, Q, H)
        for index, layer in enumerate(self.layers):

            def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, index: int = index) -> torch.Tensor:
                rows = []
                for i, (context, mask) in enumerate(zip(contexts, masks, strict=True)):
                    keys, values = context.write(index, k[i], v[i], of=len(self.layers))
                    rows.append(grouped_attention(q[i : i + 1], keys[None], values[None], mask))
                return torch.cat(rows)

            x = layer(x, table, attend)
        return self.logits(self.norm(x)[:, 1 : 1 + depth])

    def _rows_before(self, fused: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor | None:
        """(B, S, H) and (B, A) -> (B, A, H) the row before each anchor, zeros for an anchor at the very beginning; None if not read."""
        if self.last_proj is None:
            return None
        rows = fused.gather(1, (anchors - 1).clamp(min=0)[..., None].expand(-1, -1, fused.shape[2]))
        return rows * (anchors > 0)[..., None]

    def _last_rows(self, contexts: Sequence[Context], anchors: torch.Tensor) -> torch.Tensor | None:
        """(B, H) the last row of each context, zeros for an empty one; None if not read."""
        if self.last_proj is None:
            return None
        none = torch.zeros(self.config.hidden_size, dtype=self.dtype, device=anchors.device)
        return torch.stack([none if c.last is None else c.last for c in contexts])

    def _additive(self, mask: torch.Tensor) -> torch.Tensor:
        """(B, 1, Q, T) bool -> 0 or -inf, (B, 1, groups * Q, T), made once for all layers (see `grouped_attention`)."""
        added = torch.zeros(mask.shape, dtype=self.dtype, device=mask.device).masked_fill_(~mask, -torch.inf)
        return added.repeat(1, 1, self.config.num_attention_heads // self.config.num_key_value_heads, 1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(..., H) normed hidden states -> (..., Vd) over the draft vocabulary; its row i is target token `draft_vocab_ids[i]`."""
        if self.output is not None:
            return self.output(hidden)[..., : self.config.draft_size]
        return nn.functional.linear(hidden.to(self.output_weight.dtype), self.output_weight)

    def markov(self, prev_tokens: torch.Tensor, candidate_ids: torch.Tensor | None = None) -> torch.Tensor:
        """Correction to the logits, given the token before: `markov_next[candidate] . markov_prev[prev]`.

        Args:
            prev_tokens: (...,) target ids. Those outside the draft vocabulary correct nothing.
            candidate_ids: (..., K) rows of the draft vocabulary, or None for all of them.

        Returns (..., K) or (..., Vd).
        """
        rows = self.draft_index[prev_tokens]
        prev = embedding(rows.clamp(min=0), self.markov_prev) * (rows >= 0)[..., None].to(self.markov_prev.dtype)  # (..., rank)
        if candidate_ids is None:
            return prev @ self.markov_next.T
        return (embedding(candidate_ids, self.markov_next) @ prev[..., None]).squeeze(-1)

    def markov_table(self, before: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        """The same for rows of the draft vocabulary: (..., P) that come before, (..., K) candidates -> (..., P, K)."""
        return self.markov_prev[before] @ self.markov_next[candidates].transpose(-2, -1)


def block_mask(anchors: torch.Tensor, context: int, size: int, *, valid: torch.Tensor | None = None, causal: bool = True) -> torch.Tensor:
    """(B, A) anchor positions -> bool (B, 1, A * size, context + A * size): what each slot sees.

    Context strictly before the anchor, since at decoding the anchor has no features yet; and its own block (up to itself if
    `causal`), which keeps the rows of padding blocks from being empty.
    """
    batch, blocks = anchors.shape
    before = torch.arange(context, device=anchors.device) < anchors[..., None]  # (B, A, S)
    if valid is not None:
        before = before & valid[..., None]
    before = before.repeat_interleave(size, 1)
    slot = torch.arange(blocks * size, device=anchors.device)
    own = slot[:, None] // size == slot // size
    if causal:
        own = own & (slot <= slot[:, None])
    return torch.cat([before, own.expand(batch, -1, -1)], -1)[:, None]


def grouped_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """query (B, heads, Q, D), key and value (B, kv heads, T, D), additive mask (B, 1, groups * Q, T) -> (B, heads, Q, D).

    The heads of a group become further queries on the same keys: nothing is repeated in memory but the mask.
    """
    rows = query.reshape(query.shape[0], key.shape[1], -1, query.shape[3])
    return scaled_dot_product_attention(rows, key, value, attn_mask=mask).reshape(query.shape)
