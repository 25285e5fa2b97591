"""llama.cpp through llama-cpp-python, on the GGUF file that our target was converted from.

It multiplies the quantised weights as they are, where ours are the same numbers in the dtype asked for, and rounds its inputs to 8 bits:
its logits differ a little, and so may its texts.
"""

from __future__ import annotations

import time
from typing import Any

from .common import Made, Timed, Unable, ended

LOOKUP_TOKENS = 10
_NGRAM, _ROOM = 2, 1024


class Peer:
    """Plain decoding, and prompt lookup, one sequence at a time."""

    def __init__(self, told: dict[str, Any]) -> None:
        import llama_cpp

        self.library: Any = llama_cpp
        if not str(told["gguf"] or "").endswith(".gguf"):
            raise Unable("llama.cpp reads GGUF files only; give the model as a .gguf file")
        if told["device"] != "cpu":
            raise Unable(f"it is run on the CPU only, and the device is {told['device']}")
        self.told = told
        self.models: dict[str, Any] = {}

    def prepare(self, name: str, *, temperature: float, batch_size: int) -> None:
        if batch_size > 1:
            raise Unable(f"llama-cpp-python decodes one sequence at a time, and the batch size is {batch_size}")
        self._model(name, _ROOM)

    def _model(self, name: str, room: int) -> Any:
        """One model for each way to decode, since prompt lookup keeps the logits of all places. `room` tokens fit its context."""
        if name not in self.models or self.models[name].n_ctx() < room:
            lookup = None
            if name == "llama-cpp-lookup":
                from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

                lookup = LlamaPromptLookupDecoding(max_ngram_size=_NGRAM, num_pred_tokens=LOOKUP_TOKENS)
            threads = self.told["threads"]
            self.models[name] = self.library.Llama(
                model_path=self.told["gguf"],
                n_ctx=-(-room // _ROOM) * _ROOM,
                n_threads=threads,
                n_threads_batch=threads,
                draft_model=lookup,
                logits_all=lookup is not None,  # 0.3.36 keeps them all then, but makes room for one batch's unless it is told to
                verbose=False,
            )
        return self.models[name]

    def decode(self, name: str, prompts: list[list[int]], limits: list[int], *, temperature: float, seed: int, batch_size: int) -> Made:
        room = max(len(p) + n for p, n in zip(prompts, limits, strict=True)) + LOOKUP_TOKENS
        made, model = Made(), self._model(name, room)
        for prompt, limit in zip(prompts, limits, strict=True):
            model.reset()  # nothing of the prompt before is kept
            model.set_seed(seed)
            forwards: list[float] = []
            own = model.eval
            model.eval = Timed(own, forwards)
            began = time.perf_counter()
            try:
                output = self._generate(model, prompt, limit, temperature)
            finally:
                seconds = time.perf_counter() - began
                model.eval = own
            made.add([output], seconds, forwards)
        return made

    def _generate(self, model: Any, prompt: list[int], limit: int, temperature: float) -> list[int]:
        eos, output = set(self.told["eos"]), []
        for token in model.generate(list(prompt), top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0, temp=temperature, repeat_penalty=1.0):
            output.append(int(token))
            if token in eos or len(output) == limit:
                break
        return ended(output, limit, eos)
