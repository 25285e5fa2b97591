"""Transformers' own generation, as the peers that we are compared with.

The original model is loaded once more, unpacked and with Transformers' own attention, and shared by all peers. They run with the
defaults of Transformers, but for what makes the comparison equal: the same token ids, dtype, end-of-sequence ids and limits, and
no penalties or sampling settings from the model's generation_config.json.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from ..errors import InvalidRequest
from ..targets.load import resolve
from .runs import Decoded

PLAIN, LOOKUP, ASSISTED, EARLY_EXIT = "transformers", "transformers-lookup", "transformers-assisted", "transformers-early-exit"
NAMES = (PLAIN, LOOKUP, ASSISTED, EARLY_EXIT)
LOOKUP_TOKENS = 10


class Unable(Exception):
    """This peer cannot run here; the bench says why and goes on."""


def check_peer(peer: str) -> None:
    """Raise InvalidRequest unless this is a peer's name; `transformers-early-exit:N` exits after N layers."""
    name, colon, layers = peer.partition(":")
    if name not in NAMES:
        raise InvalidRequest(f"unknown peer {name!r}; the peers are {', '.join(NAMES)} ({EARLY_EXIT}:N exits after N layers)")
    if colon and (name != EARLY_EXIT or not layers.isdigit() or int(layers) < 1):
        raise InvalidRequest(f"peer {peer!r} is not known; only {EARLY_EXIT} takes a number of layers, as in {EARLY_EXIT}:8")


class PeerModel:
    """The original model with Transformers, and a count of its forwards."""

    def __init__(self, model: Any, eos_token_ids: frozenset[int]) -> None:
        from transformers import GenerationConfig

        model.generation_config = GenerationConfig()  # what the model's author set for sampling is not what we compare
        self.model = model.eval()
        self.eos_token_ids = eos_token_ids
        self._layers: int = model.config.get_text_config().num_hidden_layers

    @classmethod
    def load(
        cls, name: str, dtype: torch.dtype, device: torch.device, eos_token_ids: frozenset[int], progress: Callable[[str], Any]
    ) -> PeerModel:
        from transformers import AutoModelForCausalLM

        source, revision = resolve(name, None, progress)
        progress(f"loading {name} for Transformers")
        model = AutoModelForCausalLM.from_pretrained(source, revision=revision, dtype=dtype, attn_implementation="sdpa")
        return cls(model.to(device), eos_token_ids)

    @property
    def num_layers(self) -> int:
        return self._layers

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """(V,) float32 logits after these tokens, from one plain forward."""
        out = self.model(input_ids=torch.tensor([list(tokens)], device=self.model.device), logits_to_keep=1)
        logits: torch.Tensor = out.logits[0, -1].float()
        return logits

    @contextmanager
    def counted(self, whole: list[float], partial: list[float]) -> Iterator[None]:
        """Append the seconds of each forward: to `partial` if it leaves early (fewer layers), else to `whole`."""
        began: list[float] = []

        def before(*_: Any) -> None:
            began.append(time.perf_counter())

        def after(*_: Any) -> None:
            early = self.model.config.get_text_config().num_hidden_layers < self._layers
            (partial if early else whole).append(time.perf_counter() - began.pop())

        hooks = [self.model.register_forward_pre_hook(before), self.model.register_forward_hook(after)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


class PeerRun:
    """One way to generate with Transformers, at batch size 1. Raises Unable if this model or bench does not offer it."""

    rule: str | None = None
    lossless = True
    batch_size = 1

    def __init__(self, peer: str, model: PeerModel, draft: PeerModel | None, temperature: float, seed: int | None) -> None:
        self.name = self.method = peer
        self._model, self._temperature, self._seed = model, temperature, seed
        self._draft: PeerModel | None = None
        self._extra: dict[str, Any] = {}
        name, _, layers = peer.partition(":")
        if name == LOOKUP:
            self._extra = {"prompt_lookup_num_tokens": LOOKUP_TOKENS}
        if name == EARLY_EXIT:
            exit_layer = int(layers) if layers else max(1, model.num_layers // 4)
            if exit_layer >= model.num_layers:
                raise Unable(f"it cannot exit after layer {exit_layer} of {model.num_layers}")
            self._extra = {"assistant_early_exit": exit_layer}
        if name == ASSISTED:
            if draft is None:
                raise Unable("it needs a draft model; give one with --draft-model")
            self._draft = draft

    def _config(self, limit: int) -> Any:
        from transformers import GenerationConfig

        eos = sorted(self._model.eos_token_ids) or None
        sampling = (
            {"do_sample": True, "temperature": self._temperature, "top_k": 0, "top_p": 1.0} if self._temperature else {"do_sample": False}
        )
        return GenerationConfig(max_new_tokens=limit, eos_token_id=eos, pad_token_id=eos[0] if eos else 0, **sampling, **self._extra)

    def decode(self, prompts: Sequence[list[int]], limits: Sequence[int]) -> Decoded:
        (tokens,), (limit,) = prompts, limits
        ids = torch.tensor([tokens], device=self._model.model.device)
        arguments: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "generation_config": self._config(limit)}
        if self._draft is not None:
            arguments["assistant_model"] = self._draft.model
        if self._temperature:
            torch.manual_seed(self._seed or 0)
        target: list[float] = []
        draft: list[float] = []
        with ExitStack() as stack:
            stack.enter_context(self._model.counted(target, draft))
            if self._draft is not None:
                stack.enter_context(self._draft.counted(draft, draft))
            began = time.perf_counter()
            out = self._model.model.generate(**arguments)
            output = out[0, len(tokens) :].tolist()
            seconds = time.perf_counter() - began
        return Decoded([output], seconds, len(target), 0, len(draft), sum(target), sum(draft))
