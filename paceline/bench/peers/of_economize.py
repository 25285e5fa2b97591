"""economize: a draft model, prompt lookup, and early exit through the model's own output layer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .common import Made, Unable, ended
from .of_transformers import Model, exit_layer

CYCLE = {"economize": 5, "economize-lookup": 10, "economize-early-exit": 4}  # tokens of a cycle, the one of the target included


class Peer:
    """Its decoding loop runs the model's layers itself: a forward is one of its exact passes."""

    def __init__(self, told: dict[str, Any]) -> None:
        import economize

        self.library: Any = economize
        self.target = Model(told["model"], told)
        self.told = told
        self.models: dict[str, Any] = {}

    def prepare(self, name: str, *, temperature: float, batch_size: int) -> None:
        if name == "economize" and not self.told["draft"]:
            raise Unable("it needs a draft model; give one with --draft-model, or take economize-lookup")
        if name.startswith("economize-early-exit") and exit_layer(name, self.target.num_layers) >= self.target.num_layers:
            raise Unable(f"it cannot exit after layer {exit_layer(name, self.target.num_layers)} of {self.target.num_layers}")

    def _model(self, name: str) -> Any:
        """The target with a technique; they share its weights."""
        from economize.techniques.draft_model import DraftModelConfig
        from economize.techniques.early_exit import EarlyExitConfig
        from economize.techniques.lookup import LookupConfig

        technique: Any = LookupConfig(max_ngram=3)
        if name == "economize":
            technique = DraftModelConfig(model=self.told["draft"], dtype=self.told["dtype"])
        if name.startswith("economize-early-exit"):
            technique = EarlyExitConfig(exit_layer=exit_layer(name, self.target.num_layers), head="shared")
        if name not in self.models:
            self.models[name] = self.library.apply(self.target.model, technique)
        return self.models[name]

    def decode(self, name: str, prompts: list[list[int]], limits: list[int], *, temperature: float, seed: int, batch_size: int) -> Made:
        import torch

        made, eos = Made(), set(self.told["eos"])
        how = self.library.DecodeConfig(cycle_length=CYCLE[name.partition(":")[0]], verifier="rejection" if temperature else None)
        model = self._model(name)
        for start in range(0, len(prompts), batch_size):
            ids = [torch.tensor(p, device=self.told["device"]) for p in prompts[start : start + batch_size]]
            selector = self.library.TopPSampler(temperature=temperature, seed=seed) if temperature else None
            room = limits[start : start + batch_size]
            with counted(type(model.runner)) as (passes, drafts):
                began = time.perf_counter()
                found = model.decode_batch(ids, room, decoding=how, selector=selector, stop=sorted(eos) or None)
                outputs = [f.tokens.tolist() for f in found]
                seconds = time.perf_counter() - began
            made.add([ended(o, n, eos) for o, n in zip(outputs, room, strict=True)], seconds, passes, drafts)
        return made


@contextmanager
def counted(runner: Any) -> Iterator[tuple[list[float], list[float]]]:
    """Seconds of each exact pass, and of each run of layers that is none, both with the output layer that follows it."""
    whole: list[float] = []
    drafts: list[float] = []
    kept, inside = whole, False

    def around(run: Callable[..., Any], into: list[float] | None) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal kept, inside
            if inside:
                return run(*arguments, **named)
            inside, began = True, time.perf_counter()
            try:
                return run(*arguments, **named)
            finally:
                inside, seconds = False, time.perf_counter() - began
                if into is not None:
                    kept = into
                    into.append(seconds)
                elif kept:
                    kept[-1] += seconds

        return call

    own = {name: getattr(runner, name) for name in ("forward", "run", "logits")}
    for name, into in (("forward", whole), ("run", drafts), ("logits", None)):
        setattr(runner, name, around(own[name], into))
    try:
        yield whole, drafts
    finally:
        for name, run in own.items():
            setattr(runner, name, run)
