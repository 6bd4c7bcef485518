"""Run the sandbox until SIGINT or SIGTERM: `python -m llmbeam_sandbox`.

With `--env` it stands in for Google's hosts as well, in processes with the variables that it prints:

    eval "$(python -m llmbeam_sandbox --env &)"
    …
    kill $LLMBEAM_SANDBOX_PID
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import cast

from llmbeam_sandbox.billing.settings import EndpointSettings, GpuLimits
from llmbeam_sandbox.core.faults import Fault, FaultKind
from llmbeam_sandbox.dataflow.settings import DataflowSettings
from llmbeam_sandbox.models.quota import Quota
from llmbeam_sandbox.models.settings import Latency, ModelSettings
from llmbeam_sandbox.monitoring.state import DEFAULT_DELAY_SECONDS
from llmbeam_sandbox.network.proxy import DEFAULT_PROJECT, Proxy
from llmbeam_sandbox.server import Sandbox

log = logging.getLogger(__name__)

DEFAULT_PORT = 8787
_FAULT = re.compile(r"(?P<method>[\w.]+)=(?P<kind>[a-z-]+)(:(?P<status>\d{3}))?(/(?P<every>\d+))?")
TO_STDOUT = Path("-")
_STOP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until a stop signal, and returns the exit status.

    Args:
        arguments: Arguments of the command line; None reads `sys.argv`.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    try:
        quota = Quota(requests_per_minute=options.requests_per_minute, tokens_per_minute=options.tokens_per_minute)
        latency = Latency(mean_seconds=options.latency_seconds, sigma=options.latency_sigma)
        sandbox = Sandbox(
            port=options.port,
            buckets=options.bucket,
            models=ModelSettings(quota=quota, latency=latency, any_model=options.any_model),
            dataflow=DataflowSettings(
                workers=options.dataflow_workers,
                bundle_repeats=options.dataflow_bundle_repeats,
                start_seconds=options.dataflow_start_seconds,
            ),
            endpoints=EndpointSettings(
                operation_seconds=options.endpoint_seconds,
                warm_seconds=options.endpoint_warm_seconds,
                cold_start_seconds=options.cold_start_seconds,
                gpu_quota=gpu_quota_of(options.gpu_quota),
            ),
            monitoring_delay_seconds=options.monitoring_delay_seconds,
        )
        for text in options.fault:
            method, every, fault = fault_of(text)
            sandbox.faults.every(method, every, fault)
    except ValueError as error:
        parser.error(str(error))
    # Blocked before the server thread starts, which inherits the mask: only sigwait receives them.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        with ExitStack() as stack:
            stack.enter_context(sandbox)
            text = banner(sandbox.url, sandbox.openai_url, quota=quota, latency=latency)
            if options.env is not None:
                proxy = stack.enter_context(Proxy(sandbox, port=options.proxy_port, project=options.project))
                exports = exported(environment(sandbox, proxy))
                text = (
                    exports
                    if options.env == TO_STDOUT
                    else f"{text}Google's clients, hooks and Dags:\n  . {options.env}\n"
                )
                stack.enter_context(_file(None if options.env == TO_STDOUT else options.env, exports))
            ready = json.dumps({"url": sandbox.url, "pid": os.getpid(), "token": sandbox.token}) + "\n"
            stack.enter_context(_file(options.ready_file, ready))
            _print(text, is_all=options.env == TO_STDOUT)
            received = signal.sigwait(_STOP_SIGNALS)
            log.info("%s received, stopping", signal.Signals(received).name)
    except ModuleNotFoundError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except OSError as error:
        ports = " or ".join(str(port) for port in (options.port, options.proxy_port) if port)
        sys.stderr.write(f"Port {ports} cannot be used: {error.strerror}. Try `--port 0`.\n")
        return 1
    return 0


def environment(sandbox: Sandbox, proxy: Proxy) -> dict[str, str]:
    """Returns the variables with which a process uses the sandbox in place of the cloud."""
    return {
        **proxy.environment(),
        "OPENAI_API_KEY": "sandbox",
        "OPENAI_BASE_URL": sandbox.openai_url,
        "ANTHROPIC_API_KEY": "sandbox",
        "ANTHROPIC_BASE_URL": sandbox.url,
        "LLMBEAM_SANDBOX_PID": str(os.getpid()),
        "LLMBEAM_SANDBOX_TOKEN": sandbox.token,
    }


def exported(variables: Mapping[str, str]) -> str:
    """Returns variables as lines for a shell."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(variables.items()))


def _print(text: str, *, is_all: bool) -> None:
    """Prints `text`; with `is_all`, then closes standard output, whose end `$(…)` in a shell waits for."""
    sys.stdout.write(text)
    sys.stdout.flush()
    if is_all:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def banner(url: str, openai_url: str, *, quota: Quota, latency: Latency) -> str:
    """Returns the message on start: addresses, limits and the environment to copy."""
    requests = _per_minute(quota.requests_per_minute, "requests")
    tokens = _per_minute(quota.tokens_per_minute, "tokens")
    return f"""\
Sandbox on {url}, until Ctrl-C. See {url}/sandbox/stats for statistics of its requests.
  quota    {requests}, {tokens} (each model)
  latency  {latency.mean_seconds:g} s mean, sigma {latency.sigma:g}
Copy into the environment of a client of Gemini, of OpenAI, and of Anthropic:
  export GOOGLE_API_KEY=sandbox GOOGLE_GEMINI_BASE_URL={url}
  export OPENAI_API_KEY=sandbox OPENAI_BASE_URL={openai_url}
  export ANTHROPIC_API_KEY=sandbox ANTHROPIC_BASE_URL={url}
"""


