"""The embedded model with its real weights, in float32: the same tokens as Transformers, a cache that is used again, flat memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

import paceline
from paceline import SamplingParams, api, engine, methods
from paceline.sequence import Sequence
from paceline.targets.hf import HFTarget
from paceline.targets.load import resolve

pytestmark = pytest.mark.real

PROMPTS = {
    "story": "Write a haiku about rain.",
    "copy": "Repeat this list three times: red, green, blue, yellow, violet, orange, black, white.",
}
THIRD = "What is the capital of France? Answer with one word."
NEXT_TURN = "<|im_end|>\n<|im_start|>user\nNow the same about snow.<|im_end|>\n<|im_start|>assistant\n"
COUNT = 24
MB = 1 << 20


@pytest.fixture(scope="module")
def target() -> HFTarget:
    return paceline.load("smollm2", dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def greedy(target) -> dict[str, list[int]]:
    """What Transformers' own generate makes of a prompt, on the plain model from the same folder."""
    folder, _ = resolve("smollm2", None, lambda message: None)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def tokens(prompt: str) -> list[int]:
        ids = torch.tensor([api.encode(target, prompt)])
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=COUNT, do_sample=False)
        return out[0, ids.shape[1] :].tolist()

    return {name: tokens(prompt) for name, prompt in PROMPTS.items()}


def first_difference(got: list[int], want: list[int]) -> str:
    at = next((i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), min(len(got), len(want)))
    return f"first difference at token {at} of {len(want)}: got {got[at : at + 3]}, want {want[at : at + 3]}"


def answer(target: HFTarget, prompt: str, count: int = COUNT, method: str = "lookup") -> api.Completion:
    (done,) = api.generate(target, [prompt], SamplingParams(max_new_tokens=count), method=method)
    return done


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("method", ["none", "lookup"])
def test_every_token_is_that_of_transformers_own_greedy_generate(target, greedy, method, prompt):
    got = answer(target, PROMPTS[prompt], method=method).tokens
    assert got == greedy[prompt], first_difference(got, greedy[prompt])


def test_lookup_saves_forwards_where_the_text_repeats(target):
    stats = answer(target, PROMPTS["copy"]).stats
    assert stats.mean_acceptance_length > 1.3, f"{stats.tokens} tokens in {stats.rounds} rounds"


@pytest.fixture(scope="module")
def batch(target) -> list[api.Completion]:
    return api.generate(target, [*PROMPTS.values(), THIRD], SamplingParams(max_new_tokens=COUNT), method="lookup")


@pytest.mark.parametrize("row", range(3))
def test_a_row_of_a_ragged_batch_equals_the_row_alone(target, batch, row):
    alone = answer(target, [*PROMPTS.values(), THIRD][row]).tokens
    assert batch[row].tokens == alone, f"row of {batch[row].prompt_tokens} tokens, {first_difference(batch[row].tokens, alone)}"


def test_the_batch_is_ragged(batch):
    lengths = [row.prompt_tokens for row in batch]
    assert len(set(lengths)) == 3, f"prompts of {lengths} tokens"


# --- a second turn


@dataclass
class Turn:
    """The second turn of a conversation: what was fed of it, and what came."""

    prompt: list[int]
    first_length: int  # tokens of the first turn, prompt and output
    fed: int
    output: list[int]


@pytest.fixture(scope="module")
def turn(target) -> Turn:
    fed: list[int] = []
    prefill = HFTarget.prefill

    def counting(self: HFTarget, slots: Any, tokens: Any, layer_ids: Any = ()) -> Any:
        fed.append(sum(map(len, tokens)))
        return prefill(self, slots, tokens, layer_ids)

    params = SamplingParams(max_new_tokens=16)
    drafter, rule = methods.build("lookup", target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HFTarget, "prefill", counting)
        seq = api.request(target, PROMPTS["story"], params)
        for _ in engine.rounds(target, drafter, rule, [seq]):
            pass
        first_length = len(seq.tokens)
        prompt = [*seq.tokens, *target.tokenizer(NEXT_TURN, add_special_tokens=False)["input_ids"]]
        fed.clear()
        engine.next_turn(target, seq, prompt, params)
        for _ in engine.rounds(target, drafter, rule, [seq]):
            pass
    engine.release(target, seq)
    return Turn(prompt, first_length, sum(fed), seq.output)


def test_a_second_turn_feeds_only_what_is_new(turn):
    new = len(turn.prompt) - turn.first_length
    assert turn.fed == new, f"{turn.fed} tokens were fed for {new} new ones after {turn.first_length}"


def test_a_second_turn_says_what_a_fresh_run_says(target, turn):
    seq = Sequence(turn.prompt, SamplingParams(max_new_tokens=16), eos_token_ids=target.eos_token_ids)
    engine.generate(target, *methods.build("lookup", target), [seq])
    assert turn.output == seq.output, first_difference(turn.output, seq.output)


# --- memory


@dataclass
class Memory:
    resident: list[int]  # bytes after each request
    cached: list[int]


@pytest.fixture(scope="module")
def memory(target) -> Memory:
    process, found = psutil.Process(), Memory([], [])
    for i in range(30):
        answer(target, f"{PROMPTS['story']} Number {i}.", count=4)
        found.resident.append(process.memory_info().rss)
        found.cached.append(target.cache.nbytes)
    return found


def test_resident_memory_stays_flat_over_requests(memory):
    grown = (max(memory.resident[10:]) - max(memory.resident[:10])) / MB
    assert grown <= 50, f"{grown:.0f} MB more after request 10, from {max(memory.resident[:10]) / MB:.0f} MB"


def test_the_cache_is_empty_after_every_request(memory):
    assert not any(memory.cached), f"bytes in the cache after each request: {memory.cached}"


# --- the command


@pytest.fixture(scope="module")
def command() -> subprocess.CompletedProcess[str]:
    arguments = ["generate", "Write a haiku about rain", "--stats", "--max-new-tokens", "16"]
    return subprocess.run(
        [sys.executable, "-m", "paceline.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )


def test_the_command_of_the_readme_answers(command):
    assert command.returncode == 0, f"exit code {command.returncode}: {command.stderr[-500:]}"
    assert len(command.stdout.split()) > 4, f"it said {command.stdout!r}"


def test_the_command_of_the_readme_shows_the_measured_speed_up(command):
    shown = re.search(r"speed-up +(\d+\.\d\d)x = ", command.stderr)
    assert shown, f"no speed-up on stderr: {command.stderr[-800:]}"
    assert 0.05 < float(shown[1]) < 50, f"a speed-up of {shown[1]}"
