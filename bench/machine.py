"""Describes the environment of the measurements: machine, versions, commit, date."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.contenders.contender import Contender
from bench.venvs import ROOT, version_of


def facts(contenders: Iterable[Contender]) -> dict[str, Any]:
    """Returns the facts that a reader needs to interpret the figures."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "speed": speed(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_average": os.getloadavg()[0],
        "versions": {
            contender.name: f"{contender.distribution} {version_of(contender) or 'not installed'}"
            for contender in contenders
        },
    }


def speed() -> str:
    """Returns the speed of a core, as the duration of a loop."""
    sys.path.append(str(ROOT / "scripts"))
    from waiting import LOOP_ITERATIONS, loop_seconds

    return f"{LOOP_ITERATIONS:,} steps of a Python loop in {loop_seconds():.3f} s"


def _commit() -> str:
    """Returns the commit, marked as dirty if files differ from it; "" outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
