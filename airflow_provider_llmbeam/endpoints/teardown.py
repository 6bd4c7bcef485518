"""Removes an endpoint and polls until nothing of it is left."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from airflow_provider_llmbeam.endpoints.platform import EndpointPlatform, SentRequests
from airflow_provider_llmbeam.endpoints.resource import Resource, RunningOperation, still_billing
from airflow_provider_llmbeam.exceptions import CloudError, CloudNotFoundError
from airflow_provider_llmbeam.polling.poller import TaskLog

#: Interval between two rounds of a removal, in seconds.
ROUND_SECONDS = 5.0
#: Limit on consecutive rounds whose lists are refused, e.g. by a permission that does not apply yet; the GPU bills
#: until the next try.
MAX_REFUSED = 3

#: Whether the resources of an endpoint are kept.
Keep = Callable[[Sequence[Resource]], bool]


@dataclass(frozen=True, slots=True)
class RemovalStep:
    """Requests that one round of a removal sends.

    Attributes:
        cancel: Creating operations to cancel; what they create would outlive the removal.
        remove: Resources that can be deleted or undeployed now.
    """

    cancel: tuple[RunningOperation, ...] = ()
    remove: tuple[Resource, ...] = ()


@dataclass(frozen=True, slots=True)
class RemovalRound:
    """Result of one round of a removal.

    Attributes:
        resources: Resources that still exist.
        operations: Operations that are still running.
        refusals: Messages of the requests that failed in this round.
        models_error: The error if models could not be found: they may be left, and cost nothing.
    """

    resources: tuple[Resource, ...] = ()
    operations: tuple[RunningOperation, ...] = ()
    refusals: tuple[str, ...] = ()
    models_error: CloudError | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left that was found."""
        return not self.resources and not self.operations

    @property
    def shows_what_was_started(self) -> bool:
        """Whether what a create request has started was found, so that no other operation is of the endpoint."""
        return any(one.kind == "endpoint" for one in self.resources) or any(
            one.creates and one.is_sure for one in self.operations
        )

    @property
    def left(self) -> str:
        """Sentences that name what is left, its cost and the command that removes it."""
        known = still_billing(self.resources, self.operations)
        models = f"Its model may be left, which costs nothing: {self.models_error}" if self.models_error else ""
        reason = f"Last refusal: {self.refusals[-1]}" if self.refusals else ""
        return " ".join(filter(None, (known, reason, models)))


def removal_step(resources: Sequence[Resource], operations: Sequence[RunningOperation]) -> RemovalStep:
    """Decides what can be requested now; the rest follows in a later round.

    Args:
        resources: Existing resources.
        operations: Unfinished operations.
    """
    creating = tuple(one for one in operations if one.creates and one.is_sure)
    # A deployed model is billed now, so it is removed even if a creating operation cannot be cancelled.
    removing = [one.name for one in operations if not one.creates]
    removable = [
        resource
        for resource in resources
        if not resource.is_being_deleted and not any(name.startswith(f"{resource.name}/") for name in removing)
    ]
    endpoints = [one for one in removable if one.kind == "endpoint" and (one.deployed or not creating)]
    in_use = {model for one in resources if one.kind == "endpoint" for model in one.deployed.values()}
    models = [one for one in removable if one.kind == "model" and not creating and not _is_in_use(one, in_use)]
    services = [one for one in removable if one.kind == "service"]
    return RemovalStep(cancel=creating, remove=(*services, *endpoints, *models))


