"""What a JetSpec head is: its shapes, where it reads the target, and which target it belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from ..errors import CheckpointMismatch
from .fingerprint import fingerprint, tokenizer_hash
from .rope import rope_of

BLOCK_SIZE, TAPS = 8, 5
_COUNTS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "block_size",
    "num_target_layers", "vocab_size", "max_position_embeddings",
)  # fmt: skip


@dataclass(frozen=True)
class JetSpecConfig:
    """Shapes and origin of a head.

    `target_layer_ids`: the head reads the outputs of these decoder layers, counted from 0, one after the other in its features.
    `block_size`: slots of a block, the anchor included, so it drafts `block_size - 1` tokens.
    `causal`: whether a slot sees only the slots before it (JetSpec) or all of its block (DFlash).
    `mask_token_id`: the token that fills the slots; None is a trained vector, for tokenizers without a spare row.
    `draft_vocab_size`: rows of a reduced draft vocabulary; None is the target's own.
    `markov_rank`: rank of the correction on the previous token; 0 is off.
    `last_feature`: whether every slot also starts with a projection of the last context row.
    `temperatures`: one per depth; the head's logits over these are its calibrated ones. Empty is 1 everywhere.
    """

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_parameters: Mapping[str, Any]
    block_size: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    vocab_size: int
    max_position_embeddings: int = 32768
    causal: bool = True
    mask_token_id: int | None = None
    draft_vocab_size: int | None = None
    markov_rank: int = 0
    last_feature: bool = False
    temperatures: tuple[float, ...] = ()
    target_name: str = ""
    target_tokenizer: str = ""  # hash of the target's vocabulary
    target_fingerprint: tuple[float, ...] = ()  # of some rows of its embedding and output matrices

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            _need(type(value) is int and value >= 1, f"{name} is {value!r}; it must be a whole number of at least 1")
        for name in ("mask_token_id", "draft_vocab_size", "markov_rank"):
            _need(type(getattr(self, name)) in (int, type(None)), f"{name} is {getattr(self, name)!r}; it must be a whole number")
        for name, value in (("rope_theta", self.rope_parameters.get("rope_theta")), ("rms_norm_eps", self.rms_norm_eps)):
            _need(isinstance(value, int | float) and value > 0, f"{name} is {value!r}; it must be a positive number")
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        _need(heads % kv_heads == 0, f"{heads} attention heads cannot share {kv_heads} key/value heads; the first must be a multiple")
        _need(self.head_dim % 2 == 0, f"head_dim is {self.head_dim}; rotary positions need an even number")
        _need(self.block_size >= 2, f"block_size is {self.block_size}; it must be at least 2 (the anchor and one draft)")
        ids = self.target_layer_ids
        _need(bool(ids) and list(ids) == sorted(set(ids)), f"target_layer_ids are {list(ids)}; they must be different and ascending")
        _need(
            ids[0] >= 0 and ids[-1] < self.num_target_layers,
            f"target_layer_ids are {list(ids)}, and the target has layers 0 to {self.num_target_layers - 1}",
        )
        mask, small = self.mask_token_id, self.draft_vocab_size
        _need(mask is None or 0 <= mask < self.vocab_size, f"mask_token_id is {mask}, outside the vocabulary of {self.vocab_size}")
        _need(small is None or 0 < small <= self.vocab_size, f"draft_vocab_size is {small}, and the target has {self.vocab_size} tokens")
        _need(self.markov_rank >= 0, f"markov_rank is {self.markov_rank}; 0 switches it off")
        _need(
            len(self.temperatures) in (0, self.depth) and all(t > 0 for t in self.temperatures),
            f"temperatures are {list(self.temperatures)}; need {self.depth} positive numbers, one per depth, or none",
        )

    @property
    def depth(self) -> int:
        """How many tokens a block drafts."""
        return self.block_size - 1

    @property
    def feature_size(self) -> int:
        """F, the width of the features that the head reads."""
        return len(self.target_layer_ids) * self.hidden_size

    @property
    def draft_size(self) -> int:
        """Vd, rows of the draft vocabulary."""
        return self.vocab_size if self.draft_vocab_size is None else self.draft_vocab_size

    def as_dict(self) -> dict[str, Any]:
        return {k: dict(v) if isinstance(v, Mapping) else list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> JetSpecConfig:
        """Raises CheckpointMismatch for unknown, missing and impossible values."""
        known = {f.name for f in fields(cls)}
        if strange := sorted(set(values) - known):
            raise CheckpointMismatch(
                f"the head's configuration has unknown keys {', '.join(strange)}; known are {', '.join(sorted(known))}"
            )
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        try:
            return cls(**given)
        except TypeError as error:
            raise CheckpointMismatch(f"the head's configuration is incomplete or of a wrong type ({error}); get the head again") from None

    @classmethod
    def for_target(
        cls,
        target: Any,
        *,
        num_hidden_layers: int = 2,
        block_size: int = BLOCK_SIZE,
        taps: int | Sequence[int] = TAPS,
        intermediate_size: int | None = None,
        mask_token_id: int | None = None,
        draft_vocab_size: int | None = None,
        markov_rank: int = 0,
        last_feature: bool = False,
    ) -> JetSpecConfig:
        """A head for this target: its width, heads and rotary positions, and Qwen3-like layers. `taps` are layer ids or their number."""
        own = target.config
        layers, heads = own.num_hidden_layers, own.num_attention_heads
        return cls(
            hidden_size=own.hidden_size,
            num_hidden_layers=num_hidden_layers,
            num_attention_heads=heads,
            num_key_value_heads=getattr(own, "num_key_value_heads", None) or heads,
            head_dim=getattr(own, "head_dim", None) or own.hidden_size // heads,
            intermediate_size=intermediate_size or getattr(own, "intermediate_size", None) or 4 * own.hidden_size,
            rms_norm_eps=float(getattr(own, "rms_norm_eps", None) or 1e-6),
            rope_parameters=rope_of(own),
            block_size=block_size,
            target_layer_ids=tap_layers(layers, taps) if isinstance(taps, int) else tuple(taps),
            num_target_layers=layers,
            vocab_size=target.vocab_size,
            max_position_embeddings=target.max_length or 32768,
            mask_token_id=mask_token_id,
            draft_vocab_size=draft_vocab_size,
            markov_rank=markov_rank,
            last_feature=last_feature,
            target_name=target.name,
            target_tokenizer=tokenizer_hash(target.vocabulary),
            target_fingerprint=fingerprint(target),
        )


def tap_layers(layers: int, taps: int) -> tuple[int, ...]:
    """Evenly spread layers, never the last three: tap i is round(1 + i (layers - 4) / (taps - 1)), halves to even, as in DFlash."""
    taps = min(taps, max(1, layers - 3))
    if taps == 1:
        return (layers // 2,)
    return tuple(round(1 + i * (layers - 4) / (taps - 1)) for i in range(taps))


def _need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise CheckpointMismatch(f"this is no JetSpec head: {otherwise}")
