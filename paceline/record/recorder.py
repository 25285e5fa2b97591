"""A reader of rounds that keeps what they were: shards of finished texts, bounded in size, which later runs go on filling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..engine import Round
from ..errors import IncompatibleRule, InvalidRequest
from ..rules.walk import Rule
from ..sequence import Sequence as Request
from ..targets.hf import HFTarget
from ..train.disk import MB, remove, whole_lines, writing
from .origin import Origin, check, mark_of, origin, settle
from .texts import RoundRecord, TextRecord, record_round, record_text

TOP = 8  # log-probabilities per row that a request is asked for if it asks for none


class Recorder:
    """Give it every round of the loop: `for round_ in rounds(...): recorder.add(round_)`. A text is written when it is finished.

    Args:
        folder: of the shards. Records of the same origin are added to; others are refused.
        origin: whose rounds these are, see `origin.origin`.
        rule: what verifies. Raises IncompatibleRule for a lossy one, whose text is not the target's own.
        limit_mb: of all shards; the oldest go first.
        shard_mb: of one.
    """

    def __init__(self, folder: Path, origin: Origin, rule: Rule, *, limit_mb: float = 256, shard_mb: float = 16) -> None:
        if not rule.lossless:
            raise IncompatibleRule(f"rule {rule.name} is lossy, so its text is no label of the target's; record with a lossless rule")
        if not 0 < 2 * shard_mb <= limit_mb:
            raise InvalidRequest(f"shards of {shard_mb} MB do not fit twice into {limit_mb} MB; make them smaller")
        settle(folder, origin)
        self.folder, self.limit, self.shard = folder, int(limit_mb * MB), int(shard_mb * MB)
        self.texts = 0  # written by this recorder
        self._open: dict[int, tuple[Request, list[RoundRecord]]] = {}
        kept = shards(folder)
        if kept:
            whole_lines(kept[-1])  # a line that was cut short is taken off

    def add(self, round_: Round, domain: str = "", key: str | None = None) -> TextRecord | None:
        """Take a round before its sequence goes on. Returns the text if it is finished and written; without a key its tokens name it."""
        seq = round_.sequence
        _, rounds = self._open.setdefault(id(seq), (seq, []))
        rounds.append(record_round(round_))
        if not round_.finish_reason:
            return None
        del self._open[id(seq)]
        text = record_text(seq, rounds, domain, key)
        self.write(text)
        return text

    def write(self, text: TextRecord) -> None:
        """Append a finished text to the newest shard."""
        kept = shards(self.folder)
        if not kept or kept[-1].stat().st_size >= self.shard:
            number = int(kept[-1].stem) + 1 if kept else 0
            kept.append(self.folder / f"{number:06d}.jsonl")
        with writing(kept[-1]), kept[-1].open("a", encoding="utf-8") as out:
            out.write(text.to_json() + "\n")
        self.texts += 1
        while sum(f.stat().st_size for f in kept) > self.limit:
            remove(kept.pop(0))


def recorder_for(folder: Path, target: HFTarget, drafter: Any, rule: Rule, *, limit_mb: float = 256) -> Recorder:
    """A recorder of what this drafter drafts for this target."""
    return Recorder(folder, origin(target, mark_of(drafter)), rule, limit_mb=limit_mb)


def shards(folder: Path) -> list[Path]:
    """The shards of a folder, oldest first."""
    return sorted(folder.glob("[0-9]*.jsonl"))


def read_records(folder: Path, origin: Origin) -> list[TextRecord]:
    """All texts of a folder, the latest of each key. Raises CheckpointMismatch if they are of another origin."""
    check(folder, origin)
    return all_records(folder)


def all_records(folder: Path) -> list[TextRecord]:
    """The same of whatever origin: for texts whose drafter does not matter any more."""
    found: dict[str, TextRecord] = {}
    for shard in shards(folder):
        for number, line in enumerate(whole_lines(shard), 1):
            try:
                text = TextRecord.from_json(line)
            except (ValueError, TypeError, KeyError, AttributeError):
                raise InvalidRequest(f"{shard}, line {number}: no record of ours; delete the file, or record anew") from None
            found[text.key] = text
    return list(found.values())
