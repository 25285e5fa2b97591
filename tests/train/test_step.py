"""A step in two processes is the step that one process makes with all their micro-batches, though their weights differ."""

from __future__ import annotations

import json

import pytest

from .two import launched, steps


@pytest.mark.slow
def test_two_processes_make_the_steps_of_one() -> None:
    one, two = steps(0, 1), json.loads(launched("-m", "tests.train.two")[0].strip().splitlines()[-1])
    assert two["weight"] == [pytest.approx(row, abs=1e-5) for row in one["weight"]], f"{two['weight']} in two, {one['weight']} in one"
    for key in ("loss", "grad_norm"):
        got, want = ([f[key] for f in found["figures"]] for found in (two, one))
        assert got == pytest.approx(want, rel=1e-4), f"{key}: {got} in two processes, {want} in one"
    assert (one["mean"], two["mean"]) == (4.0, 4.5)
