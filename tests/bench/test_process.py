"""A peer in a process of its own: what it answers, and what becomes of one that hangs, dies or is not there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.grid import Grid
from paceline.bench.lineup import line_up
from paceline.bench.peers.common import Unable
from paceline.bench.process import Worker
from paceline.bench.settings import Settings

from . import stub
from .test_run import line, measure

HOW: dict[str, Any] = {"name": "llama-cpp", "temperature": 0.0, "seed": 0, "batch_size": 1}


def expected(prompt: list[int], limit: int) -> list[int]:
    """What the stub says: the sum so far, modulo 50, up to its end of sequence."""
    seen = list(prompt)
    for _ in range(limit):
        seen.append(sum(seen) % 50)
        if seen[-1] in stub.TOLD["eos"]:
            break
    return seen[len(prompt) :]


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    stub.install(tmp_path, monkeypatch)
    made = Worker("llama-cpp", stub.TOLD, 20.0)
    yield made
    made.stop()


def decode(worker: Worker, *prompts: list[int], limit: int = 6) -> dict[str, Any]:
    return worker.ask("decode", prompts=list(prompts), limits=[limit] * len(prompts), **HOW)


def test_a_peer_decodes_elsewhere_and_measures_itself_there(worker: Worker) -> None:
    prompts = [[1, 2], [24, 25, 3], [5]]
    found = decode(worker, *prompts)
    assert found["outputs"] == [expected(p, 6) for p in prompts]
    assert found["target_forwards"] == sum(map(len, found["outputs"]))
    assert 0 < found["target_seconds"] < found["seconds"]
    assert 0 < found["peak_rss_mb"] < 120, "another process would hold torch and the models of the tests"
    assert worker.versions["python"]


def test_a_long_prompt_gets_the_context_that_it_needs(worker: Worker) -> None:
    prompts = [[1], [2, 3] * 700]
    assert decode(worker, *prompts)["outputs"] == [expected(p, 6) for p in prompts]


def test_one_that_hangs_is_stopped_and_can_be_asked_again(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANGS_AT", "2")
    decode(worker, [1])
    assert worker._process is not None
    first, worker.limit = worker._process, 0.3
    with pytest.raises(Unable, match=r"stopped: no answer after 0.3 s of decoding; give it longer with --peer-timeout"):
        decode(worker, [1])
    assert first.poll() is not None, "it still runs"
    worker.limit = 20.0
    assert decode(worker, [1])["outputs"] == [expected([1], 6)]


def test_one_that_dies_tells_its_last_words(worker: Worker) -> None:
    with pytest.raises(Unable, match="its process ended with signal SIGABRT, saying: out of luck"):
        decode(worker, [99])
    assert decode(worker, [1])["outputs"] == [expected([1], 6)]


def test_one_that_fails_stays(worker: Worker) -> None:
    decode(worker, [1])
    before = worker._process
    with pytest.raises(Unable, match="RuntimeError: no such thing"):
        decode(worker, [77])
    decode(worker, [1])
    assert worker._process is before


def test_one_that_is_not_installed_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub.install(tmp_path, monkeypatch, there=False)
    worker = Worker("llama-cpp", stub.TOLD, 20.0)
    for _ in range(2):
        with pytest.raises(
            Unable, match=r"llama-cpp-python is not installed .*python -m venv .*peers/llama-cpp .*install llama-cpp-python=="
        ):
            worker.ask("prepare", name="llama-cpp", temperature=0.0, batch_size=1)
    assert worker._process is None


@pytest.mark.parametrize(
    ("told", "batch_size", "why"),
    [({"gguf": "a folder"}, 1, "reads GGUF files only"), ({"device": "cuda"}, 1, "on the CPU only"), ({}, 4, "one sequence at a time")],
)
def test_what_llama_cpp_does_not_offer_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: dict[str, Any], batch_size: int, why: str
) -> None:
    stub.install(tmp_path, monkeypatch)
    worker = Worker("llama-cpp", stub.TOLD | told, 20.0)
    with pytest.raises(Unable, match=why):
        worker.ask("prepare", name="llama-cpp", temperature=0.0, batch_size=batch_size)
    worker.stop()


def test_the_process_ends_when_it_is_stopped(worker: Worker) -> None:
    decode(worker, [1])
    assert worker._process is not None
    process = worker._process.pid
    worker.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_a_bench_goes_on_without_a_peer_that_hangs(
    settings: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.install(tmp_path, monkeypatch)
    monkeypatch.setenv("HANGS_AT", "3")  # after the warm-up and one prompt
    chosen = settings(methods=("none", "lookup"), peers=("llama-cpp", "llama-cpp-lookup"), max_new_tokens=4)
    lineup = line_up(Grid.of(chosen), lambda _: None, lambda family, told: Worker(family, told | {"gguf": "x.gguf"}, 20.0))
    lineup.workers["llama-cpp"].limit = 0.5
    try:
        found = measure(chosen, lineup)
    finally:
        lineup.close()
    skipped = line(found, "llama-cpp")
    assert "no answer after 0.5 s of decoding" in skipped["skipped"]
    assert (skipped["tokens"], skipped["temperature"], skipped["batch_size"]) == (None, 0.0, 1)
    assert any(remark.startswith("llama-cpp was skipped: stopped") for remark in found["remarks"])
    assert (line(found, "lookup")["identical"], line(found, "lookup")["of"]) == (3, 3)
    assert "llama_speculative" in line(found, "llama-cpp-lookup")["skipped"], "the stub has no such module"
