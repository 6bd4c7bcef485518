"""The comparison with a plain client, with few rows."""

from __future__ import annotations

import asyncio

import pytest

from bench.chance import APIS, Api, Setting, compare, main
from bench.simulation.chances import ChanceCase, chances_table, simulate_chance


@pytest.mark.parametrize("api", APIS)
def test_no_row_is_lost_at_a_server_that_rejects_by_chance(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "not-a-key")
    found = asyncio.run(compare(Setting(share=0.1), 20, api))
    assert (found["answers"], found["its answers"]) == (20, 20)
    assert found["rejected"] > 0


def test_the_command_line_prints_a_line_for_each_api(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rows", "20", "--share", "0"]) == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == list(APIS)


def test_the_table_has_a_line_for_each_server() -> None:
    case = ChanceCase(share=0.1, is_advised=False, rps=None, rejection_seconds=0.05)
    result = simulate_chance(case, seconds=5.0, warm_up=1.0)
    assert len(chances_table([result]).splitlines()) == 2
