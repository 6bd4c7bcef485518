"""The tables of the simulation, with their first cases; all of them: `python -m bench.simulation --bounds`."""

from __future__ import annotations

import pytest

from bench.simulation.__main__ import main
from bench.simulation.bounds import TABLES, Bound, lines_of
from bench.simulation.cases import SHAPES


def test_each_table_has_figures_and_the_command_fails_if_one_does_not_lie_where_it_may(capsys):
    status = main(["--bounds", "--cases=1", "--processes=1"])
    tables = capsys.readouterr().out.strip().split("\n\n")
    assert [table.splitlines()[0] for table in tables] == [table.title for table in TABLES]
    assert all(len(table.splitlines()) > 2 for table in tables)
    assert status == any("missed!" in table for table in tables)


@pytest.mark.parametrize(("found", "is_kept"), [(0.5, False), (0.8, True), (1.0, True), (1.1, False)])
def test_a_figure_that_does_not_lie_where_it_may_is_marked(found, is_kept):
    bound = Bound(what="share", found=found, least=0.8, most=1.0)
    assert bound.is_kept is is_kept
    assert ("missed!" in lines_of(TABLES[0], [bound])) is not is_kept


@pytest.mark.parametrize("option", [[], ["--tokens"]], ids=["requests", "tokens"])
def test_both_runs_have_a_line_for_each_shape(option, capsys):
    assert main([*option, "--cases=6", "--first-seed=9007", "--processes=1"]) == 0
    first, following = capsys.readouterr().out.strip().split("\n\n")
    assert first.splitlines()[0] == "first run"
    assert following.splitlines()[0] == "next run"
    assert len(first.splitlines()) == 3 + len(SHAPES)
