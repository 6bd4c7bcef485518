"""Leaves the windows of a member below `state_uri`, where its group, and whoever shows them, adds them up.

A member writes a file for each hour. The member that owns the first partition, or of several the first by name,
reads those of all members once per window, raises the alerts of the stream, and writes its page.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from airflow_provider_llmbeam import local_files
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.alerts import RaisedAlerts
from airflow_provider_llmbeam.pipeline.stream.alerts import alerts_of_stream
from airflow_provider_llmbeam.pipeline.stream.group import (
    HOUR,
    MEMBER_HOUR,
    SETTLED_SECONDS,
    GroupReader,
    MemberHour,
    folder_of,
)
from airflow_provider_llmbeam.pipeline.stream.page import render_page
from airflow_provider_llmbeam.pipeline.stream.state import StreamState
from airflow_provider_llmbeam.pipeline.stream.windows import (
    Window,
    begin_of_last,
    begin_of_window,
    encode_increment,
)
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.manifest import encode_page

_log = logging.getLogger("llmbeam")

#: Hours for which files are kept.
_KEPT_HOURS = 24 * 7
#: Intervals of its reports after which a member that has written nothing leads no more.
_REPORTS_TO_LEAD = 3


class Metrics:
    """The windows of this member, and what its group does with those of all.

    Args:
        spec: The job.
        member: Name of the member.
        state: What the worker shows.
        alerts_path: File to which a line is added for each alert; `None` for none.
        page_path: File to which the page is written for a task of Airflow; `None` for none.
    """

    def __init__(
        self, spec: JobSpec, member: str, state: StreamState, alerts_path: Path | None, page_path: Path | None
    ) -> None:
        self._spec, self._options, self._member, self._state = spec, spec.stream, member, state
        self._model = f"{spec.model.type}:{spec.model.name}"
        self._alerts_path, self._page_path = alerts_path, page_path
        self._reader = GroupReader(spec.paths.stream_uri)
        now = time.time()
        self._hours = {int(now) // HOUR: self._read(int(now) // HOUR)}
        self._raised: RaisedAlerts | None = None
        self._sampled = (0, 0)
        self._last = self._cleared_hour = 0
        self._is_failing = False

    def record(self, increment: Window, at_ms: int) -> tuple[bytes, bytes]:
        """Returns key and value of the record of an increment."""
        window = begin_of_window(at_ms, self._options.window_seconds)
        record = encode_increment(
            increment,
            window=window,
            window_seconds=self._options.window_seconds,
            member=self._member,
            sequence=at_ms,
            model=self._model,
        )
        return f"{window}:{self._member}:{at_ms}".encode(), record

    def add(self, increment: Window, at_ms: int) -> None:
        """Adds the increment of a committed transaction."""
        self._state.total.add(increment)
        self._window(at_ms).add(increment)

    @asynccontextmanager
    async def keep_files(self) -> AsyncIterator[None]:
        """Writes the windows during the body, and what is left at its end."""
        ended = asyncio.Event()
        task = asyncio.create_task(self._keep(ended))
        try:
            yield
        finally:
            ended.set()
            await task  # a write that goes on would replace the last one
            await asyncio.to_thread(self.write, self.sample(now := time.time()), now, is_last=True)

    async def _keep(self, ended: asyncio.Event) -> None:
        while not ended.is_set():
            await asyncio.to_thread(self.write, self.sample(now := time.time()), now)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._options.report_seconds):
                    await ended.wait()

    def sample(self, now: float) -> dict[str, bytes]:
        """Takes what the process has done outside transactions; returns its files, by address."""
        counts, state = self._state.counts, self._state
        window = self._window(int(now * 1000))
        before, self._sampled = self._sampled, (counts.cost_nano_usd, counts.rejections)
        window.spent_nano_usd += self._sampled[0] - before[0]
        window.rejections += self._sampled[1] - before[1]
        if state.lags:
            window.lag = state.lag
        hour = self._hours[int(now) // HOUR]
        hour.lags = {f"{topic}/{number}": lag for (topic, number), lag in state.lags.items()}
        hour.unsettled, hour.held, hour.is_paused = state.unsettled, state.held, state.is_paused
        hour.commit_seconds, hour.written_at, hour.may_lead = state.commit_seconds, now, state.may_lead
        files = {self._uri(number): MEMBER_HOUR.dump_json(hour) for number, hour in self._hours.items()}
        for number in [each for each in self._hours if now > (each + 1) * HOUR + SETTLED_SECONDS / 2]:
            del self._hours[number]
        return files

    def write(self, files: Mapping[str, bytes], now: float, *, is_last: bool = False) -> None:
        """Writes the files of this member, and leads the group if it is this member's part.

        A folder that cannot be written or read is a line in the log, once: the messages go on.

        Args:
            files: The files, by address.
            now: Unix time.
            is_last: Whether this process ends, so that the window under way is the last one.
        """
        delay = 0 if is_last else 2 * self._options.report_seconds
        last = begin_of_last(now, delay, self._options.window_seconds) + is_last * self._options.window_seconds
        try:
            for uri, content in files.items():
                storage.make_private(uri.rpartition("/")[0])
                storage.replace(uri, content)
            if last != self._last:
                self._last = last
                self._lead(last, now, is_last=is_last)
                self._hand_over_page()
        except Exception as error:  # noqa: BLE001 - see above
            if not self._is_failing:
                _log.warning(
                    "The metrics below %r cannot be written or read: the page stays as it is, and no alert is "
                    "raised: %s",
                    self._spec.paths.stream_uri,
                    error,
                )
            self._is_failing = True
        else:
            self._is_failing = False

    def _window(self, at_ms: int) -> Window:
        begin = begin_of_window(at_ms, self._options.window_seconds)
        number = begin // HOUR
        hour = self._hours.setdefault(number, self._new_hour())
        return hour.models.setdefault(self._model, {}).setdefault(begin, Window())

    def _new_hour(self) -> MemberHour:
        return MemberHour(member=self._member, window_seconds=self._options.window_seconds)

    def _read(self, number: int) -> MemberHour:
        """Returns what an earlier process of this member has left of an hour."""
        new = self._new_hour()
        try:
            content = storage.read_if_exists(self._uri(number))
            found = new if content is None else MEMBER_HOUR.validate_json(content)
        except Exception as error:  # noqa: BLE001 - the messages go on
            _log.warning("%r cannot be read, and is written anew: %s", self._uri(number), error)
            return new
        return found if found.window_seconds == new.window_seconds else new

    def _lead(self, last: int, now: float, *, is_last: bool) -> None:
        """Raises the alerts of the group, and writes its page, if it is this member's part.

        At its end, when a member has no partition any more, it writes the page, too.
        """
        if not self._state.may_lead and not is_last:
            self._raised = None
            return
        group = self._reader.read(now)
        leads = group.leader(now - _REPORTS_TO_LEAD * self._options.report_seconds) == self._member
        if not leads and not is_last:
            self._raised = None
            return
        if self._raised is None:
            self._raised = RaisedAlerts(self._spec, self._alerts_path)
        if (hour := int(now) // HOUR) != self._cleared_hour:
            self._cleared_hour = hour
            self._delete_old(hour)
        if leads:
            for alert in alerts_of_stream(
                self._spec.alerts,
                group.windows,
                self._raised.keys,
                job=self._spec.name,
                window_seconds=self._options.window_seconds,
                last=last,
            ):
                (self._raised.resolve if alert.is_resolved else self._raised.raise_new)([alert])
        page = render_page(self._spec, group, sorted(self._raised.keys), last, now)
        storage.replace(self._spec.paths.stream_html_uri, page.encode())

    def _delete_old(self, hour: int) -> None:
        """Deletes the files of long ago."""
        oldest = folder_of(hour - _KEPT_HOURS)
        paths = [each.path for each in storage.find(f"{self._spec.paths.stream_uri}*/*.json")]
        storage.delete([path for path in paths if path.split("/")[-2] < oldest])

    def _hand_over_page(self) -> None:
        """Gives the page that the group has to the task that started this process."""
        uri = self._spec.paths.stream_html_uri
        if self._page_path is None or (content := storage.read_if_exists(uri)) is None:
            return
        staged = self._page_path.with_suffix(".part")
        with local_files.create(staged) as file:
            file.write(json.dumps(encode_page(content.decode(), uri)).encode())
        staged.rename(self._page_path)

    def _uri(self, number: int) -> str:
        return f"{self._spec.paths.stream_uri}{folder_of(number)}/{self._member}.json"
