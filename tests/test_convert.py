"""A GGUF file is converted once, gives the model that is in it, and leaves nothing half done when that fails."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
import torch

from paceline.errors import PacelineError, UnsupportedModel
from paceline.targets import load as loading
from paceline.targets.load import load
from paceline.tree import Tree

from . import tiny_gguf
from .folders import logits, refused, save


class Conversion:
    """Stands for the slow conversion: counts, writes a model folder, and fails half-way if told to."""

    def __init__(self) -> None:
        self.count = 0
        self.failure: BaseException | None = None

    def __call__(self, file: Path, folder: Path) -> None:
        self.count += 1
        (folder / "half.safetensors").write_bytes(b"x" * 100)
        if self.failure:
            raise self.failure
        save(folder)


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setenv("PACELINE_CACHE", str(folder))
    return folder


@pytest.fixture
def conversion(monkeypatch, cache) -> Conversion:
    made = Conversion()
    monkeypatch.setattr(loading, "_convert", made)
    return made


@pytest.fixture
def gguf(tmp_path) -> Path:
    file = tmp_path / "some.gguf"
    file.write_bytes(b"GGUF")
    return file


@pytest.mark.parametrize(
    "failure", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("write failed: No space left on device")]
)
def test_a_full_disk_names_the_variable_that_moves_the_cache(conversion, gguf, failure):
    conversion.failure = failure
    message = refused(PacelineError, gguf)
    assert "set PACELINE_CACHE to a larger disk" in message, message
    assert "some.gguf" in message, message


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EPERM])
def test_a_cache_that_cannot_be_written_names_the_variable_that_moves_it(conversion, gguf, number):
    conversion.failure = OSError(number, "no")
    assert "set PACELINE_CACHE to a folder that can be written" in refused(PacelineError, gguf)


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_cache_folder_that_is_a_file_names_the_variable_that_moves_it(conversion, gguf, tmp_path, monkeypatch, below):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "file" / below))
    assert "set PACELINE_CACHE to a folder that can be written" in refused(PacelineError, gguf)


@pytest.mark.parametrize(
    "failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt(), ValueError("bad tensor")], ids=repr
)
def test_a_conversion_that_fails_half_way_leaves_nothing_behind(conversion, cache, gguf, failure):
    conversion.failure = failure
    with pytest.raises((PacelineError, KeyboardInterrupt)):
        load(str(gguf))
    left = [str(p.relative_to(cache)) for p in cache.rglob("*")]
    assert (conversion.count, left) == (1, []), f"{len(left)} left behind: {left}"


def test_ctrl_c_during_a_conversion_stays_ctrl_c(conversion, gguf):
    conversion.failure = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        load(str(gguf))


def test_a_conversion_that_failed_is_made_again(conversion, gguf):
    conversion.failure = OSError(errno.ENOSPC, "No space left on device")
    refused(PacelineError, gguf)
    conversion.failure = None
    load(str(gguf), dtype="float32")
    assert conversion.count == 2


def test_a_converted_file_is_loaded_like_a_folder(conversion, gguf, saved):
    far = float((logits(load(str(gguf), dtype="float32")) - logits(load(str(saved), dtype="float32"))).abs().max())
    assert far == 0, f"off by {far:.2e}"


def test_a_file_is_converted_once(conversion, cache, gguf):
    for _ in range(2):
        load(str(gguf), dtype="float32")
    assert (conversion.count, len(list(cache.iterdir()))) == (1, 1)


def test_a_file_that_changed_is_converted_again(conversion, gguf):
    loading.converted(gguf)
    gguf.write_bytes(b"GGUF, longer")
    loading.converted(gguf)
    assert conversion.count == 2


@pytest.mark.parametrize(("hours", "stays"), [(23, True), (25, False)])
def test_what_a_killed_conversion_left_is_removed_a_day_later(conversion, cache, gguf, hours, stays):
    left = cache / ".converting-abc"
    left.mkdir()
    (left / "half.safetensors").write_bytes(b"x")
    then = time.time() - hours * 3600
    os.utime(left, (then, then))
    loading.converted(gguf)
    assert (left.exists(), conversion.count) == (stays, 1)


def test_another_conversion_that_ends_meanwhile_is_no_error(conversion, cache, gguf):
    (cache / ".converting-gone").symlink_to(cache / "no-such-folder")  # is listed, and cannot be looked at
    loading.converted(gguf)
    assert conversion.count == 1


def test_two_processes_that_convert_at_once_end_with_one_folder(conversion, cache, gguf, monkeypatch):
    def slower(file: Path, folder: Path) -> None:
        monkeypatch.setattr(loading, "_convert", conversion)
        loading.converted(file)  # the other process is done first
        conversion(file, folder)

    monkeypatch.setattr(loading, "_convert", slower)
    folder = loading.converted(gguf)
    assert (list(cache.iterdir()), (folder / "config.json").is_file()) == ([folder], True)


def test_without_the_variable_the_cache_is_in_the_users_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("PACELINE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert loading.cache_folder() == tmp_path / "paceline"


@pytest.mark.parametrize("content", [b"", b"no GGUF at all", b"GGUF\x03\x00\x00\x00" + b"\xff" * 24])
def test_a_broken_gguf_is_refused_and_leaves_nothing_behind(tmp_path, cache, content):
    file = tmp_path / "broken.gguf"
    file.write_bytes(content)
    assert "get the file again" in refused(UnsupportedModel, file)
    assert list(cache.iterdir()) == []


# --- the conversion itself, of a tiny file


@pytest.fixture
def written(tmp_path, cache):
    """A whole GGUF file, with the model and the tokenizer that are in it."""
    file = tmp_path / "tiny.gguf"
    return file, *tiny_gguf.write(file)


@torch.no_grad()
def test_a_converted_model_gives_the_logits_of_the_one_in_the_file(written):
    file, model, tokenizer = written
    for parameter in model.parameters():
        parameter.copy_(parameter.bfloat16())  # what a conversion keeps
    target, ids = load(str(file), dtype="float32"), tokenizer.encode("the rain on the lake sings").ids
    far = float((target.verify([Tree.chain(ids)], [target.cache.open()]).logits - model(torch.tensor([ids])).logits[0]).abs().max())
    assert far < 1e-4, f"logits are off by {far:.2e}"


@pytest.mark.parametrize("text", ["the rain falls on the lake", "où – 🌧🌧!", " two  spaces\n"])
def test_a_converted_tokenizer_spells_as_the_one_in_the_file(written, text):
    file, _, tokenizer = written
    target = load(str(file), dtype="float32")
    ids = tokenizer.encode(text).ids
    assert (target.tokenizer(text)["input_ids"], target.tokenizer.decode(ids)) == (ids, text)


def test_a_converted_model_ends_where_the_file_says(written):
    assert load(str(written[0]), dtype="float32").eos_token_ids == frozenset([0])


@pytest.mark.parametrize("place", ["save_pretrained", "disk"])
def test_a_disk_that_fills_up_in_the_real_conversion_leaves_nothing_behind(written, cache, monkeypatch, place):
    full = OSError(errno.ENOSPC, "No space left on device")
    if place == "disk":
        monkeypatch.setattr(loading.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 1000}))
    else:
        monkeypatch.setattr(type(written[1]), "save_pretrained", lambda *a, **k: (_ for _ in ()).throw(full))
    assert "set PACELINE_CACHE to a larger disk" in refused(PacelineError, written[0])
    assert list(cache.iterdir()) == []
