"""The matrix: what every method must do, as plain functions that raise AssertionError. test_matrix.py runs all of it;
test_mutations.py runs the compact part on broken code and must see it fail.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from paceline import engine, methods, table
from paceline.cost import CostCurve
from paceline.drafters.part import Part
from paceline.live_cost import LiveCosts
from paceline.rules.match import match
from paceline.sampling import SamplingParams
from paceline.sequence import Sequence as Request
from paceline.targets.hf import HFTarget
from paceline.text import TextStream
from paceline.tune.assemble import available

from . import tiny
from .drafts import Planted
from .oracle import answer, oracle

FAMILY = "llama"
ROWS = (
    "none",
    "lookup",
    "draft_model",
    "draft_model/rejection",
    "lookup+draft_model",
    "jetspec",
    "lookup+jetspec",
    "specbound",
    "auto",
    "planted",
)  # one line per method
AROUND = (
    "draft_model/rejection+csd+easd",
    "lookup/csd",
    "jetspec/csd",
    "specbound/csd",
    "lookup/random_rescue",
    "jetspec/random_rescue",
    "specbound/random_rescue",
)  # rules around another one, in shadow: all of them runs, and the text is that of the rule inside. What they do is tested with them
BY_ITSELF = tuple(f"specbound/{rule}" for rule in ("rejection", "naive", "rrs_wor", "ramp_wor"))
DRAWN = (*(r for rule in methods.RULES if rule != "match" and (r := f"draft_model/{rule}") not in ROWS), *BY_ITSELF, *AROUND)  # in brief
PROMPTS = {"one": (3,), "short": (46, 51, 56, 0, 5, 10), "long": tuple((i * i + i // 7) % tiny.VOCAB for i in range(70))}
LONGEST = 40  # new tokens


class Letters:
    """A tokenizer of which every token is two letters, so that a stop string can end in the middle of a token."""

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join("ABCDEFGH"[i // 8] + "abcdefgh"[i % 8] for i in ids)


def method(row: str, target: HFTarget, draft: HFTarget | None = None) -> tuple[Any, Any]:
    """Drafter and rule of a row."""
    if row == "planted":
        return Planted(), match
    if row == "auto":
        return adaptive(target), match
    mode = "shadow" if any(methods.RULES[rule].wraps for rule in row.partition("/")[2].split("+") if rule) else None
    if "jetspec" in row:
        from .heads.small import taught_head

        return methods.build(row, target, methods.Options(head=taught_head(), budget=12, rule_mode=mode))
    if row.startswith("specbound"):
        bounds = {"threshold": 0.1, "layers": (1,)}
        return methods.build(row, target, methods.Options(num_speculative_tokens=4, exit_settings=bounds, rule_mode=mode))
    draft = (draft or tiny.draft(FAMILY)) if "draft_model" in row else None
    return methods.build(row, target, methods.Options(draft_model=draft, rule_mode=mode))


class Fitful:
    """A clock that runs as it likes, so that an adaptive drafter tries everything, for no reason."""

    def __init__(self, scale: float = 1e-4) -> None:
        self.now, self.scale, self._lots = 0.0, scale, random.Random(0)

    def __call__(self) -> float:
        self.now += self.scale * self._lots.choice([0, 1, 3])
        return self.now


def adaptive(target: HFTarget, clock: Callable[[], float] | None = None) -> Any:
    """The adaptive drafter over all drafters that there are, the target's own layers included."""
    from .heads.small import taught_head

    options = methods.Options(draft_model=tiny.draft(FAMILY), head=taught_head(), exits="lens", budget=12)
    parts = [Part(name, drafter) for name, drafter in available(target, options)[0].items()]
    return table.adaptive(parts, LiveCosts({1: CostCurve((1, 8, 64), (0.01, 0.01, 0.1))}), clock=clock or Fitful())


def request(prompt: Sequence[int], count: int = LONGEST, *, eos: int | None = None, stop: tuple[str, ...] = (), **settings: Any) -> Request:
    params = SamplingParams(max_new_tokens=count, stop=stop, **settings)
    ids = frozenset() if eos is None else frozenset([eos])
    return Request(prompt, params, eos_token_ids=ids, max_length=256, text=TextStream(Letters(), stop) if stop else None)


