"""The peers by name, and how each is installed."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import InvalidRequest

EARLY_EXITS = ("transformers-early-exit", "economize-early-exit")  # NAME:N exits after N layers


@dataclass(frozen=True)
class Family:
    """Peers of one library, which share a process and its models. `pinned` is what pip is given: what `of_...` was written against."""

    names: tuple[str, ...]
    pinned: str


FAMILIES = {
    "transformers": Family(
        ("transformers", "transformers-lookup", "transformers-assisted", "transformers-early-exit"), "transformers==5.24.0 torch==2.13.0"
    ),
    "llama-cpp": Family(("llama-cpp", "llama-cpp-lookup"), "llama-cpp-python==0.3.36"),
    "flashspec": Family(("flashspec", "flashspec-lookup"), "flashspec==0.3.1 transformers==5.24.0"),
    "economize": Family(("economize", "economize-lookup", "economize-early-exit"), "economize==0.3.2 transformers==5.24.0"),
}
PLAIN = "transformers"
NAMES = tuple(name for family in FAMILIES.values() for name in family.names)
WITH_DRAFT = ("transformers-assisted", "flashspec", "economize")  # use a draft model


def check_peer(peer: str) -> None:
    """Raise InvalidRequest unless this is a peer's name."""
    name, colon, layers = peer.partition(":")
    if name not in NAMES:
        raise InvalidRequest(f"unknown peer {name!r}; the peers are {', '.join(NAMES)} (transformers-early-exit:N exits after N layers)")
    if colon and (name not in EARLY_EXITS or not layers.isdigit() or int(layers) < 1):
        raise InvalidRequest(
            f"peer {peer!r} is not known; only {' and '.join(EARLY_EXITS)} take a number of layers, as in {EARLY_EXITS[0]}:8"
        )


def family_of(peer: str) -> str:
    return next(name for name, family in FAMILIES.items() if peer.partition(":")[0] in family.names)
