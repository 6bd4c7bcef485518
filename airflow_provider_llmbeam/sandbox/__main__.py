"""Run the sandbox until SIGINT or SIGTERM: `python -m airflow_provider_llmbeam.sandbox`."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_llmbeam.sandbox.latency import Latency
from airflow_provider_llmbeam.sandbox.quota import Quota
from airflow_provider_llmbeam.sandbox.server import Sandbox

log = logging.getLogger(__name__)

DEFAULT_PORT = 8787
_STOP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a stop signal; returns the exit status.

    Args:
        arguments: The command line; None reads `sys.argv`.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    try:
        quota = Quota(requests_per_minute=options.requests_per_minute, tokens_per_minute=options.tokens_per_minute)
        latency = Latency(mean_seconds=options.latency_seconds, sigma=options.latency_sigma)
        sandbox = Sandbox(port=options.port, quota=quota, latency=latency)
    except ValueError as error:
        parser.error(str(error))
    # Blocked before the server thread starts, which inherits the mask: only sigwait sees them.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        with sandbox, _ready_file(options.ready_file, sandbox.url):
            sys.stdout.write(banner(sandbox.url, sandbox.openai_url, quota=quota, latency=latency))
            sys.stdout.flush()
            received = signal.sigwait(_STOP_SIGNALS)
            log.info("%s received, stopping", signal.Signals(received).name)
    except OSError as error:
        sys.stderr.write(f"Port {options.port} cannot be used: {error.strerror}. Try `--port 0`.\n")
        return 1
    return 0


def banner(url: str, openai_url: str, *, quota: Quota, latency: Latency) -> str:
    """Return what is printed on start: addresses, limits and the environment to copy."""
    requests = _per_minute(quota.requests_per_minute, "requests")
    tokens = _per_minute(quota.tokens_per_minute, "tokens")
    return f"""\
Sandbox on {url}, until Ctrl-C. See {url}/sandbox/stats for what it was asked.
  quota    {requests}, {tokens} (each model)
  latency  {latency.mean_seconds:g} s mean, sigma {latency.sigma:g}
Copy into the environment of a Gemini client, and of an OpenAI client:
  export GOOGLE_API_KEY=sandbox GOOGLE_GEMINI_BASE_URL={url}
  export OPENAI_API_KEY=sandbox OPENAI_BASE_URL={openai_url}
"""


def _per_minute(limit: int | None, unit: str) -> str:
    return f"{unit} unlimited" if limit is None else f"{limit} {unit} per minute"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m airflow_provider_llmbeam.sandbox", description="An emulated cloud on loopback."
    )
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="0 takes a free one (default: 8787)")
    parser.add_argument("--requests-per-minute", type=int, metavar="N", help="per model (default: unlimited)")
    parser.add_argument("--tokens-per-minute", type=int, metavar="N", help="per model (default: unlimited)")
    parser.add_argument("--latency-seconds", type=float, default=0.0, metavar="X", help="mean (default: 0)")
    parser.add_argument("--latency-sigma", type=float, default=0.0, metavar="S", help="log-normal (default: 0)")
    parser.add_argument("--ready-file", type=Path, metavar="PATH", help='gets {"url", "pid"} while serving')
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="warning", help="to stderr"
    )
    return parser


@contextmanager
def _ready_file(path: Path | None, url: str) -> Iterator[None]:
    """Keep `path` in place while the sandbox serves; it appears whole or not at all."""
    if path is None:
        yield
        return
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(json.dumps({"url": url, "pid": os.getpid()}) + "\n")
    draft.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
