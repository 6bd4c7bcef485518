"""Writes the state of a backfill that was killed in the middle, as this version of the package leaves it.

    python -m tests.upgrade.make 1.0

A later version adds a directory and keeps those before: each must be resumed with nothing paid twice.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from llmbeam_sandbox import Sandbox

from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate_state import LearnedRateState
from airflow_provider_llmbeam.exceptions import BudgetExceededError
from airflow_provider_llmbeam.pipeline.batch_inference.manifest import (
    BatchManifest,
    RequestFile,
    Sums,
    digest_of,
    files_by_name,
    write_manifest,
)
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.pacing.learned_rate_file import LearnedRateFile
from airflow_provider_llmbeam.spec import Inference, JobSpec
from airflow_provider_llmbeam.spec.identity import spec_digest
from airflow_provider_llmbeam.spec.protocol.counts import NANO

STATES = Path(__file__).parent / "states"
ROWS = 40
LEARNED_AT = 1795880000.0
LEARNED = LearnedRateState(
    base_rps=5.0, measured=180.0, measured_seconds=36.0, rejection_seconds=0.02, trust=0.9, burst=40.0
)
#: One dollar per token, so that the ledger follows from the tokens.
PRICE = {"input_usd_per_million_tokens": 1e6, "output_usd_per_million_tokens": 1e6}


def spec_of(directory: Path, sandbox: Sandbox, usd: float) -> JobSpec:
    """Returns the job, whose rows are written to a directory."""
    rows = directory / "rows.jsonl"
    rows.write_text("".join(json.dumps({"id": n, "text": f"row number {n:02}"}) + "\n" for n in range(ROWS)))
    data: dict[str, Any] = {
        "name": "backfill",
        "source": {"uri": str(rows), "key": "id"},
        "prompt": {"template": "Say it: {{ row.text }}"},
        "model": {"type": "gemini", "name": "gemini-2.5-flash", "base_url": sandbox.gemini_url},
        "generation": {"max_output_tokens": 30},
        "limits": {"budget": {"usd": usd, "over": "two-years"}, "price": PRICE, "max_in_flight": 4},
        "state_uri": str(directory / "state"),
        "sink": {"uri": str(directory / "out")},
    }
    return JobSpec.parse(data)


def batch_of(spec: JobSpec) -> JobSpec:
    """Returns a job whose batch inference is in progress."""
    return spec.model_copy(update={"name": "batch", "inference": Inference(mode="batch")})


def digests() -> dict[str, str]:
    """Returns the digests by which a job elsewhere and its batch inference are known to be those of a spec."""
    data: dict[str, Any] = {
        "name": "backfill",
        "source": {"uri": "gs://in/rows.jsonl", "key": "id"},
        "prompt": {"template": "Say it: {{ row.text }}"},
        "model": {"type": "gemini", "name": "gemini-2.5-flash", "project": "p"},
        "generation": {"max_output_tokens": 30},
        "limits": {"requests_per_minute": 60},
        "safety": {"privacy": {"columns": ["text"]}},
        "runner": {
            "type": "dataflow",
            "project": "my-project",
            "location": "europe-west1",
            "temp_uri": "gs://out/tmp",
            "environment_secrets": {"LLMBEAM_PRIVACY_KEY": "projects/p/secrets/k/versions/latest"},
        },
        "sink": {"uri": "gs://out/answers"},
    }
    spec = JobSpec.parse(data)
    return {"job": spec_digest(spec), "batch": digest_of(spec)}


def write_batch(spec: JobSpec) -> None:
    """Writes the manifest of a job of which one of two batch-inference jobs has ended."""
    ended, running = (
        RequestFile(digest=f"{number:012x}", rows=20, size=4000, input_tokens=120) for number in (1, 2)
    )
    files = files_by_name(spec, (ended, running))
    first, second = files
    manifest = BatchManifest(
        prompts="0" * 64,
        model=spec.model.model_dump(mode="json"),
        created_at=1795880000.5,
        deadline_at=1795900000.0,
        online_seconds=30.0,
        files=files,
        submits=dict.fromkeys(files, 1),
        pilot=Sums(answered=8, input_tokens=48, output_tokens=104, cost_nano_usd=152 * NANO),
        pilot_tiers={"standard": 8},
        harvested={first: Sums(answered=19, failed=1, cost_nano_usd=180 * NANO, errors={"internal: no": 1})},
        unreturned={second: 1},
    )
    write_manifest(spec, manifest)


def main() -> None:
    """Runs the job until its shared budget is spent, and keeps its state and that of a batch."""
    kept = STATES / sys.argv[1]
    with tempfile.TemporaryDirectory() as directory, Sandbox() as sandbox:
        spec = spec_of(Path(directory), sandbox, 300.0)
        with suppress(BudgetExceededError):
            run(spec)
        state = Path(directory) / "state"
        LearnedRateFile(spec.paths.rates_uri, "a server", lambda: LEARNED_AT).write(LEARNED)
        write_batch(batch_of(spec))
        lease = state / "backfill" / "lease"
        # A process of another machine, which was killed.
        lease.write_text(json.dumps(json.loads(lease.read_text()) | {"host": "worker-1", "pid": 1, "kernel": "x"}))
        shutil.rmtree(kept, ignore_errors=True)
        (state / "digests.json").write_text(f"{json.dumps(digests())}\n")
        shutil.copytree(state, kept, ignore=shutil.ignore_patterns("*.lock", "staging", "progress", "failed*"))
    sys.stdout.write(f"{kept}: {sum(path.is_file() for path in kept.rglob('*'))} files\n")


if __name__ == "__main__":
    main()