def expect(got: Sequence[int], want: Sequence[int], what: str) -> None:
    """Fail with the first difference and both lists."""
    first = next((i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), min(len(got), len(want)))
    assert list(got) == list(want), f"{what}: first difference at {first} of {len(want)}\n got {list(got)}\nwant {list(want)}"


def plain(prompt: Sequence[int], count: int, ended: Callable[[list[int]], bool] | None = None) -> list[int]:
    """The oracle's prompt and continuation."""
    if ended is None:
        return [*prompt, *answer(FAMILY, tuple(prompt), LONGEST)[:count]]
    return oracle(tiny.plain(FAMILY), prompt, count, ended=ended)


def greedy(row: str, prompt: Sequence[int], count: int) -> None:
    """The text is the oracle's, and ends for want of room."""
    target = tiny.target(FAMILY)
    (seq,) = engine.generate(target, *method(row, target), [request(prompt, count)])
    expect(seq.tokens, plain(prompt, count), f"{row}, prompt of {len(prompt)}, {count} new tokens")
    assert seq.finish_reason == "length", f"{row}: finish_reason is {seq.finish_reason}"


def stop_id(row: str, offset: int) -> None:
    """An end-of-sequence id at this place of the output ends it there."""
    target, prompt = tiny.target(FAMILY), PROMPTS["short"]
    eos = answer(FAMILY, prompt, LONGEST)[offset]
    (seq,) = engine.generate(target, *method(row, target), [request(prompt, eos=eos)])
    want = plain(prompt, LONGEST, lambda tokens: tokens[-1] == eos)
    expect((*seq.tokens, seq.finish_reason), (*want, "stop"), f"{row}, end-of-sequence id {eos} at {offset}")


def stop_string(row: str, offset: int) -> None:
    """A stop string over two tokens, ending in the middle of the second, ends the output with that token and the text before it."""
    target, prompt = tiny.target(FAMILY), PROMPTS["short"]
    stop = Letters().decode(answer(FAMILY, prompt, LONGEST)[offset : offset + 2])[1:3]
    (seq,) = engine.generate(target, *method(row, target), [request(prompt, stop=(stop,))])
    want = plain(prompt, LONGEST, lambda tokens: stop in Letters().decode(tokens[len(prompt) :]))
    expect((*seq.tokens, seq.finish_reason), (*want, "stop"), f"{row}, stop string {stop!r} at {offset}")
    text = Letters().decode(want[len(prompt) :]).split(stop)[0]
    assert seq.text.finish() == text, f"{row}: the text is {seq.text.finish()!r}, not {text!r}"


def resume(row: str, other: str, after: int) -> None:
    """A reader stops after some rounds of one method; another goes on, and the text is the oracle's."""
    target, prompt = tiny.target(FAMILY), PROMPTS["short"]
    seq = request(prompt)
    reader = engine.rounds(target, *method(row, target), [seq])
    for _ in range(after):
        next(reader)
    reader.close()
    cached = target.cache.length(seq.slot)
    assert cached == len(seq.tokens) - 1, f"{row}: {cached} cached tokens for {len(seq.tokens)} tokens at the pause"
    engine.generate(target, *method(other, target), [seq])
    expect(seq.tokens, plain(prompt, LONGEST), f"{row} for {after} rounds, then {other}")


def second_turn(row: str, shared: int | None) -> None:
    """A second prompt that shares its first tokens (None: all of them) with the first turn's text equals a fresh request."""
    target, prompt = tiny.target(FAMILY), PROMPTS["short"]
    drafter, rule = method(row, target)
    seq = request(prompt, 20)
    for _ in engine.rounds(target, drafter, rule, [seq]):
        pass
    turn = [*seq.tokens[:shared], 17, 4, 17]
    kept = len(seq.tokens) - 1 if shared is None else shared
    engine.next_turn(target, seq, turn, SamplingParams(max_new_tokens=20))
    assert target.cache.length(seq.slot) == kept, f"{row}: {target.cache.length(seq.slot)} cached tokens are kept, not {kept}"
    engine.generate(target, drafter, rule, [seq])
    expect(seq.tokens, plain(turn, 20), f"{row}, second turn sharing {shared} tokens")


