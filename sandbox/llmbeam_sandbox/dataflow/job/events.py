"""Events of a job for the sandbox: one JSON object per line, on the standard output at the start."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

_STDOUT, _STDERR = 1, 2


class Events:
    """Writes events; safe to use from any thread.

    Everything else that is written to standard output goes to standard error from then on.
    """

    def __init__(self) -> None:
        sys.stdout.flush()
        self._lock = threading.Lock()
        self._file = os.fdopen(os.dup(_STDOUT), "w", encoding="utf-8")
        os.dup2(_STDERR, _STDOUT)

    def message(self, importance: str, text: str) -> None:
        """Writes a message of the job's log; `importance` without its prefix, e.g. "ERROR"."""
        self._write({"message": text, "importance": f"JOB_MESSAGE_{importance}"})

    def metrics(self, metrics: Sequence[dict[str, Any]]) -> None:
        """Writes the current values of all metrics."""
        self._write({"metrics": list(metrics)})

    def state(self, state: str) -> None:
        """Writes a state of the job: "RUNNING", "DONE", "FAILED"."""
        self._write({"state": f"JOB_STATE_{state}"})

    def _write(self, event: dict[str, Any]) -> None:
        with self._lock:
            self._file.write(json.dumps(event | {"at": time.time()}) + "\n")
            self._file.flush()
