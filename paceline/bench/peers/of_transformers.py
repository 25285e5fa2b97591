"""Transformers' own generation.

The original model, unpacked and with Transformers' own attention, with the defaults of Transformers but for what makes the comparison
equal: the same token ids, dtype, end-of-sequence ids and limits, and no penalties or sampling settings from the model's
generation_config.json.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from .common import Made, Unable, ended

LOOKUP_TOKENS = 10


class Model:
    """A causal language model of Transformers, and the seconds of its forwards."""

    def __init__(self, source: str, told: dict[str, Any]) -> None:
        import torch
        from transformers import AutoModelForCausalLM, GenerationConfig

        torch.set_num_threads(told["threads"])
        revision = told["revision"] if source == told["model"] else None
        dtype = getattr(torch, told["dtype"])
        model = AutoModelForCausalLM.from_pretrained(source, revision=revision, dtype=dtype, attn_implementation="sdpa")
        model.generation_config = GenerationConfig()  # what the model's author set for sampling is not what we compare
        self.model = model.to(told["device"]).eval()
        self.num_layers: int = model.config.get_text_config().num_hidden_layers

    @contextmanager
    def counted(self, whole: list[float], partial: list[float]) -> Iterator[None]:
        """Append the seconds of each forward: to `partial` if it leaves early (fewer layers), else to `whole`."""
        began: list[float] = []

        def before(*_: Any) -> None:
            began.append(time.perf_counter())

        def after(*_: Any) -> None:
            early = self.model.config.get_text_config().num_hidden_layers < self.num_layers
            (partial if early else whole).append(time.perf_counter() - began.pop())

        hooks = [self.model.register_forward_pre_hook(before), self.model.register_forward_hook(after)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def logits(self, tokens: list[int]) -> list[float]:
        import torch

        with torch.inference_mode():
            out = self.model(input_ids=torch.tensor([tokens], device=self.model.device), logits_to_keep=1)
        found: list[float] = out.logits[0, -1].float().tolist()
        return found


class Peer:
    """Plain generation, in batches that are padded on the left; and one sequence at a time prompt lookup, a draft model or early exit."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.target = Model(told["model"], told)
        self.draft = Model(told["draft"], told) if told["draft"] else None
        self.eos: list[int] = told["eos"]

    def logits(self, tokens: list[int]) -> list[float]:
        return self.target.logits(tokens)

    def prepare(self, name: str, *, temperature: float, batch_size: int) -> None:
        if batch_size > 1 and name != "transformers":
            raise Unable(f"it decodes one sequence at a time, and the batch size is {batch_size}")
        if name == "transformers-assisted" and self.draft is None:
            raise Unable("it needs a draft model; give one with --draft-model")
        if name.startswith("transformers-early-exit") and exit_layer(name, self.target.num_layers) >= self.target.num_layers:
            raise Unable(f"it cannot exit after layer {exit_layer(name, self.target.num_layers)} of {self.target.num_layers}")

    def decode(self, name: str, prompts: list[list[int]], limits: list[int], *, temperature: float, seed: int, batch_size: int) -> Made:
        import torch

        made = Made()
        for start in range(0, len(prompts), batch_size):
            torch.manual_seed(seed)
            self._generate(made, name, prompts[start : start + batch_size], limits[start : start + batch_size], temperature)
        return made

    def _generate(self, made: Made, name: str, prompts: list[list[int]], limits: list[int], temperature: float) -> None:
        arguments = self._arguments(name, prompts, max(limits), temperature)
        whole: list[float] = []
        draft: list[float] = []
        with ExitStack() as stack:
            stack.enter_context(self.target.counted(whole, draft))
            if "assistant_model" in arguments and self.draft is not None:
                stack.enter_context(self.draft.counted(draft, draft))
            began = time.perf_counter()
            rows = self.target.model.generate(**arguments)[:, max(map(len, prompts)) :].tolist()
            seconds = time.perf_counter() - began
        made.add([ended(row, limit, set(self.eos)) for row, limit in zip(rows, limits, strict=True)], seconds, whole, draft)

    def _arguments(self, name: str, prompts: list[list[int]], limit: int, temperature: float) -> dict[str, Any]:
        import torch
        from transformers import GenerationConfig

        width, pad = max(map(len, prompts)), self.eos[0] if self.eos else 0
        ids = torch.tensor([[pad] * (width - len(p)) + p for p in prompts], device=self.target.model.device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=ids.device)
        how: dict[str, Any] = {"do_sample": False}
        if temperature:
            how = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        if name == "transformers-lookup":
            how["prompt_lookup_num_tokens"] = LOOKUP_TOKENS
        if name.startswith("transformers-early-exit"):
            how["assistant_early_exit"] = exit_layer(name, self.target.num_layers)
        config = GenerationConfig(max_new_tokens=limit, eos_token_id=self.eos or None, pad_token_id=pad, **how)
        made = {"input_ids": ids, "attention_mask": mask, "generation_config": config}
        if name == "transformers-assisted" and self.draft is not None:
            made["assistant_model"] = self.draft.model
        return made


def exit_layer(name: str, num_layers: int) -> int:
    """N of NAME:N; a quarter of the layers without it."""
    layers = name.partition(":")[2]
    return int(layers) if layers else max(1, num_layers // 4)
