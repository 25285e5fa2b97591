"""FlashSpec: its default, a draft model behind prompt lookup, and prompt lookup alone; one sequence at a time."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

from .common import Made, Unable, ended
from .of_transformers import Model


class Peer:
    """A new engine for each decode, so that no prompt profits from another."""

    def __init__(self, told: dict[str, Any]) -> None:
        import flashspec

        self.library: Any = flashspec
        self.target = Model(told["model"], told)
        self.draft = Model(told["draft"], told) if told["draft"] else None
        self.told = told

    def prepare(self, name: str, *, temperature: float, batch_size: int) -> None:
        if batch_size > 1:
            raise Unable(f"it is measured one sequence at a time, as its makers do, and the batch size is {batch_size}")
        if name == "flashspec" and self.draft is None:
            raise Unable("its default needs a draft model; give one with --draft-model, or take flashspec-lookup")

    def decode(self, name: str, prompts: list[list[int]], limits: list[int], *, temperature: float, seed: int, batch_size: int) -> Made:
        import torch

        made = Made()
        for prompt, limit in zip(prompts, limits, strict=True):
            engine = self._engine(name, temperature, seed)
            ids = torch.tensor([prompt], device=self.told["device"])
            whole: list[float] = []
            draft: list[float] = []
            with ExitStack() as stack:
                stack.enter_context(self.target.counted(whole, draft))
                if self.draft is not None:
                    stack.enter_context(self.draft.counted(draft, draft))
                began = time.perf_counter()
                found = engine.generate(ids, max_new_tokens=limit, eos_token_ids=self.told["eos"])
                output = [token for token in found.output_ids[0].tolist() if token >= 0]
                seconds = time.perf_counter() - began
            made.add([ended(output, limit, set(self.told["eos"]))], seconds, whole, draft)
        return made

    def _engine(self, name: str, temperature: float, seed: int) -> Any:
        import torch
        from flashspec.engine import HuggingFaceDrafter, NgramDrafter, TargetModel

        place, dtype = torch.device(self.told["device"]), getattr(torch, self.told["dtype"])
        target = TargetModel(self.told["model"], place, dtype, model=self.target.model)
        sampling = self.library.SamplingConfig(temperature=temperature, seed=seed)
        more: dict[str, Any] = {}
        drafter: Any = NgramDrafter()
        if name == "flashspec" and self.draft is not None:
            drafter = HuggingFaceDrafter(self.told["draft"], place, dtype, temperature=temperature or 1.0, model=self.draft.model)
        else:
            more = {"drafter_strategy": "bandit", "bandit": self.library.BanditConfig(n_arms=1)}
        config = self.library.FlashSpecConfig(device=str(place), sampling=sampling, **more)
        return self.library.SpeculativeEngine(config, [drafter], target)
