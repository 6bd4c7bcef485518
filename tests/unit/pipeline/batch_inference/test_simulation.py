from __future__ import annotations

import statistics

import pytest

from bench.batch_simulation.__main__ import main
from bench.batch_simulation.cases import SHAPES, Case, run

#: Seeds that no constant was chosen with.
HELD_OUT = range(10_000, 10_012)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_run_is_in_time_and_costs_as_much_as_with_known_turnarounds(shape):
    results = [run(Case.draw(shape, seed)) for seed in HELD_OUT]
    assert all(result.spare_seconds >= 0 for result in results)
    assert statistics.median(result.cost / result.oracle for result in results) <= 1.1


def test_the_table_has_a_line_for_each_fate(capsys):
    assert main(["--cases", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(SHAPES)
