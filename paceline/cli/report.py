"""The table that --stats prints on stderr after the answer."""

from __future__ import annotations

from rich.table import Table

from ..lossy import rules_around
from ..sequence import common_prefix
from .common import Session
from .console import stderr
from .running import Run

Rows = list[tuple[str, str]]


def print_rows(rows: Rows) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    stderr().print(table)


def rows(session: Session, run: Run) -> Rows:
    """What happened, each figure with what it means."""
    stats, share = run.completion.stats, run.time_share
    count = len(run.completion.tokens)
    return [
        ("method", f"{session.method}, rule {session.rule.name}: {'lossless' if session.rule.lossless else 'LOSSY'}"),
        *_adaptive(session),
        *_altered(session, run),
        ("tokens", f"{count} in {run.target.forwards} target forwards"),
        (
            "mean acceptance length",
            f"{stats.mean_acceptance_length:.2f} = 1 + accepted / rounds = 1 + {stats.accepted} / {stats.rounds}",
        ),
        ("tokens per second", f"{run.tokens_per_second:.1f} = {count} / {run.seconds:.2f} s, prompt included"),
        ("time", ", ".join(f"{name} {part:.0%}" for name, part in share.items()) + _gpu_note(session)),
    ]


def _adaptive(session: Session) -> Rows:
    """What the adaptive drafter chose, and why."""
    if (found := getattr(session.drafter, "report", None)) is None:
        return []
    chosen = ", ".join(f"{name} in {one['rounds']}" for name, one in found["drafters"].items())
    told = [
        ("auto", f"of {found['rounds']} rounds so far {chosen}; {found['plain_rounds']} without a draft; started from {found['basis']}")
    ]
    return told + [("", why) for why in found["reasons"]]


def _altered(session: Session, run: Run) -> Rows:
    """What the lossy rules did: how often, at which price, and why not more often."""
    found: Rows = []
    for name in rules_around(session.method):
        one = run.completion.rules.get(name)
        if one is None:
            found.append((name, "nothing altered: there was nothing to decide"))
            continue
        count = max(one["altered"], one["would_alter"])
        told = {"csd": f"rescued {count}", "easd": f"vetoed {count}"}[name] + f" of {len(run.completion.tokens)} tokens"
        told = f"{'in shadow, would have ' if one['mode'] == 'shadow' else ''}{told} for {one['nats']:.2f} nats"
        refused = ", ".join(f"{reason} {times}" for reason, times in sorted(one["refused"].items()))
        found.append((name, told + (f"; refused: {refused}" if refused else "")))
        spell = session.target.tokenizer.decode
        if pairs := ", ".join(f"{spell([x])!r} for {spell([t])!r} {times}x" for x, t, times in one["pairs"][:5]):
            found.append(("", pairs if name == "csd" else pairs.replace(" for ", " gave way to ")))
    return found


def compared(session: Session, run: Run, plain: Run) -> Rows:
    """The measured speed-up over plain decoding, and whether the text is the same (at temperature 0)."""
    speedup = run.tokens_per_second / plain.tokens_per_second
    found = [
        (
            "speed-up",
            f"{speedup:.2f}x = {run.tokens_per_second:.1f} / {plain.tokens_per_second:.1f} tokens per second "
            "(measured: once, here, against paceline's own plain decoding)",
        )
    ]
    if session.params.greedy:
        found.append(("text", _same(session, run, plain)))
    return found


def _same(session: Session, run: Run, plain: Run) -> str:
    if run.completion.text == plain.completion.text:
        return "identical to plain decoding"
    differs = f"differs from plain decoding, {_first_difference(session, run, plain)}: "
    if not session.rule.lossless:
        return f"{differs}rule {session.rule.name} is lossy"
    dtype = str(session.target.dtype).removeprefix("torch.")
    if dtype == "float32":
        return f"{differs}in float32 only a tie may do that, so please report the prompt"
    return f"{differs}in {dtype} a near-tie may fall either way; --dtype float32 compares without that"


def _first_difference(session: Session, run: Run, plain: Run) -> str:
    ours, theirs = run.completion.tokens, plain.completion.tokens
    at = common_prefix(ours, theirs)
    spelled = [repr(session.target.tokenizer.decode(tokens[at : at + 1])) for tokens in (ours, theirs)]
    return f"token {at + 1} is {spelled[0]} and not {spelled[1]}"


def _gpu_note(session: Session) -> str:
    return "" if session.target.device.type == "cpu" else " (of the calls, not of the kernels)"
