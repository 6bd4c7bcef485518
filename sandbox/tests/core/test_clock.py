from __future__ import annotations

import pytest
from llmbeam_sandbox import ManualClock


def test_a_manual_clock_moves_only_when_advanced() -> None:
    clock = ManualClock(10.0)
    assert (clock(), clock()) == (10.0, 10.0)
    clock.advance(2.5)
    assert clock() == 12.5


def test_a_manual_clock_never_runs_backwards() -> None:
    with pytest.raises(ValueError, match="got -1"):
        ManualClock().advance(-1)
