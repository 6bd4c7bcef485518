"""An Airflow whose components are forks of `airflow standalone`, see `tests/guard/airflow_forks.py`."""

from __future__ import annotations

import sys
from pathlib import Path

from local_airflow import LocalAirflow
from waiting import until

_PROGRAM = Path(__file__).resolve().parents[1] / "guard" / "airflow_forks.py"


class ForkedAirflow(LocalAirflow):
    """An Airflow that starts in half the CPU time of a `LocalAirflow`, and a component in a tenth."""

    program = (sys.executable, str(_PROGRAM))

    def start(self, name: str) -> None:
        """See `LocalAirflow`."""
        (self.home / f"start-{name}").touch()
        until(lambda: self.is_running(name), f"another {name} runs", pause_seconds=0.1)
