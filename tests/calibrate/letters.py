"""Tiny models that read text: every token is two letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.calibrate.run import Pair, Plan
from paceline.targets.hf import HFTarget
from paceline.train.prompts import Row

from .. import tiny

PLAN = Plan(max_new_tokens=24, num_speculative_tokens=3)


class Letters:
    chat_template = None
    all_special_ids: Sequence[int] = ()

    def get_vocab(self) -> dict[str, int]:
        return {self.decode([i]): i for i in range(tiny.VOCAB)}

    def get_added_vocab(self) -> dict[str, int]:
        return {}

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join("ABCDEFGH"[i // 8] + "abcdefgh"[i % 8] for i in ids)

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": ["ABCDEFGH".index(a) * 8 + "abcdefgh".index(b) for a, b in zip(text[::2], text[1::2], strict=True)]}


def pair(noise: float = 0.06) -> Pair:
    """The tiny target and its noisy copy, with empty caches."""
    return Pair(HFTarget(tiny.ours("llama"), Letters(), "big"), HFTarget(tiny.noisy("llama", noise), Letters(), "small"))


def prompts() -> list[Row]:
    texts = ("FgGdHa", "AdBeCf", "DhEaBc", "GhAcFe")
    return [Row(f"p{i}", "even" if i % 2 else "odd", (text,)) for i, text in enumerate(texts)]
