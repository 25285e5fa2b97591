"""The tiny Llama as a folder on disk, and how a refusal to load must read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from paceline.errors import PacelineError
from paceline.targets.hf import HFTarget
from paceline.targets.load import load
from paceline.tree import Tree

from . import tiny

WORDS = [f"word{i}" for i in range(tiny.VOCAB)]
IDS = [3, 9, 27, 20, 60, 1, 2, 6]


def tokenizer(words: list[str]) -> Any:
    """Whole words, one token each."""
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token=words[0]))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=words[2])


def save(folder: Path) -> None:
    """The tiny Llama as a folder."""
    tiny.plain("llama").save_pretrained(folder)
    tokenizer(WORDS).save_pretrained(folder)


def refused(error: type[PacelineError], name: object, **options: Any) -> str:
    """The message, which must be one line that names the value and a remedy after it."""
    with pytest.raises(error) as caught:
        load(str(name), **options)
    message = str(caught.value)
    assert message.count("\n") == 0, f"{message.count(chr(10)) + 1} lines: {message}"
    assert "; " in message, f"no remedy in: {message}"
    return message


def logits(target: HFTarget) -> torch.Tensor:
    return target.verify([Tree.chain(IDS)], [target.cache.open()]).logits
