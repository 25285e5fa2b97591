"""Shared by all tests: one thread, quiet libraries, tiny models."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import hypothesis
import pytest
import torch

from . import tiny
from .folders import save

torch.set_num_threads(1)
hypothesis.settings.register_profile("house", deadline=None, max_examples=60, derandomize=True)
hypothesis.settings.load_profile("house")


@pytest.fixture
def target():
    """A tiny sharp Llama with an empty cache."""
    return tiny.target("llama")


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """The tiny Llama as a folder."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    save(folder)
    return folder
