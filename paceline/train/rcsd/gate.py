"""Whether a trained head is deployed, and what became of each domain over the rounds (spec 5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ...draft import Drafter
from ...replay import Text, replay
from ...stats import Stats

Lengths = dict[str, float]  # domain -> mean acceptance length on held-out texts


@dataclass(frozen=True)
class Verdict:
    """`reason` names the figures that decided."""

    passed: bool
    reason: str


def judge(before: Mapping[str, float], after: Mapping[str, float], trained: Iterable[str], earlier: Iterable[str], loss: float) -> Verdict:
    """Did the domains that were trained on gain, and did the mean of the earlier ones fall by less than `loss` of its value?

    If no held-out text is of a trained domain, as with records from elsewhere, all domains count as trained.
    """
    trained, earlier = [d for d in trained if d in before] or list(before), [d for d in earlier if d in before]
    if not trained:
        return Verdict(False, "there is no held-out text, so nothing shows that it gained")
    was, now = _mean(before, trained), _mean(after, trained)
    if not now > was:
        return Verdict(False, f"{', '.join(trained)} went from {was:.4f} to {now:.4f}, and must gain")
    if earlier:
        old, kept = _mean(before, earlier), _mean(after, earlier)
        if kept <= (1 - loss) * old:
            return Verdict(False, f"{', '.join(earlier)} fell from {old:.4f} to {kept:.4f}, and may lose less than {loss:.1%}")
    return Verdict(True, f"{', '.join(trained)} went from {was:.4f} to {now:.4f}")


def _mean(lengths: Mapping[str, float], domains: Sequence[str]) -> float:
    return fmean(lengths[d] for d in domains)


def acceptance(drafter: Drafter, texts: Iterable[Text]) -> tuple[Stats, dict[str, Stats]]:
    """Replay texts with a drafter: counts in all, and by domain."""
    pooled, domains = Stats(), dict[str, Stats]()
    for text, round_ in replay(drafter, texts):
        for stats in (pooled, domains.setdefault(text.domain, Stats())):
            stats.add(round_)
    return pooled, domains


def transfer(start: Mapping[str, float], stages: Sequence[tuple[Sequence[str], Mapping[str, float]]]) -> dict[str, Any]:
    """Of the domains that each stage trained and the lengths after it: the final mean, backward and forward transfer.

    Backward: the mean over domains of the length at the end less that right after the domain was last trained; domains of the last stage
    are left out. Forward: the mean of the length right before a domain was first trained less that at the start; those of the first stage
    are left out. Lopez-Paz and Ranzato (2017), in tokens per round. None where no domain counts.
    """
    final = stages[-1][1] if stages else start
    learnt, ahead, before = dict[str, float](), dict[str, float](), start
    seen: set[str] = set()
    for number, (trained, after) in enumerate(stages):
        if number:
            ahead |= {d: before[d] - start[d] for d in trained if d in after and d not in seen}
        learnt |= {d: after[d] for d in trained if d in after}
        seen |= set(trained)
        before = after
    last = set(stages[-1][0]) if stages else set()
    behind = [final[domain] - value for domain, value in learnt.items() if domain not in last]
    return {"final_mean": _mean_of(final.values()), "backward_transfer": _mean_of(behind), "forward_transfer": _mean_of(ahead.values())}


def _mean_of(values: Iterable[float]) -> float | None:
    found = list(values)
    return round(fmean(found), 4) if found else None
