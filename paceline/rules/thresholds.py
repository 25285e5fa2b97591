"""EASD's calibrated thresholds on disk, as JSON, with the models that they belong to and the rates that were measured."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import CheckpointMismatch, InvalidRequest
from ..origin import Origin
from .easd_config import SAFE, EasdConfig
from .ledger import configured
from .memory_file import write_whole

SCHEMA = "paceline-easd-1"
FIELDS = ("tau_target", "tau_draft", "n", "tau_overlap")
MEANING = {"log": "natural", "temperature_of_entropy": 1, "support": "full vocabulary, bans applied"}


@dataclass(frozen=True)
class Thresholds:
    """`settings` are the FIELDS of an EasdConfig; `rates` what the calibration saw, for people."""

    settings: Mapping[str, Any]
    origin: Origin | None = None
    domain: str = ""
    rates: Mapping[str, Any] = field(default_factory=dict)


def save(thresholds: Thresholds, file: Path) -> None:
    """Write the thresholds, whole or not at all. Raises PacelineError."""
    values = {
        "schema": SCHEMA,
        "settings": dict(thresholds.settings),
        "meaning": MEANING,
        "origin": None if thresholds.origin is None else thresholds.origin.as_dict(),
        "domain": thresholds.domain,
        "rates": dict(thresholds.rates),
        "date": datetime.now(UTC).date().isoformat(),
    }
    write_whole(file, lambda part: part.write_text(json.dumps(values, indent=1, allow_nan=False) + "\n", "utf-8"))


def load(file: str | os.PathLike[str]) -> Thresholds:
    """Read thresholds. Raises InvalidRequest if there are none, CheckpointMismatch if the file is damaged or out of range."""
    path = Path(file).expanduser()
    if not path.is_file():
        raise InvalidRequest(f"there is no thresholds file {file}; make one with paceline calibrate easd, or name another file")
    try:
        values = json.loads(path.read_text("utf-8"))
        if values["schema"] != SCHEMA or values["meaning"] != MEANING:
            raise ValueError(f"schema {values['schema']!r} or what its entropies mean is not ours")
        settings = {name: values["settings"][name] for name in FIELDS}
        checked: EasdConfig = configured({"safe": SAFE}, settings, "easd")
        origin = None if values["origin"] is None else Origin.from_dict(values["origin"])
        return Thresholds({name: getattr(checked, name) for name in FIELDS}, origin, str(values["domain"]), dict(values["rates"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointMismatch(
            f"{file} holds no thresholds that can be used ({error}); make it again with paceline calibrate easd"
        ) from None
