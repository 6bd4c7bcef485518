"""Removing an endpoint until it is seen to be gone."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airflow_provider_llmbeam.endpoints.platform import EndpointPlatform
from airflow_provider_llmbeam.endpoints.resource import Resource, RunningOperation, still_billing
from airflow_provider_llmbeam.exceptions import CloudError, CloudNotFoundError
from airflow_provider_llmbeam.polling.task_log import TaskLog

#: Between two rounds.
ROUND_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class RemovalStep:
    """What to ask for in one round.

    Attributes:
        cancel: Operations that make something: what they make would outlive the removal.
        remove: Parts whose removal, or emptying, can be asked for now.
    """

    cancel: tuple[RunningOperation, ...] = ()
    remove: tuple[Resource, ...] = ()


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a removal.

    Attributes:
        parts: What is still there.
        running: What is still being done.
        refusals: Why requests of this round did not succeed.
    """

    parts: tuple[Resource, ...] = ()
    running: tuple[RunningOperation, ...] = ()
    refusals: tuple[str, ...] = ()

    @property
    def is_gone(self) -> bool:
        """Whether nothing is left."""
        return not self.parts and not self.running


def removal_step(parts: Sequence[Resource], running: Sequence[RunningOperation]) -> RemovalStep:
    """Decides what can be asked for now; whatever cannot follows in a later round.

    Args:
        parts: What there is.
        running: What is being done to it.
    """
    making = tuple(one for one in running if one.makes)
    # What is already deployed costs money now, whatever an operation that cannot be cancelled goes on to do.
    asked = [one.name for one in running if not one.makes]
    removable = [
        part
        for part in parts
        if not part.is_leaving and not any(name.startswith(f"{part.name}/") for name in asked)
    ]
    endpoints = [part for part in removable if part.kind == "endpoint"]
    in_use = {model for part in parts if part.kind == "endpoint" for model in part.deployed.values()}
    models = [part for part in removable if part.kind == "model" and not making and not _is_used(part, in_use)]
    services = [part for part in removable if part.kind == "service"]
    first = [part for part in endpoints if part.deployed or not making]
    return RemovalStep(cancel=making, remove=(*services, *first, *models))


def removal_round(site: EndpointPlatform, key: str, log: TaskLog, attempt: str | None = None) -> Round:
    """Looks, and asks for whatever can be asked for; a request that fails is for a later round.

    Args:
        site: Of one location.
        key: Whose parts.
        log: Receives what is asked for.
        attempt: Leaves alone what another try has taken over.

    Raises:
        CloudError: It cannot be looked at.
    """
    parts, running = _left(site, key, attempt)
    step = removal_step(parts, running)
    refusals = []
    for operation in step.cancel:
        refusals += _asked(lambda one=operation: site.cancel(one.name))  # type: ignore[misc]
    for part in step.remove:
        what = "undeploying" if part.deployed else "deleting"
        log.log(logging.INFO, "%s %r: %s.", part.kind.capitalize(), part.name, what)
        refusals += _asked(lambda one=part: site.remove(one))  # type: ignore[misc]
    return Round(tuple(parts), tuple(running), tuple(refusals))


def remove(
    site: EndpointPlatform,
    key: str,
    *,
    within_seconds: float,
    log: TaskLog,
    attempt: str | None = None,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> str | None:
    """Removes everything of an endpoint in one location, and looks until it is gone.

    Args:
        site: Of the location.
        key: Whose parts.
        within_seconds: How long to go on.
        log: Receives what is asked for.
        attempt: Leaves alone what another try has taken over.
        sleep: Between two rounds.
        now: Seconds of a clock that does not jump.

    Returns:
        What is left, what it costs and how to remove it; `None`: nothing.

    Raises:
        CloudError: It could not be looked at to the end.
    """
    deadline = now() + within_seconds
    while True:
        done, error = Round(), None
        try:
            done = removal_round(site, key, log, attempt)
        except CloudError as failed:
            if not failed.retryable:
                raise
            error = failed
        if error is None and done.is_gone:
            return None
        if now() + ROUND_SECONDS > deadline:
            if error is not None:
                raise error
            because = f" Last refusal: {done.refusals[-1]}" if done.refusals else ""
            return f"{still_billing(done.parts, done.running)}{because}"
        sleep(ROUND_SECONDS)


def _left(site: EndpointPlatform, key: str, attempt: str | None) -> tuple[list[Resource], list[RunningOperation]]:
    # In this order: what an operation made that ends in between is found.
    running = site.running(key)
    found = site.find(key)
    if attempt is not None and any(part.attempt not in (None, attempt) for part in found):
        # Another try has taken it over: with the model, which may have no label, and whatever is being done to it.
        return [], []
    return found, running


def _is_used(model: Resource, in_use: set[str]) -> bool:
    # A deployed model is named with its version: `…/models/m@1`.
    return any(name.partition("@")[0] == model.name for name in in_use)


def _asked(request: Callable[[], None]) -> list[str]:
    try:
        request()
    except CloudNotFoundError:
        return []
    except CloudError as error:
        return [str(error)]
    return []
