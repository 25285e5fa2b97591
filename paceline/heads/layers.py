"""The decoder layers of a head, as in Qwen3 but for their context: keys and values of the fused features, computed once.

Axes: B sequences, Q slots, S context rows, H hidden size, D head size.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from .config import JetSpecConfig
from .rope import rotate

Table = tuple[torch.Tensor, torch.Tensor]  # cosine and sine of positions
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # query, key, value of the slots -> (..., heads, Q, D)


class Attention(nn.Module):
    """Grouped-query attention with normed queries and keys. The same weights project context and slots."""

    def __init__(self, config: JetSpecConfig) -> None:
        super().__init__()
        hidden, self.head_dim = config.hidden_size, config.head_dim
        wide, narrow = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(hidden, wide, bias=False)
        self.k_proj = nn.Linear(hidden, narrow, bias=False)
        self.v_proj = nn.Linear(hidden, narrow, bias=False)
        self.o_proj = nn.Linear(wide, hidden, bias=False)
        self.q_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)

    def key_value(self, x: torch.Tensor, table: Table) -> tuple[torch.Tensor, torch.Tensor]:
        """(..., T, H) -> rotated keys and values, (..., kv heads, T, D) each."""
        key = rotate(self.k_norm(self._heads(self.k_proj(x))), table)
        return key, self._heads(self.v_proj(x))

    def forward(self, x: torch.Tensor, table: Table, attend: Attend) -> torch.Tensor:
        """(..., Q, H) -> (..., Q, H), with `attend` adding the context."""
        query = rotate(self.q_norm(self._heads(self.q_proj(x))), table)
        out: torch.Tensor = self.o_proj(attend(query, *self.key_value(x, table)).transpose(-3, -2).flatten(-2))
        return out

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        """(..., T, heads * D) -> (..., heads, T, D)."""
        return x.view(*x.shape[:-1], -1, self.head_dim).transpose(-3, -2)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: JetSpecConfig) -> None:
        super().__init__()
        hidden, wide = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, wide, bias=False)
        self.up_proj = nn.Linear(hidden, wide, bias=False)
        self.down_proj = nn.Linear(wide, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """One decoder layer. The norm before attention is for the slots only; the context comes normed."""

    def __init__(self, config: JetSpecConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: torch.Tensor, table: Table, attend: Attend) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), table, attend)
        out: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out
