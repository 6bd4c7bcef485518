"""Restricts this process, and every Python process it starts, to loopback addresses; jobs are forked."""

import ipaddress
import os
import sys

_NAMES = {"localhost", "", None}


def _is_loopback(host: object) -> bool:
    text = host.decode() if isinstance(host, bytes) else host
    if text in _NAMES:
        return True
    try:
        address = ipaddress.ip_address(str(text).split("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _refuse_the_world(event: str, arguments: tuple) -> None:
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    elif event == "socket.getaddrinfo":
        host = arguments[0]
    else:
        return
    if not _is_loopback(host):
        raise PermissionError(f"tests reach no address but loopback; {host!r} was asked for")


if os.environ.get("LLMBEAM_TESTS_ON_LOOPBACK") and not getattr(sys, "_llmbeam_guarded", False):
    sys._llmbeam_guarded = True
    sys.addaudithook(_refuse_the_world)

if os.environ.get("LLMBEAM_TESTS_FORK_SERVER") and sys.orig_argv[1:3] == [
    "-m",
    "airflow_provider_llmbeam.pipeline",
]:
    from forked import run_as_fork

    run_as_fork(os.environ["LLMBEAM_TESTS_FORK_SERVER"], sys.orig_argv[3:])
