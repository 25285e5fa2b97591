"""Which texts come when: the protocols of continual training, and the reservoir of what was seen before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...errors import InvalidRequest
from ...record.texts import TextRecord
from ..examples import Example
from ..prompts import chance
from .recipe import Continual


@dataclass(frozen=True)
class Stage:
    """One round of collecting, training and judging. Its rounds are collected from `texts` in order, until `most` verify rounds are in."""

    number: int
    name: str
    texts: Sequence[Example]
    most: int | None = None


def domain_of(task: str, domains: Mapping[str, Sequence[str]]) -> str | None:
    """The domain whose task names (or beginnings of them) match best; the task itself if there are no groups, None if none fits."""
    if not domains:
        return task
    found = [(len(start), name) for name, starts in domains.items() for start in starts if task.startswith(start)]
    return max(found)[1] if found else None


def by_domain(examples: Sequence[Example], settings: Continual, *, whole: bool = True) -> dict[str, list[Example]]:
    """Examples under their domains, in the order of the recipe's groups or of the names. Tasks of no group are left out.

    Raises InvalidRequest if a group has none, unless `whole` is false.
    """
    groups: dict[str, list[Example]] = {name: [] for name in settings.domains}
    for example in examples:
        if (domain := domain_of(example.task, settings.domains)) is not None:
            groups.setdefault(domain, []).append(example)
    missing = [name for name, found in groups.items() if not found]
    if whole and missing:
        raise InvalidRequest(f"domain {missing[0]} has no text; its tasks must be among those of the prompts")
    return groups if settings.domains else dict(sorted(groups.items()))


def next_stage(groups: Mapping[str, Sequence[Example]], settings: Continual, done: int, used: int, batch_size: int) -> Stage | None:
    """The stage after `done` stages, which have used so many texts of an online stream; None at the end."""
    rounds = settings.rounds or 1
    if settings.protocol == "online":
        stream = sorted((e for group in groups.values() for e in group), key=lambda e: chance(0, "stream", e.key))[used:]
        return Stage(done, "online", stream, settings.update_every or 2000) if stream else None
    if settings.protocol == "domains":
        if done == rounds * len(groups):
            return None
        name = list(groups)[done // rounds]
        return Stage(done, name, _portion(groups[name], done % rounds, settings, batch_size))
    if done == rounds:
        return None
    share = -(-batch_size // len(groups))
    return Stage(done, "mixed", [e for group in groups.values() for e in _portion(group, done, settings, share)])


def _portion(texts: Sequence[Example], round_: int, settings: Continual, per_step: int) -> list[Example]:
    """As many texts as the steps can see once, others in each round while there are enough."""
    count = min(len(texts), settings.sequences or settings.steps * per_step)
    return [texts[(round_ * count + i) % len(texts)] for i in range(count)]


def reservoir(stages: Sequence[Sequence[TextRecord]], size: int, seed: int) -> list[TextRecord]:
    """Texts of earlier stages with at most `size` verify rounds in all, as many of each domain; the latest record of a text counts."""
    latest = {text.key: text for texts in stages for text in texts}
    groups: dict[str, list[TextRecord]] = {}
    for text in latest.values():
        groups.setdefault(text.domain, []).append(text)
    kept = []
    for texts in groups.values():
        left = size // len(groups)
        for text in sorted(texts, key=lambda t: chance(seed, "reservoir", t.key)):
            left -= len(text.rounds)
            if left < 0:
                break
            kept.append(text)
    return kept
