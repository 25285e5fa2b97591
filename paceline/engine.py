"""The decode loop. Plain decoding, every drafter, every rule, one sequence or many run through `rounds`.

Axes: B sequences, N nodes, V vocabulary, F features.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from .draft import Draft, Drafter
from .rules.walk import Rule, check_draft, check_pairing
from .sampling import SamplingParams, target_probs
from .sequence import Logprob, Text, common_prefix
from .sequence import Sequence as Request
from .targets.base import Target


@dataclass(frozen=True)
class Round:
    """What one round did to one sequence.

    `path` are the accepted nodes from the root down; `tokens` those that were kept of the accepted ones and the next token, fewer
    where the sequence ended inside. `num_accepted` is `len(tokens) - 1`: the drafted tokens before the round's last one, which is the
    target's own, or, where the sequence ended inside the path, the drafted token that ended it.
    """

    sequence: Request
    tokens: list[int]
    num_accepted: int
    draft: Draft
    path: list[int]
    finish_reason: str | None


def rounds(target: Target, drafter: Drafter, rule: Rule, seqs: Sequence[Request]) -> Iterator[Round]:
    """Yield one Round per live sequence per target forward, until all are finished.

    Holds at every yield: all tokens but the last are in the cache. A reader may stop at any yield and go on later, even with
    another drafter, and may add sequences to the list or take them out between rounds.

    Raises IncompatibleRule before the first token if rule and drafter do not fit.
    """
    check_pairing(drafter, rule)
    layer_ids = drafter.target_layer_ids
    while live := [s for s in seqs if s.finish_reason is None]:
        prefill(target, live, layer_ids)  # all that is new, but the roots
        drafts = drafter.propose(live)  # node 0 is each root
        starts = [d.head_start for d in drafts]
        out = target.verify([d.tree for d in drafts], [_slot(s) for s in live], layer_ids, starts)  # one forward, tree masks
        laws = target_probs(out.logits, out.sizes, live, [d.tree for d in drafts])
        done = []
        for i, (seq, draft, probs) in enumerate(zip(live, drafts, laws, strict=True)):
            check_draft(draft, rule)
            path, token = rule(draft, probs, seq.rng)  # accepted nodes, then one token
            new = seq.extend([draft.tree.tokens[n] for n in path[1:]], token)  # clipped at stops and limits
            kept = path[: len(new)]  # rows for all tokens but the last
            target.cache.commit(_slot(seq), kept)
            _record(seq, out.logits[out.span(i)], kept, new)
            if out.features is not None:
                seq.add_features(out.features[out.span(i)][kept])
            _check_invariants(target, seq, layer_ids)
            done.append(Round(seq, new, len(kept) - 1, draft, path, seq.finish_reason))
        yield from done  # all are whole before a reader may stop


def _slot(seq: Request) -> int:
    assert seq.slot is not None, "a live sequence has a slot after prefill"
    return seq.slot


def prefill(target: Target, seqs: Sequence[Request], layer_ids: Sequence[int] = ()) -> None:
    """Feed whatever is not cached yet, except each sequence's last token. A new prompt, a second turn and a resumed sequence alike."""
    behind = []
    for seq in seqs:
        if seq.slot is None:
            seq.slot = target.cache.open(len(seq.tokens) + seq.room + 64)
        keep = target.cache.length(seq.slot)
        if layer_ids:
            seq.keep_features(seq.num_features, layer_ids)
            keep = min(keep, seq.num_features)  # the rest was cached by a drafter that reads none, or others
        target.cache.truncate(seq.slot, keep)  # also drops the scratch rows of a round that was interrupted
        if keep < len(seq.tokens) - 1:
            behind.append(seq)
    if not behind:
        return
    slots = [_slot(s) for s in behind]
    fed = [s.tokens[target.cache.length(slot) : -1] for s, slot in zip(behind, slots, strict=True)]
    features = target.prefill(slots, fed, layer_ids)
    for seq, rows in zip(behind, features or [], strict=False):
        seq.add_features(rows)


def next_turn(target: Target, seq: Request, tokens: Sequence[int], params: SamplingParams, text: Text | None = None) -> None:
    """Give a sequence a new prompt and keep what is cached of it: all tokens that the old and the new one share at the front."""
    old = seq.tokens
    seq.restart(tokens, params, text)
    if seq.slot is not None:
        keep = min(common_prefix(old, tokens), len(tokens) - 1, target.cache.length(seq.slot))
        target.cache.truncate(seq.slot, keep)
        seq.keep_features(keep)


def release(target: Target, seq: Request) -> None:
    """Give a sequence's slot and memory back."""
    if seq.slot is not None:
        target.cache.free(seq.slot)
        seq.slot = None
        seq.keep_features(0)


def generate(target: Target, drafter: Drafter, rule: Rule, seqs: Sequence[Request], batch_size: int | None = None) -> list[Request]:
    """Decode all sequences to their end, then give their memory back. Returns them."""
    for _ in stream(target, drafter, rule, seqs, batch_size):
        pass
    return list(seqs)


def stream(target: Target, drafter: Drafter, rule: Rule, seqs: Sequence[Request], batch_size: int | None = None) -> Iterator[Round]:
    """`rounds` over at most `batch_size` sequences at a time (None: all): as one ends its memory is given back and the next one joins.

    The memory of all is given back at the end, also when the reader stops early.
    """
    waiting = deque(seqs)
    live: list[Request] = []

    def refill() -> None:
        while waiting and (batch_size is None or len(live) < batch_size):
            live.append(waiting.popleft())

    try:
        refill()
        for round_ in rounds(target, drafter, rule, live):
            if round_.finish_reason:
                release(target, round_.sequence)
                live.remove(round_.sequence)
                refill()
            yield round_
    finally:
        for seq in seqs:
            release(target, seq)


def _record(seq: Request, logits: torch.Tensor, kept: Sequence[int], new: Sequence[int]) -> None:
    """Raw log-probabilities of the tokens taken, if asked for. `logits` (N, V)."""
    if seq.params.logprobs is None:
        return
    rows = torch.log_softmax(logits[list(kept)].float(), -1)
    for row, token in zip(rows, new, strict=True):
        best = row.topk(min(seq.params.logprobs, len(row)))
        top = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        seq.logprobs.append(Logprob(token, float(row[token]), top))


def _check_invariants(target: Target, seq: Request, layer_ids: Sequence[int]) -> None:
    length = target.cache.length(_slot(seq))
    assert length == len(seq.tokens) - 1, f"{length} cached tokens for {len(seq.tokens)} tokens"
    assert not layer_ids or seq.num_features == length, f"{seq.num_features} features for {length} cached tokens"
