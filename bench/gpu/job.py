"""Runs a whole job, source to sink, against a running server."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.gpu.printing import print_line
from bench.rows import write_rows


def measure(model_name: str, base_url: str, texts: Sequence[str], max_output_tokens: int, in_flight: int) -> None:
    """Runs the job with the local runner and prints what its report says.

    Args:
        model_name: Name of the model on the server.
        base_url: Address of its OpenAI API.
        texts: Prompts.
        max_output_tokens: Tokens per answer.
        in_flight: Maximum number of requests in flight.

    Raises:
        subprocess.CalledProcessError: The job failed; its output is printed.
    """
    with tempfile.TemporaryDirectory(prefix="llmbeam-bench-") as name:
        directory = Path(name)
        source = directory / "rows.jsonl"
        write_rows(source, texts)
        spec = {
            "name": "gpu",
            "source": {"uri": str(source), "key": ["id"]},
            "prompt": {"template": "{{ row.text }}"},
            "model": {"type": "openai", "name": model_name, "base_url": base_url},
            "generation": {"max_output_tokens": max_output_tokens},
            "limits": {"max_in_flight": in_flight},
            "sink": {"uri": f"{directory}/out"},
        }
        (directory / "spec.json").write_text(json.dumps(spec))
        command = [sys.executable, "-m", "airflow_provider_llmbeam.pipeline", f"--spec={directory}/spec.json"]
        started = time.monotonic()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        seconds = time.monotonic() - started
        report = json.loads((directory / "out" / "report.json").read_text())
    sending_seconds, latency = report["sending_seconds"], report["latency_seconds"]
    print_line(
        f"{'whole job':>24}  {len(texts) / seconds:6.1f} rows/s, {len(texts) / sending_seconds:.1f} while it "
        f"sent; {report['rows']['answered']}/{len(texts)} answered {report['dead_letter_words'] or ''}; "
        f"{report['requests']['retried']} requests retried; latency {latency['p50']:.3f} s in the median"
    )
