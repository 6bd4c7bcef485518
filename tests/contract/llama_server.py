"""Serves a GGUF file with llama.cpp's own server, on loopback: see CONTRIBUTING.md.

It needs the package xllamacpp, which is in no environment of this project.
"""

from __future__ import annotations

import sys
import threading

import xllamacpp


def serve(path: str, port: int) -> None:
    """Serves until the process ends."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = path
    parameters.n_ctx, parameters.n_parallel = 16_384, 4
    parameters.hostnames, parameters.port = ["127.0.0.1"], port
    server = xllamacpp.Server(parameters)
    print(f"{server.listening_address}/v1", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
