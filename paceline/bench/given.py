"""Laws that a user gives, as arrays or as a file, checked.

Axes: R rows, V vocabulary.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..draft import Siblings
from ..errors import IncompatibleRule, InvalidRequest
from ..methods import DRAFTERS
from ..rules.walk import Rule
from .laws import Laws, Vector, likeliest

TOLERANCE = 1e-3  # of a row's sum: half precision is good enough, percentages and logits are not
Array = npt.NDArray[Any]


def read_laws(file: Path) -> tuple[Array, Array]:
    """Arrays `p` and `q` of an .npz file. Raises InvalidRequest for anything else."""
    try:
        found = np.load(file, allow_pickle=False)
        if isinstance(found, np.ndarray):
            raise InvalidRequest(f"{file} holds one array; make an .npz file with arrays p and q")
        with found:
            if missing := [name for name in ("p", "q") if name not in found.files]:
                names = " and ".join(missing)
                raise InvalidRequest(f"{file} has no array {names}, it has {found.files}; store p and q of shape (rows, V)")
            return found["p"], found["q"]
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be read ({error.strerror or error}); give an .npz file with arrays p and q") from None
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, InvalidRequest):
            raise
        raise InvalidRequest(f"{file} is no .npz file of numbers; make it with numpy.savez(file, p=p, q=q)") from None


def laws_of(rule: Rule, p: Any, q: Any, k: int, siblings: Siblings | None = None) -> list[Laws]:
    """Nodes with `k` children each. p, q (V,) or (R, V); `siblings` None is what `draft_model` would draw for this rule.

    Raises InvalidRequest naming array, row and value, IncompatibleRule if the rule cannot verify such children.
    """
    rows_p, rows_q = _checked("p", p), _checked("q", q)
    if rows_p.shape != rows_q.shape:
        raise InvalidRequest(f"p has shape {rows_p.shape} and q {rows_q.shape}; they must be equal")
    if k < 1:
        raise InvalidRequest(f"width is {k}; it must be at least 1")
    if rule.chain_only and k > 1:
        raise IncompatibleRule(f"rule {rule.name} verifies one child per node, and width is {k}; use width 1, or another rule")
    kind = siblings or next(Siblings[name] for name in DRAFTERS["draft_model"].siblings if Siblings[name] in rule.needs)
    if kind not in rule.needs:
        raise IncompatibleRule(f"rule {rule.name} cannot verify {kind.value} children; leave siblings out")
    return [_laws(a, b, k, kind) for a, b in zip(rows_p, rows_q, strict=True)]


def _laws(p: Vector, q: Vector, k: int, kind: Siblings) -> Laws:
    if kind is not Siblings.IID:
        k = min(k, int(np.count_nonzero(q)))  # there are no more to choose from
    return Laws(p, q, kind, tuple(likeliest(q, k).tolist()) if kind is Siblings.FIXED else (0,) * k)


def _checked(name: str, law: Any) -> npt.NDArray[np.float64]:
    """(R, V) float64, each row summing to 1."""
    array = np.asarray(law)
    if array.dtype.kind not in "fiu" or array.ndim not in (1, 2) or not array.size:
        raise InvalidRequest(f"{name} has shape {array.shape} and type {array.dtype}; give numbers of shape (V,) or (rows, V)")
    rows: npt.NDArray[np.float64] = np.atleast_2d(array).astype(np.float64)
    for index, row in enumerate(rows):
        if not np.isfinite(row).all():
            raise InvalidRequest(f"{name}, row {index}: {row[~np.isfinite(row)][0]} is no probability; take such rows out")
        if row.min() < 0 or abs(row.sum() - 1) > TOLERANCE:
            raise InvalidRequest(
                f"{name}, row {index}: smallest value {row.min():.4g}, sum {row.sum():.6g}; a law has no negative values and sums to 1"
            )
    rows /= rows.sum(axis=1, keepdims=True)
    return rows
