"""Shared by all tests: one thread, quiet libraries, tiny models."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import hypothesis
import pytest
import torch

from . import tiny

torch.set_num_threads(1)
hypothesis.settings.register_profile("house", deadline=None, max_examples=60, derandomize=True)
hypothesis.settings.load_profile("house")


@pytest.fixture
def target():
    """A tiny sharp Llama with an empty cache; the memory of its slots must have been given back or is no longer referenced."""
    return tiny.target("llama")


@pytest.fixture
def draft():
    """A draft model for it: a copy plus small noise."""
    return tiny.draft("llama")
