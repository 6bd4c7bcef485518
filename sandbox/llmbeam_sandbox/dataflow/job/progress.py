"""The metrics of a running job, as Dataflow lists them: committed by finished bundles, and tentative."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from apache_beam.metrics import monitoring_infos
from apache_beam.runners.portability.fn_api_runner import fn_runner

REQUEST_SECONDS = 0.25
"""Interval between progress requests to a harness, in seconds."""
_ORIGIN = "dataflow/v1b3"
_URNS = frozenset(
    (monitoring_infos.ELEMENT_COUNT_URN, monitoring_infos.USER_COUNTER_URN, monitoring_infos.USER_DISTRIBUTION_URN)
)
"""The metrics that Dataflow lists; a harness reports many others, and summing those up took 15 % of a job."""
_Key = tuple[str, tuple[tuple[str, str], ...]]


class Progress:
    """Sums up the metrics of all harnesses.

    Args:
        names: Names of collections for users, by id.
        publish: Called with all metrics as Dataflow's `MetricUpdate`s, whenever they may have changed.
    """

    def __init__(self, names: Mapping[str, str], publish: Callable[[list[dict[str, Any]]], None]) -> None:
        self._names = names
        self._publish = publish
        self._lock = threading.Lock()
        self._committed: list[Any] = []
        self._committed_values: dict[_Key, Any] = {}
        self._live: dict[str, list[Any]] = {}
        self._updates: list[dict[str, Any]] = []
        self._ended: set[str] = set()
        self._current = threading.local()

    def install(self) -> None:
        """Replaces the runner's progress requester."""
        progress = self

        class Requester(fn_runner.ProgressRequester):
            def __init__(self, handler: Any, instruction_id: str, frequency: Any, callback: Any = None) -> None:
                progress._current.instruction_id = instruction_id
                super().__init__(
                    handler, instruction_id, frequency, lambda found: progress.note(instruction_id, found)
                )

        fn_runner.ProgressRequester = Requester

    def note(self, instruction_id: str, found: Any) -> None:
        """Records the progress of a bundle."""
        with self._lock:
            if instruction_id not in self._ended:
                self._live[instruction_id] = _listed(found.monitoring_infos)
            self._publish_changes()

    def end(self, infos: Iterable[Any] | None) -> None:
        """Records the end of the bundle of this thread; None discards its metrics."""
        instruction_id = getattr(self._current, "instruction_id", "")
        with self._lock:
            self._ended.add(instruction_id)
            self._live.pop(instruction_id, None)
            if infos is not None:
                self._committed = list(monitoring_infos.consolidate([*self._committed, *_listed(infos)]))
                self._committed_values = _values(self._committed, self._names)
            self._publish_changes()

    def _publish_changes(self) -> None:
        updates = self._metric_updates()
        if updates != self._updates:
            self._updates = updates
            self._publish(updates)

    def _metric_updates(self) -> list[dict[str, Any]]:
        live = [info for infos in self._live.values() for info in infos]
        committed = self._committed_values
        tentative = _values(monitoring_infos.consolidate([*self._committed, *live]), self._names)
        updates = []
        for key, value in tentative.items():
            # Beam's client requires both.
            updates.append(_update(key, committed.get(key, _nothing(value)), is_tentative=False))
            updates.append(_update(key, value, is_tentative=True))
        return updates


def _listed(infos: Iterable[Any]) -> list[Any]:
    return [info for info in infos if info.urn in _URNS]


def _values(infos: Iterable[Any], names: Mapping[str, str]) -> dict[_Key, Any]:
    values: dict[_Key, Any] = {}
    for info in infos:
        labels = dict(info.labels)
        if info.urn == monitoring_infos.ELEMENT_COUNT_URN:
            name = names.get(labels.get("PCOLLECTION", ""), labels.get("PCOLLECTION", ""))
            context = {"original_name": f"{name}-ElementCount", "output_user_name": name}
            values[("ElementCount", _context(context))] = monitoring_infos.extract_counter_value(info)
        elif info.urn in (monitoring_infos.USER_COUNTER_URN, monitoring_infos.USER_DISTRIBUTION_URN):
            context = {"namespace": labels.get("NAMESPACE", ""), "step": labels.get("PTRANSFORM", "")}
            if monitoring_infos.is_counter(info):
                value = monitoring_infos.extract_counter_value(info)
            else:
                count, total, low, high = monitoring_infos.extract_distribution(info)[:4]
                value = {
                    "count": count,
                    "sum": total,
                    "min": low,
                    "max": high,
                    "mean": total / count if count else 0,
                }
            values[(labels.get("NAME", ""), _context(context))] = value
    return values


def _context(context: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(context.items()))


def _nothing(value: Any) -> Any:
    return dict.fromkeys(value, 0) if isinstance(value, dict) else 0


def _update(key: _Key, value: Any, *, is_tentative: bool) -> dict[str, Any]:
    name, context = key
    fields = dict(context)
    origin = "user" if "namespace" in fields else _ORIGIN
    structured = {
        "origin": origin,
        "name": name,
        "context": fields | ({"tentative": "true"} if is_tentative else {}),
    }
    if isinstance(value, dict):
        return {"name": structured, "kind": "Distribution", "distribution": value}
    return {"name": structured, "kind": "Sum", "scalar": value}
