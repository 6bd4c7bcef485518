"""Runs a loop in the interpreter that has `transformers`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def results(python: Path, loop: str, weights: Path, asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the results of a loop, each as soon as it is there.

    Args:
        python: Interpreter that has `transformers`.
        loop: Its module of `bench.gpu`.
        weights: Directory of the model.
        asked: What the program reads from standard input.

    Raises:
        subprocess.CalledProcessError: The loop failed; its output is printed.
    """
    command = [str(python), "-m", f"bench.gpu.{loop}", str(weights)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(asked))
        process.stdin.close()
        for line in process.stdout:
            yield json.loads(line)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
