"""The name of a task's job, which is the same for every try of a run."""

from __future__ import annotations

import hashlib
import re
from typing import Any


def job_name(ti: Any, task_id: str | None = None) -> str:
    """Returns a readable name for a task's job, which does not depend on the try number.

    Args:
        ti: Task instance.
        task_id: Id of another task with the same run and map index; by default the task of `ti`.
    """
    task_id = ti.task_id if task_id is None else task_id
    identity = "\0".join(map(str, (ti.dag_id, task_id, ti.run_id, ti.map_index)))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    readable = re.sub(r"[^a-z0-9]+", "-", f"{ti.dag_id}-{task_id}".lower()).strip("-")[:80]
    return f"{readable or 'job'}-{digest}"
