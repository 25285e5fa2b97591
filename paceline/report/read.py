"""A bench's JSON, and what else a report shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InvalidRequest

_NEEDS = {"runs", "settings", "rows", "hardware", "formulas", "versions", "command", "remarks", "differences", "prompts"}


def bench(file: Path) -> dict[str, Any]:
    """What `paceline bench --json FILE` wrote. Raises InvalidRequest if it is something else."""
    try:
        found: Any = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be read ({error.strerror}); name a file that `paceline bench --json FILE` wrote") from None
    except ValueError:
        raise InvalidRequest(f"{file} is no JSON; name a file that `paceline bench --json FILE` wrote") from None
    missing = sorted(_NEEDS - set(found)) if isinstance(found, dict) else sorted(_NEEDS)
    if missing:
        raise InvalidRequest(
            f"{file} is no report of a bench: {missing[0]} is missing; name a file that `paceline bench --json FILE` wrote"
        )
    return dict(found)


def curves(file: Path) -> Mapping[str, Mapping[int, float]]:
    """The cost curves of a profile that `paceline tune` wrote: by batch size, nodes -> seconds."""
    from ..tune.profile import read

    return {str(batch): dict(zip(curve.sizes, curve.seconds, strict=True)) for batch, curve in sorted(read(file).cost.items())}
