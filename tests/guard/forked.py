"""Runs the command line of the pipeline as a fork of a process that has imported Beam; see `tests/forking.py`."""

import json
import os
import socket
import sys
from pathlib import Path


def run_as_fork(address: str, arguments: list[str]) -> None:
    """Ends this process as the fork ends, which has its arguments, environment, directory and standard files.

    Returns only where the server is one of another Python, or has ended: then this process runs the job itself.
    """
    request = {
        "python": sys.executable,
        "arguments": arguments,
        "directory": str(Path.cwd()),
        "environment": dict(os.environ),
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        try:
            server.connect(address)
            socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
        except OSError:
            return
        reply = server.recv(64)
    if not reply:
        return
    status = int(reply)
    if status < 0:
        os.kill(os.getpid(), -status)
    os._exit(status)
