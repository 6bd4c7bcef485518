"""What a job tells the sandbox: one JSON object a line, on what was standard output when it began."""

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

    Whatever else writes to standard output goes to standard error from now on.
    """

    def __init__(self) -> None:
        sys.stdout.flush()
        self._lock = threading.Lock()
        self._file = os.fdopen(os.dup(_STDOUT), "w", encoding="utf-8")
        os.dup2(_STDERR, _STDOUT)

    def message(self, importance: str, text: str) -> None:
        """Tell a message for the job's log; `importance` without its prefix, e.g. "ERROR"."""
        self._tell({"message": text, "importance": f"JOB_MESSAGE_{importance}"})

    def metrics(self, metrics: Sequence[dict[str, Any]]) -> None:
        """Tell all metrics as they are now."""
        self._tell({"metrics": list(metrics)})

    def state(self, state: str) -> None:
        """Tell that the job runs or is done: "RUNNING", "DONE", "FAILED"."""
        self._tell({"state": f"JOB_STATE_{state}"})

    def _tell(self, event: dict[str, Any]) -> None:
        with self._lock:
            self._file.write(json.dumps(event | {"at": time.time()}) + "\n")
            self._file.flush()
