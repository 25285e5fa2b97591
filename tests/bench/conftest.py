"""Tiny model folders with a tokenizer, a small suite, and the bench on them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from paceline.bench.grid import Grid
from paceline.bench.lineup import Lineup, line_up
from paceline.bench.peers import of_transformers, worker
from paceline.bench.process import Worker
from paceline.bench.settings import Settings
from paceline.cli import main

from ..bpe import trained

SENTENCES = ["the rain falls on the quiet lake", "the lake sings to the rain", "a small bird sings on the stone wall in the morning"]
TEMPLATE = "{% for m in messages %}<|user|>{{ m['content'] }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
ROWS = [
    {"id": "rain", "task": "own/chat/weather", "turns": ["the rain falls on the lake, the rain falls", "and then?"]},
    {"id": "bird", "task": "own/chat/animals", "turns": ["a small bird sings on the wall"]},
    {"id": "lake", "task": "own/qa", "turns": ["who sings to the quiet lake in the morning, and who sings to the quiet bird?"]},
]


def _tokenizer() -> Any:
    bpe = trained(SENTENCES, 300, ["<|user|>", "<|assistant|>", "<|end|>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|end|>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _save(folder: Path, noise: float) -> str:
    """A sharp random Llama of four layers, and noise on its weights. Its generation settings would change the text if they were used."""
    tokenizer = _tokenizer()
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += noise * torch.randn_like(parameter)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, do_sample=True, repetition_penalty=1.8)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _save(tmp_path_factory.mktemp("model"), 0.0)


@pytest.fixture(scope="session")
def draft_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A copy of the model plus noise: often right and often wrong."""
    return _save(tmp_path_factory.mktemp("draft"), 0.01)


@pytest.fixture
def suite(tmp_path: Path) -> str:
    file = tmp_path / "suite.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(file)


@pytest.fixture
def settings(model: str, draft_model: str) -> Callable[..., Settings]:
    def make(**changes: Any) -> Settings:
        return Settings(**{"model": model, "dtype": "float32", "max_new_tokens": 24, "peers": (), **changes})

    return make


class Here(Worker):
    """A worker whose peer decodes in this process: the same work and answers, without the seconds that a start takes."""

    peers: ClassVar[dict[str, Any]] = {}

    def ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        key = json.dumps(self._told, sort_keys=True)
        if key not in self.peers:
            self.peers[key] = of_transformers.Peer(self._told)
        self.versions = worker.versions(self.family)
        return worker.answer(self.peers[key], {"what": what, **arguments})


def here(family: str, told: dict[str, Any]) -> Worker:
    return Here(family, told, 60.0)


def lined_up(settings: Settings, **axes: Any) -> Lineup:
    """The runs of one combination, or of a grid."""
    return line_up(Grid(settings, **axes) if axes else Grid.of(settings), lambda _: None, here)


Bench = Callable[..., tuple[int, str, str]]


@pytest.fixture
def bench(model: str, suite: str, capsys: pytest.CaptureFixture[str]) -> Bench:
    """`paceline bench` on the tiny model and suite, in float32; returns exit code, stdout and stderr."""

    def call(*args: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["bench", "--model", model, "--prompts", suite, "--dtype", "float32", "--max-new-tokens", "12", *args])
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call
