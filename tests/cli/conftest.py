"""A tiny model folder with a tokenizer of its own, and the command line called as the console script calls it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from paceline.cli import main

from ..bpe import trained

SENTENCES = [
    "the rain falls on the quiet lake and the lake sings to the rain",
    "a small bird sings on the old stone wall in the morning",
    "user and assistant talk about the rain and the bird",
]
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MARKS = ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]


def save_model(
    folder: Path, seed: int = 0, sentences: list[str] = SENTENCES, template: str | None = TEMPLATE, *, noise: float = 0.0
) -> str:
    """A random Llama with sharp logits and a byte-level tokenizer trained on a few sentences, as a folder. With noise, one near it."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained(sentences, 320, MARKS), eos_token="<|end|>")
    tokenizer.chat_template = template
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight += noise * torch.randn_like(weight)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def draft_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Other weights, the same tokenizer."""
    return save_model(tmp_path_factory.mktemp("draft"), seed=1)


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one line of JSON on stdout."""
        assert self.code == 0, self.err
        assert self.out.count("\n") == 1, self.out
        return dict(json.loads(self.out))


Call = Callable[..., Result]


@pytest.fixture
def paceline(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call the console script's function with arguments and, if given, stdin."""

    def call(*args: str, stdin: str = "") -> Result:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            main(args)
        out, err = capsys.readouterr()
        return Result(int(ended.value.code or 0), out, err)

    return call


@pytest.fixture
def generate(paceline: Call, model: str) -> Call:
    """`paceline generate` on the tiny model, in float32."""

    def call(*args: str, stdin: str = "") -> Result:
        return paceline("generate", "--model", model, "--dtype", "float32", *args, stdin=stdin)

    return call


@pytest.fixture
def chat(paceline: Call, model: str) -> Call:
    """`paceline chat` on the tiny model, in float32."""

    def call(*args: str, stdin: str = "") -> Result:
        return paceline("chat", "--model", model, "--dtype", "float32", "--max-new-tokens", "24", *args, stdin=stdin)

    return call