def removal_round(
    platform: EndpointPlatform,
    key: str,
    log: TaskLog,
    attempt: str | None = None,
    keep: Keep | None = None,
    sent: SentRequests | None = None,
) -> RemovalRound:
    """Finds what is left and requests its removal; a failed request is repeated in a later round.

    Args:
        platform: Platform of one location.
        key: Identity of the endpoint.
        log: Receives one line for each request.
        attempt: The try whose resources are removed; those of another try are kept. `None` removes all.
        keep: Whether the resources that were found are kept; asked in each round.
        sent: What is known of its create requests.

    Raises:
        CloudError: The resources or the operations cannot be listed. If only the operations cannot, the removal of
            what is billed was requested.
    """
    resources, operations, models_error, unlisted = _find(platform, key, attempt, keep, sent)
    step = removal_step(resources, operations)
    if unlisted is not None:  # e.g. a model may be about to be deployed, so it is kept
        step = RemovalStep(remove=tuple(one for one in step.remove if one.is_billed))
    refusals = []
    for operation in step.cancel:
        refusals += _send(lambda one=operation: platform.cancel(one.name))  # type: ignore[misc]
    for resource in step.remove:
        verb = "undeploying" if resource.deployed else "deleting"
        log.log(logging.INFO, "%s %r: %s.", resource.kind.capitalize(), resource.name, verb)
        refusals += _send(lambda one=resource: platform.remove(one))  # type: ignore[misc]
    if unlisted is not None:
        raise unlisted
    return RemovalRound(tuple(resources), tuple(operations), tuple(refusals), models_error)


def remove(
    platform: EndpointPlatform,
    key: str,
    *,
    within_seconds: float,
    log: TaskLog,
    attempt: str | None = None,
    keep: Keep | None = None,
    sent: SentRequests | None = None,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> str | None:
    """Removes all resources of an endpoint in one location, and polls until none is left.

    Args:
        platform: Platform of the location.
        key: Identity of the endpoint.
        within_seconds: Time limit, in seconds.
        log: Receives one line for each request.
        attempt: The try whose resources are removed; those of another try are kept. `None` removes all.
        keep: Whether the resources that were found are kept, so that the removal ends; asked in each round.
        sent: What is known of its create requests. An operation that may have been started by one whose reply was
            lost is waited for, and not cancelled: it may belong to another run.
        sleep: Waits between two rounds, in seconds.
        now: Monotonic clock, in seconds.

    Returns:
        Sentences that name what is left, its cost and the command that removes it; `None` if nothing is left.

    Raises:
        CloudError: The resources cannot be listed.
    """
    deadline, refused = now() + within_seconds, 0
    while True:
        result, error = RemovalRound(), None
        try:
            result = removal_round(platform, key, log, attempt, keep, sent)
        except CloudError as failure:
            refused = 0 if failure.retryable else refused + 1
            if refused >= MAX_REFUSED:
                raise
            error = failure
        else:
            refused = 0
            if sent is not None and result.shows_what_was_started:
                sent = replace(sent, lost=None)
        if error is None and result.is_empty:
            if result.models_error is None:
                return None
            if not result.models_error.retryable:
                return result.left
        if now() + ROUND_SECONDS > deadline:
            if error is not None:
                raise error
            return result.left
        sleep(ROUND_SECONDS)


def _find(
    platform: EndpointPlatform, key: str, attempt: str | None, keep: Keep | None, sent: SentRequests | None
) -> tuple[list[Resource], list[RunningOperation], CloudError | None, CloudError | None]:
    """Returns resources, operations, and the errors if models or operations could not be found."""
    operations: list[RunningOperation] = []
    unlisted: CloudError | None = None
    # Operations before resources: the result of an operation that finishes in between is found.
    try:
        operations = platform.running_operations(key)
        if sent is not None:
            known = {one.name for one in operations}
            operations += [one for one in platform.started_operations(sent) if one.name not in known]
    except CloudError as error:  # must not keep what bills from being removed
        unlisted = error
    resources, models_error = platform.find(key)
    if keep is not None and keep(resources):
        return [], [], None, None
    owners = {one.attempt for one in resources if one.kind != "model"} - {None, attempt}
    if attempt is not None and owners:
        # Another try has taken over the endpoint, with its operations and its model. The label of a model tells
        # nothing: it may be missing, or be that of an earlier try.
        return [], [], None, None
    return resources, operations, models_error, unlisted


def _is_in_use(model: Resource, in_use: set[str]) -> bool:
    # An endpoint names its deployed model with the version: `…/models/m@1`.
    return any(name.partition("@")[0] == model.name for name in in_use)


def _send(request: Callable[[], None]) -> list[str]:
    """Sends a request and returns the message of its failure, if any."""
    try:
        request()
    except CloudNotFoundError:
        return []
    except CloudError as error:
        return [str(error)]
    return []
