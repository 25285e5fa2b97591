"""What the head learns from: features of the tapped layers, and the target's last hidden state, which gives the teacher's logits.

Kept on disk as safetensors shards in bfloat16 with an index that is only appended to, or made anew each time.

Axes: T tokens, F features, H hidden size.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from ..errors import InvalidRequest
from ..heads.borrow import final_norm
from ..targets.hf import HFTarget
from .disk import MB, put, put_text, whole_lines, writing
from .examples import Example
from .prompts import Say

_PACK = 2048  # tokens per call of the target


@dataclass(frozen=True)
class Tapped:
    """`features` (T, F) of the tapped layers and `hidden` (T, H) of the last one, after the final norm."""

    features: torch.Tensor
    hidden: torch.Tensor


class Taps:
    """Reads a target. `layer_ids` are the head's layers and the last one; the loop's features of these are split by `split`."""

    def __init__(self, target: HFTarget, head_layers: Sequence[int]) -> None:
        last = target.config.num_hidden_layers - 1
        self.target, self.head_layers = target, tuple(head_layers)
        self.layer_ids = tuple(sorted({*head_layers, last}))
        self._head, self._last = [self.layer_ids.index(i) for i in head_layers], self.layer_ids.index(last)
        self._norm = final_norm(target)

    @torch.no_grad()
    def split(self, rows: torch.Tensor) -> Tapped:
        """(T, layers * H) as the loop gives them."""
        layers = rows.clone().view(len(rows), len(self.layer_ids), -1)  # a copy: inference tensors cannot be trained on
        return Tapped(layers[:, self._head].flatten(1), self._norm(layers[:, self._last]))

    def read(self, sequences: Sequence[Sequence[int]]) -> list[Tapped]:
        """One packed pass over whole sequences; the last token of each is only a label and is not fed."""
        slots = [self.target.cache.open(len(s)) for s in sequences]
        try:
            rows = self.target.prefill(slots, [s[:-1] for s in sequences], self.layer_ids)
            return [self.split(r) for r in rows or []]
        finally:
            for slot in slots:
                self.target.cache.free(slot)

    @property
    def bytes_per_token(self) -> int:
        return 2 * (len(self.head_layers) + 1) * int(self.target.config.hidden_size)


def stored_taps(run: Path) -> tuple[int, ...]:
    """The head's layers whose features a run's folder holds; none if it holds no features."""
    settings = run / "features" / "settings.json"
    return tuple(json.loads(settings.read_text())["taps"]) if settings.exists() else ()


class Store:
    """Shards in a folder. Whatever is in the index is whole on disk; the rest is made again.

    Raises InvalidRequest if the shards there are of other layers or another target (`mark`).
    """

    def __init__(self, folder: Path, taps: Taps, mark: str, shard_mb: int) -> None:
        self.folder, self.taps, self._limit = folder, taps, shard_mb * MB
        self._waiting: dict[str, Tapped] = {}
        self._open: dict[str, Any] = {}
        self._size = 0
        about = {"layer_ids": list(taps.layer_ids), "taps": list(taps.head_layers), "mark": mark}
        settings = folder / "settings.json"
        if settings.exists() and json.loads(settings.read_text()) != about:
            raise InvalidRequest(f"{folder} holds features of other layers or another target; delete it, or choose another --out")
        if not settings.exists():
            put_text(settings, json.dumps(about))
        lines = [json.loads(line) for line in whole_lines(folder / "index.jsonl")]
        self._places: dict[str, tuple[str, int]] = {e["key"]: (e["shard"], e["rows"]) for e in lines}
        known = {shard for shard, _ in self._places.values()}
        for shard in folder.glob("*.safetensors"):
            if shard.name not in known:  # written, but the run ended before the index was
                shard.unlink()

    def __contains__(self, key: str) -> bool:
        return key in self._places or key in self._waiting

    def rows(self, key: str) -> int:
        """T."""
        return self._places[key][1] if key in self._places else len(self._waiting[key].features)

    def add(self, key: str, rows: torch.Tensor) -> None:
        """Take (T, layers * H) features as the loop made them."""
        tapped = self.taps.split(rows)
        self._waiting[key] = Tapped(tapped.features.to(torch.bfloat16), tapped.hidden.to(torch.bfloat16))
        self._size += len(rows) * self.taps.bytes_per_token
        if self._size >= self._limit:
            self.flush()

    def flush(self) -> None:
        """Write what waits as one shard, then its lines of the index."""
        if not self._waiting:
            return
        shard = f"{len({s for s, _ in self._places.values()}):05d}.safetensors"
        tensors = {f"{key}/{name}": getattr(t, name).cpu() for key, t in self._waiting.items() for name in ("features", "hidden")}
        put(self.folder / shard, lambda scratch: save_file(tensors, scratch))
        places = {key: (shard, len(t.features)) for key, t in self._waiting.items()}
        index = self.folder / "index.jsonl"
        with writing(index), index.open("a", encoding="utf-8") as out:
            out.writelines(json.dumps({"key": k, "shard": s, "rows": n}) + "\n" for k, (s, n) in places.items())
        self._places |= places
        self._waiting, self._size = {}, 0

    def complete(self, examples: Sequence[Example], say: Say) -> None:
        """Make the features that are missing or too short."""
        missing = [e for e in examples if e.key not in self or self.rows(e.key) < len(e) - 1]
        done = 0
        for pack in packs(missing, _PACK):
            for example, tapped in zip(pack, self.taps.read([e.tokens for e in pack]), strict=True):
                self._waiting[example.key] = Tapped(tapped.features.to(torch.bfloat16), tapped.hidden.to(torch.bfloat16))
                self._size += len(example) * self.taps.bytes_per_token
            done += len(pack)
            say(f"features of {done} of {len(missing)} sequences")
            if self._size >= self._limit:
                self.flush()
        self.flush()

    def get(self, example: Example) -> Tapped:
        """In bfloat16, mapped from the file."""
        shard, _ = self._places[example.key]
        if shard not in self._open:
            self._open[shard] = safe_open(self.folder / shard, framework="pt")
        file, rows = self._open[shard], len(example) - 1
        return Tapped(*(file.get_slice(f"{example.key}/{name}")[:rows] for name in ("features", "hidden")))


@dataclass(frozen=True)
class Shelf:
    """The stores of one run or several, to read from; the first that has a sequence gives it."""

    stores: Sequence[Store]

    def __contains__(self, key: str) -> bool:
        return any(key in store for store in self.stores)

    def get(self, example: Example) -> Tapped:
        return next(store for store in self.stores if example.key in store).get(example)


def packs(examples: Sequence[Example], limit: int) -> Iterator[list[Example]]:
    """Groups of at most `limit` tokens, or one sequence."""
    group: list[Example] = []
    for example in examples:
        if group and sum(map(len, group)) + len(example) > limit:
            yield group
            group = []
        group.append(example)
    if group:
        yield group