def fault_of(text: str) -> tuple[str, int, Fault]:
    """Returns the method, the number of calls of which one fails, and the fault of `METHOD=KIND[:STATUS][/N]`.

    Raises:
        ValueError: The text has another form, or there is no such fault.
    """
    if not (found := _FAULT.fullmatch(text)):
        raise ValueError(
            f"`--fault`: must be METHOD=KIND, METHOD=KIND:STATUS or METHOD=KIND/N for one call in N; got {text!r}"
        )
    status = None if found["status"] is None else int(found["status"])
    kind = cast(FaultKind, found["kind"])  # which `Fault` checks
    return found["method"], int(found["every"] or 1), Fault(kind=kind, http_status=status)


def gpu_quota_of(limits: Sequence[str]) -> GpuLimits | None:
    """Returns the quota of `LOCATION=GPU:N`; `None` without one.

    Raises:
        ValueError: A text has another form.
    """
    found: dict[str, dict[str, int]] = {}
    for text in limits:
        location, _, limit = text.partition("=")
        gpu, _, number = limit.rpartition(":")
        if not (location and gpu and number.isdecimal()):
            raise ValueError(f"`--gpu-quota`: must be LOCATION=GPU:N, e.g. europe-west4=NVIDIA_L4:0; got {text!r}")
        found.setdefault(location, {})[gpu] = int(number)
    return found or None


def _per_minute(limit: int | None, unit: str) -> str:
    return f"{unit} unlimited" if limit is None else f"{limit} {unit} per minute"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m llmbeam_sandbox",
        usage="%(prog)s [OPTIONS]",
        description="An emulated cloud on loopback.",
    )
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="0 selects a free one (default: 8787)")
    parser.add_argument("--requests-per-minute", type=int, metavar="N", help="per model (default: unlimited)")
    parser.add_argument("--tokens-per-minute", type=int, metavar="N", help="per model (default: unlimited)")
    parser.add_argument("--latency-seconds", type=float, default=0.0, metavar="X", help="mean (default: 0)")
    parser.add_argument("--latency-sigma", type=float, default=0.0, metavar="S", help="log-normal (default: 0)")
    parser.add_argument(
        "--any-model", action="store_true", help="answer under names of models that no service has, too"
    )
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="METHOD=KIND",
        help="let calls fail, e.g. gemini.generateContent=error:503/10: one in ten",
    )
    parser.add_argument(
        "--gpu-quota",
        action="append",
        default=[],
        metavar="LOCATION=GPU:N",
        help="quota of accelerators; others have 0 then; may be repeated (default: unlimited)",
    )
    parser.add_argument(
        "--ready-file", type=Path, metavar="PATH", help='file that holds {"url", "pid", "token"} while serving'
    )
    parser.add_argument(
        "--bucket",
        action="append",
        default=[],
        metavar="NAME",
        help="bucket of Cloud Storage that exists from the start; may be repeated",
    )
    parser.add_argument(
        "--dataflow-workers", type=int, default=1, metavar="N", help="processes of each Dataflow job (default: 1)"
    )
    parser.add_argument(
        "--dataflow-bundle-repeats",
        type=int,
        default=0,
        metavar="N",
        help="run each bundle N times more (default: 0)",
    )
    parser.add_argument(
        "--dataflow-start-seconds",
        type=float,
        default=0.0,
        metavar="X",
        help="delay before a job runs (default: 0)",
    )
    for name, what in (
        ("endpoint", "duration of each operation on endpoints, models and services"),
        ("endpoint-warm", "time for which a deployed model answers 503 at first"),
        ("cold-start", "time for which an instance of Cloud Run answers 503 at first"),
    ):
        parser.add_argument(f"--{name}-seconds", type=float, default=0.0, metavar="X", help=f"{what} (default: 0)")
    parser.add_argument(
        "--monitoring-delay-seconds",
        type=float,
        default=DEFAULT_DELAY_SECONDS,
        metavar="X",
        help=f"delay after a minute until its points are visible in metrics (default: {DEFAULT_DELAY_SECONDS:g})",
    )
    parser.add_argument(
        "--env",
        nargs="?",
        type=Path,
        const=TO_STDOUT,
        metavar="FILE",
        help="stand in for Google's hosts, and print (or write to FILE) the exports that clients need",
    )
    parser.add_argument(
        "--proxy-port", type=int, default=0, help="port of the proxy of --env; 0 selects a free one (default)"
    )
    parser.add_argument(
        "--project",
        default=DEFAULT_PROJECT,
        help=f"project of the credentials of --env (default: {DEFAULT_PROJECT})",
    )
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="warning", help="to stderr"
    )
    return parser


@contextmanager
def _file(path: Path | None, text: str) -> Iterator[None]:
    """Keeps a file while the sandbox serves; it appears atomically."""
    if path is None:
        yield
        return
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.touch(mode=0o600)  # it holds the token
    draft.write_text(text)
    draft.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
