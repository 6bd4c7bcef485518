"""Bundles as the service runs them: a failed bundle is retried, and only the last attempt has effects."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from apache_beam.coders.coder_impl import CoderImpl, create_InputStream, create_OutputStream
from apache_beam.runners.portability.fn_api_runner import fn_runner

from llmbeam_sandbox.dataflow.job.distribution import Distribution

MAX_ATTEMPTS = 4
"""Source: docs.cloud.google.com/dataflow/docs/pipeline-lifecycle, "Error and exception handling"."""
WORK_ITEM_FAILED = (
    "Workflow failed. Causes: The job failed because a work item has failed 4 times. Look in previous log entries "
    "for the cause of each one of the 4 failures. The work item was attempted on these workers: {workers}"
)
"""Final message of the service. Beam searches for "work item was attempted", but prefers a traceback."""


class BundleFailedError(Exception):
    """All attempts of a bundle have failed; the message is that of the service."""


class _Buffer:
    """Keeps the output of one attempt until the attempt has succeeded."""

    cleared = False

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def append(self, piece: bytes) -> None:
        self.pieces.append(piece)


class _Attempt:
    """The context of one attempt: that of the stage, with buffered outputs and fixed connections."""

    def __init__(self, context: Any, handler: Any) -> None:
        self._context = context
        self._buffers: dict[tuple[bytes, str], _Buffer] = {}
        # Fixed per attempt: a harness that is replaced in between must not get half of a bundle.
        self.worker_handlers = [
            SimpleNamespace(
                control_conn=handler.control_conn, data_conn=handler.data_conn, worker_id=handler.worker_id
            )
        ]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def get_buffer(self, buffer_id: bytes, transform_id: str) -> _Buffer:
        return self._buffers.setdefault((buffer_id, transform_id), _Buffer())

    def keep(self) -> None:
        for (buffer_id, transform_id), held in self._buffers.items():
            with fn_runner.BundleManager._lock:
                buffer = self._context.get_buffer(buffer_id, transform_id)
                if getattr(buffer, "cleared", False):
                    buffer.reset()
                for piece in held.pieces:
                    buffer.append(piece)


class Retries:
    """Replaces the runner's processing of a bundle.

    Args:
        repeats: Additional runs of each bundle, whose outputs and state are discarded.
        shuffles: Whether each further attempt gets the elements of its bundle in a random order.
        on_failure: Called with the message of each failure.
        on_attempt: Called at the end of an attempt, with its metrics, or None if they are discarded.
        distribution: Selects the harness of each attempt.
    """

    def __init__(
        self,
        repeats: int,
        shuffles: bool,
        on_failure: Callable[[str], None],
        on_attempt: Callable[[Any | None], None],
        distribution: Distribution,
    ) -> None:
        self._repeats = repeats
        self._shuffles = shuffles
        self._distribution = distribution
        self._on_failure = on_failure
        self._on_attempt = on_attempt
        self._process: Any = None
        self._stateful = threading.RLock()

    def install(self) -> None:
        """Replaces the runner's own method."""
        self._process = fn_runner.BundleManager.process_bundle
        retries = self

        def process_bundle(manager: Any, *arguments: Any, **options: Any) -> Any:
            return retries.run(manager, *arguments, **options)

        fn_runner.BundleManager.process_bundle = process_bundle

    def run(self, manager: Any, inputs: Mapping[str, Iterable[bytes]], *arguments: Any, **options: Any) -> Any:
        """Processes a bundle.

        Raises:
            BundleFailedError: All `MAX_ATTEMPTS` attempts have failed.
        """
        context = manager.bundle_context_manager
        workers: list[str] = []
        repeats = self._repeats
        while True:
            try:
                with self._distribution.turn(context.worker_handlers) as handler:
                    attempt = manager.bundle_context_manager = _Attempt(context, handler)
                    result = self._attempt(manager, context, (inputs, *arguments), options, counts=not repeats)
            except RuntimeError as error:
                self._on_attempt(None)
                workers.append(getattr(manager._worker_handler, "worker_id", "?"))
                self._on_failure(str(error))
                if len(workers) >= MAX_ATTEMPTS:
                    raise BundleFailedError(WORK_ITEM_FAILED.format(workers=", ".join(workers))) from error
            else:
                if not repeats:
                    attempt.keep()
                    self._on_attempt(result[0].process_bundle.monitoring_infos)
                    return result
                repeats -= 1
                self._on_attempt(None)
            finally:
                manager.bundle_context_manager = context
            if self._shuffles:
                inputs = {
                    name: _shuffled(pieces, context.get_input_coder_impl(name)) for name, pieces in inputs.items()
                }

    def _attempt(self, manager: Any, context: Any, arguments: Any, options: Any, *, counts: bool) -> Any:
        if not context.stage.is_stateful():
            return self._process(manager, *arguments, **options)
        # A stage with state never runs in parallel, so that nothing else writes to the checkpoint.
        state = context.execution_context.state_servicer
        state.checkpoint()
        try:
            result = self._process(manager, *arguments, **options)
        except RuntimeError:
            state.restore()
            raise
        if counts:
            # Not `state.commit()`, which accepts nested checkpoints only.
            state._state, state._checkpoint = state._state.commit(), None
        else:
            state.restore()
        return result


def _shuffled(pieces: Iterable[bytes], coder: CoderImpl) -> list[bytes]:
    elements, shuffled = [], create_OutputStream()
    for piece in pieces:
        stream = create_InputStream(piece)
        while stream.size() > 0:
            elements.append(coder.decode_from_stream(stream, True))
    random.shuffle(elements)
    for element in elements:
        coder.encode_to_stream(element, shuffled, True)
    return [shuffled.get()]
