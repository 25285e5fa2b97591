"""The file that `paceline tune` writes and the adaptive drafter reads: what was measured, on which machine, for which target."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..bench import environment
from ..cost import CostCurve
from ..errors import CheckpointMismatch, InvalidRequest, PacelineError
from ..origin import Origin, origin_of
from ..targets.load import cache_folder

FORMAT = 1
MACHINE = ("cpu", "cores", "threads", "cpu_capability", "system", "device", "gpu")  # what decides how long a forward takes
_SAME = 0.01  # of a target's fingerprint, as for the files of calibration


@dataclass(frozen=True)
class Tuned:
    """What was found of one drafter. `model` names what it drafts with; `known` is what `drafters.part.Part` starts from."""

    model: str
    known: Mapping[str, Any]


@dataclass(frozen=True)
class Profile:
    """Costs by batch size, drafters and the choice, with all that says whether they hold here."""

    target: Origin
    dtype: str
    machine: Mapping[str, Any]
    versions: Mapping[str, Any]
    made: str  # UTC
    cost: Mapping[int, CostCurve]
    drafters: Mapping[str, Tuned]
    choice: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "made": self.made,
            "target": self.target.as_dict(),
            "dtype": self.dtype,
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "cost": {str(batch): asdict(curve) for batch, curve in self.cost.items()},
            "drafters": {name: asdict(tuned) for name, tuned in self.drafters.items()},
            "choice": dict(self.choice),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Profile:
        """Raises KeyError, TypeError or ValueError for what is no profile."""
        if values["format"] != FORMAT:
            raise ValueError(f"format {values['format']}")
        cost = {int(b): CostCurve(tuple(c["sizes"]), tuple(c["seconds"])) for b, c in values["cost"].items()}
        drafters = {str(n): Tuned(str(t["model"]), dict(t["known"])) for n, t in values["drafters"].items()}
        if 1 not in cost:
            raise ValueError("no cost curve of batch size 1")
        return cls(
            Origin.from_dict(values["target"]),
            str(values["dtype"]),
            dict(values["machine"]),
            dict(values["versions"]),
            str(values["made"]),
            cost,
            drafters,
            dict(values["choice"]),
        )


def machine(device: Any) -> dict[str, Any]:
    """What of the hardware decides how long a forward takes."""
    found = environment.hardware(device)
    return {name: found[name] for name in MACHINE if name in found}


def default_file(target: Any) -> Path:
    """Where the profile of a target is kept: in Paceline's cache folder, see `targets.load.cache_folder`."""
    name = re.sub(r"[^A-Za-z0-9.]+", "-", environment.scrub(target.name)).strip("-.") or "target"
    return cache_folder() / "profiles" / f"{name}-{_dtype(target)}.json"


def _dtype(target: Any) -> str:
    return str(target.dtype).removeprefix("torch.")


def write(profile: Profile, file: Path) -> None:
    """Write the file whole or not at all. Raises PacelineError naming the folder if that is not possible."""
    scratch = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(json.dumps(profile.as_dict(), allow_nan=False) + "\n", "utf-8")
        scratch.replace(file)
    except OSError as error:
        raise PacelineError(f"the profile cannot be written to {file} ({error.strerror}); name another place with --out") from None
    finally:
        with suppress(OSError):
            scratch.unlink()


def read(file: Path) -> Profile:
    """Raises InvalidRequest for a file that is not there or is no profile."""
    try:
        return Profile.from_dict(json.loads(file.read_text("utf-8")))
    except OSError as error:
        raise InvalidRequest(f"profile {file} cannot be read ({error.strerror}); make one with paceline tune --out {file}") from None
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
        what = error.args[0] if error.args else type(error).__name__
        raise InvalidRequest(f"{file} is no profile of this version ({what}); make one with paceline tune --out {file}") from None


def read_for(file: Path, target: Any) -> Profile:
    """A profile of this target on this machine. Raises InvalidRequest, or CheckpointMismatch with both values."""
    found = read(file)
    for what, theirs, ours in _differences(found, target):
        raise CheckpointMismatch(
            f"profile {file} does not hold here: its {what} is {theirs} and here it is {ours}; "
            f"make one here with paceline tune --model {target.name}, or leave it out"
        )
    return found


def _differences(profile: Profile, target: Any) -> list[tuple[str, object, object]]:
    """What differs, as (what, the profile's, ours)."""
    from ..heads.fingerprint import differs

    here, own = machine(target.device), origin_of(target, "none")
    compared: list[tuple[str, object, object]] = [(n, profile.machine.get(n), here.get(n)) for n in MACHINE]
    compared += [("dtype", profile.dtype, _dtype(target)), ("tokenizer", profile.target.tokenizer, own.tokenizer)]
    found = [(what, theirs, ours) for what, theirs, ours in compared if theirs != ours]
    if differs(profile.target.target_marks, own.target_marks) >= _SAME:
        found.append(("target", profile.target.target, own.target + " with other weights"))
    return found