RAGGED = (("one", 40), ("short", 1), ("long", 25), ("short", 40), ("one", 2))


def batch(row: str, order: Sequence[int]) -> None:
    """Rows of different length, in this order, are each the oracle's; a finished one does not change."""
    target = tiny.target(FAMILY)
    cases = [RAGGED[i] for i in order]
    seqs = [request(PROMPTS[name], count) for name, count in cases]
    engine.generate(target, *method(row, target), seqs)
    for seq, (name, count) in zip(seqs, cases, strict=True):
        expect(seq.tokens, plain(PROMPTS[name], count), f"{row}, prompt {name!r} with {count} new tokens in a batch of {len(seqs)}")


def company(row: str) -> None:
    """Rows that join and leave between rounds neither change nor are changed."""
    target = tiny.target(FAMILY)
    first, leaver, joiner = request(PROMPTS["short"]), request(PROMPTS["long"]), request(PROMPTS["one"])
    live = [first, leaver]
    drafter, rule = method(row, target)
    for count, _ in enumerate(engine.rounds(target, drafter, rule, live)):
        if count == 3:
            live.remove(leaver)
            engine.release(target, leaver)  # its slot is free for the next one
            live.append(joiner)
    gone = list(leaver.tokens)
    expect(first.tokens, plain(PROMPTS["short"], LONGEST), f"{row}, a row that others left and joined")
    expect(joiner.tokens, plain(PROMPTS["one"], LONGEST), f"{row}, a row that joined later, in a used slot")
    expect(gone, plain(PROMPTS["long"], LONGEST)[: len(gone)], f"{row}, a row that left")
    engine.generate(target, drafter, rule, [leaver])
    expect(leaver.tokens, plain(PROMPTS["long"], LONGEST), f"{row}, a row that left and came back")


SAMPLED = {"temperature": 1.3, "top_p": 0.95, "top_k": 30}


def sampled(row: str, seed: int | None, beside: Sequence[int | None] = (), count: int = 20) -> list[int]:
    """The output of a sampled request, alone or beside others with these seeds."""
    target = tiny.target(FAMILY)
    seqs = [request(PROMPTS["short"], count, seed=s, **SAMPLED) for s in (seed, *beside)]
    return engine.generate(target, *method(row, target), seqs)[0].output


def seeded(row: str, beside: Sequence[int | None]) -> None:
    """The same seed gives the same text in every company."""
    expect(sampled(row, 7, beside), sampled(row, 7), f"{row}, seed 7 beside {list(beside)}")


def unseeded(row: str) -> None:
    """Requests without a seed differ from each other."""
    target = tiny.target(FAMILY)
    seqs = [request(PROMPTS["short"], 20, **SAMPLED) for _ in range(3)]
    outputs = {tuple(s.output) for s in engine.generate(target, *method(row, target), seqs)}
    assert len(outputs) == 3, f"{row}: three unseeded requests gave {len(outputs)} different texts: {outputs}"


def one_possible(row: str) -> None:
    """Sampling from one possible token is greedy decoding."""
    target, prompt = tiny.target(FAMILY), PROMPTS["short"]
    (seq,) = engine.generate(target, *method(row, target), [request(prompt, temperature=1.5, top_k=1, seed=1)])
    expect(seq.tokens, plain(prompt, LONGEST), f"{row}, top_k 1 at temperature 1.5")


def compact(row: str) -> list[str]:
    """The failures of one row in a short run over the matrix."""
    cells: list[Callable[[], None]] = [
        *(lambda p=p: greedy(row, p, LONGEST) for p in PROMPTS.values()),
        lambda: stop_id(row, 5),
        lambda: resume(row, "planted", 3),
        lambda: second_turn(row, None),
        lambda: batch(row, (0, 1, 2, 3, 4)),
    ]
    failures = []
    for cell in cells:
        try:
            cell()
        except AssertionError as error:
            failures.append(str(error))
    return failures
