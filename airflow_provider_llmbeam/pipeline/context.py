"""What is known of a run of a job only at its launch."""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_llmbeam.engine.prefix import CachedHead
    from airflow_provider_llmbeam.pipeline.cascade.state import RunCascade
    from airflow_provider_llmbeam.pipeline.launch.mark import LaunchMark
    from airflow_provider_llmbeam.pipeline.lease import Launcher


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What is known of a run only at its launch, beside the spec of the job.

    Attributes:
        started_at: Unix time of the launch: the graph has read the segments of the journal that were there then.
        batch_since: Unix time at which the batch inference of this run began; `None` without any.
        progress_prefix: Beginning of the addresses of the objects to which each worker writes its counts about
            every 15 s; `None` for none.
        launcher: Process whose end ends the job, too; `None` for one that the runner watches.
        mark: File by which workers elsewhere see that they have the disk of the launch.
        cached_head: Beginning of the prompts that the provider has stored; `None` for none.
        flex_until: Unix time from which on only the standard tier answers early enough.
        stop_uri: File whose existence ends the job; `None` for none.
        cascade: The calibrated cascade whose stages are asked; `None` if `model` answers every row.
        budget_run: Identity of the budget; empty for `run`.
        run: Identity of the requests; handlers with the same one share budget and circuit breaker in a process.
    """

    started_at: float = 0.0
    batch_since: float | None = None
    progress_prefix: str | None = None
    launcher: Launcher | None = None
    mark: LaunchMark | None = None
    cached_head: CachedHead | None = None
    flex_until: float = math.inf
    stop_uri: str | None = None
    cascade: RunCascade | None = None
    budget_run: str = ""
    run: str = field(default_factory=lambda: uuid.uuid4().hex)


#: Context of steps outside a job.
NO_RUN = RunContext()
