"""From tokens to text, piece by piece: incomplete characters and possible stop strings are held back."""

from __future__ import annotations

from typing import Any

_INCOMPLETE = "\ufffd"


class TextStream:
    """Incremental text of one output.

    `push` takes one token at a time and says whether a stop string is complete. `text` is what may be shown so far: it never
    contains half a character or the beginning of a stop string, and after a stop it ends before the stop string.
    """

    def __init__(
        self, tokenizer: Any, stop: tuple[str, ...] = (), skip_special_tokens: bool = True, context: list[int] | None = None
    ) -> None:
        self._tokenizer, self._skip = tokenizer, skip_special_tokens
        self._stop = stop
        self._ids: list[int] = list(context or [])[-4:]  # some tokenizers drop the space of a first token: give it neighbours
        self._start, self._read = 0, len(self._ids)  # the text of ids[start:read] has been taken
        self._all = ""  # all complete text
        self._checked = 0  # no stop string begins before this place
        self.stopped = False

    def push(self, token: int) -> bool:
        """Take one token; True if the text now holds a stop string (the earliest one counts)."""
        self._ids.append(token)
        self._take(flush=False)
        return self._find_stop()

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=self._skip, clean_up_tokenization_spaces=False))

    def _take(self, flush: bool) -> None:
        before = self._decode(self._ids[self._start : self._read])
        now = self._decode(self._ids[self._start :])
        if len(now) > len(before) and (flush or not now.endswith(_INCOMPLETE)):
            self._all += now[len(before) :]
            self._start, self._read = self._read, len(self._ids)

    def _find_stop(self) -> bool:
        found = [at for s in self._stop if (at := self._all.find(s, self._checked)) >= 0]
        if found:
            self._all, self.stopped = self._all[: min(found)], True
        elif self._stop:
            self._checked = max(0, len(self._all) - max(map(len, self._stop)) + 1)
        return self.stopped

    @property
    def text(self) -> str:
        """The text that is certain by now."""
        if self.stopped or not self._stop:
            return self._all
        return self._all[: len(self._all) - self._held_back()]

    def _held_back(self) -> int:
        longest = max(map(len, self._stop)) - 1
        for size in range(min(longest, len(self._all)), 0, -1):
            if any(s.startswith(self._all[-size:]) for s in self._stop):
                return size
        return 0

    def finish(self) -> str:
        """The whole text, with whatever was held back; call it when no more tokens come."""
        if not self.stopped:
            self._take(flush=True)
            self._find_stop()  # beside half a character
        return self._all
