"""`dags/reviews_on_dataflow.py` as two Dags: one on the Airflow worker, one on Dataflow."""

from __future__ import annotations

import json
import os
from pathlib import Path

DATAFLOW = {"type": "dataflow", "location": "europe-west1", "poll_interval_seconds": 10}
RUNNERS = {"laptop": {"type": "direct"}, "deferred": DATAFLOW}
SOURCE = Path(__file__).with_name("reviews_on_dataflow.py").read_text()

for bucket, runner in RUNNERS.items():
    os.environ |= {"LLMBEAM_BUCKET": bucket, "LLMBEAM_RUNNER": json.dumps(runner)}
    # Only the id differs, which must be unique in Airflow.
    code = compile(SOURCE.replace('"reviews_on_dataflow"', f'"reviews_{bucket}"'), __file__, "exec")
    exec(code, globals())
