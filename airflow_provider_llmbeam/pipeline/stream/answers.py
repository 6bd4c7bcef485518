"""From the prompt of a message to its answered or failed row: asked, journaled, judged and restored.

Everything here runs on the event loop of the engine.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future

from airflow_provider_llmbeam.engine.engine import Engine
from airflow_provider_llmbeam.engine.journal.entry import encode_entry
from airflow_provider_llmbeam.engine.outcome import REFUSED, Completion, Failure, Outcome
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.exceptions import BudgetExceededError, JobFailedError
from airflow_provider_llmbeam.pipeline.audit.record import key_hashes
from airflow_provider_llmbeam.pipeline.audit.trail import AuditTrail, was_sent
from airflow_provider_llmbeam.pipeline.conversation.order import conversation_of, fault_of, turn_name
from airflow_provider_llmbeam.pipeline.conversation.turns import Dialogue, RowTurn
from airflow_provider_llmbeam.pipeline.elements import (
    OF_THIS_RUN,
    AnsweredRow,
    FailedRow,
    Origin,
    Row,
    RowPrompt,
    failed_row,
    refused_row,
)
from airflow_provider_llmbeam.pipeline.moderation.feature import judged_row, replaced_row, with_published_text
from airflow_provider_llmbeam.pipeline.moderation.guard import Questions, guard_job
from airflow_provider_llmbeam.pipeline.moderation.verdict import decide, refusal
from airflow_provider_llmbeam.pipeline.privacy.masker import masker_of
from airflow_provider_llmbeam.pipeline.privacy.repair import (
    altered_row,
    apply_repair,
    repair_fingerprint,
    repair_text,
)
from airflow_provider_llmbeam.pipeline.privacy.vault import add_sealed, masked_in, returned_of
from airflow_provider_llmbeam.pipeline.stream.batches import Batches
from airflow_provider_llmbeam.pipeline.stream.flow import seconds_to_send
from airflow_provider_llmbeam.pipeline.stream.histories import Histories, Talk
from airflow_provider_llmbeam.pipeline.stream.key_limits import KeyLimits
from airflow_provider_llmbeam.pipeline.stream.partition import Message, Partition, Vector
from airflow_provider_llmbeam.pipeline.stream.pieces import Pieces, Write, listening
from airflow_provider_llmbeam.pipeline.stream.queue import ELSEWHERE, StreamJournal
from airflow_provider_llmbeam.pipeline.stream.state import StreamCounts
from airflow_provider_llmbeam.pipeline.stream.vectors import AnswerEmbedder, text_to_embed
from airflow_provider_llmbeam.spec.fields.failure_kind import FailureKind
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.safety import Moderation

_log = logging.getLogger("llmbeam")

#: Failures that every other message would meet, too: the worker ends, and the messages stay in the topic.
_OF_THE_JOB: frozenset[FailureKind] = frozenset({"unauthorized", "not_found", "quota_exhausted", "not_sent"})

#: Begins a request to the guard of a job.
AskGuard = Callable[[list[Prompt]], Future[list[Outcome]]]
#: Waits for so many seconds, and then sends a prompt.
_SendAfter = Callable[[float], Awaitable[Outcome]]


class Answers:
    """Answers messages.

    Args:
        spec: The job.
        engine: The engine.
        writer: Writer of the journal.
        counts: What is counted.
        histories: The conversations; `None` without any.
        ask_guard: Sends prompts to the guard; `None` without one.
        vectors: Makes the vectors of the answers, for each sink that has them.
        write_piece: Writes pieces of answers; `None` for none.
    """

    def __init__(
        self,
        spec: JobSpec,
        engine: Engine,
        writer: StreamJournal,
        counts: StreamCounts,
        histories: Histories | None,
        ask_guard: AskGuard | None,
        vectors: Sequence[AnswerEmbedder] = (),
        write_piece: Write | None = None,
    ) -> None:
        self._spec, self._writer, self._counts = spec, writer, counts
        self._histories, self._conversation = histories, spec.conversation
        self._ask_guard, self._moderation = ask_guard, spec.safety.moderation
        self._questions = None if spec.safety.moderation is None else _questions(spec, spec.safety.moderation)
        self._masker, self._vectors = masker_of(spec), vectors
        self._keys = None if spec.limits.per_key is None else KeyLimits(spec.limits.per_key)
        self._requests = _Requests(engine, spec.stream.batch_wait_ms / 1000, write_piece)
        self._trail = AuditTrail.of(spec)
        self._records = None if self._trail is None else self._trail.open_writer()
        self._waits_until = 0

    async def answer(self, partition: Partition, message: Message) -> AnsweredRow | FailedRow:
        """Answers a message.

        Args:
            partition: Its partition.
            message: The message.

        Raises:
            LLMBeamError: Nothing more is sent, e.g. as the server is down or the budget is spent.
        """
        found = message.prompt
        answered = found if isinstance(found, FailedRow) else await self._take_turn(partition, message, found)
        if isinstance(answered, AnsweredRow):
            answered = await self._add_vectors(partition, message, answered)
        if self._masker is None:
            return answered
        if isinstance(answered, FailedRow):
            return dataclasses.replace(answered, row=self._masker.sealed(answered.row))
        return self._masker.restore(answered)

    def close(self) -> None:
        """Closes the records of the audit."""
        if self._records is not None:
            self._records.close()

    async def _take_turn(
        self, partition: Partition, message: Message, found: RowPrompt
    ) -> AnsweredRow | FailedRow:
        """Answers a message, after those before it in its conversation."""
        if self._conversation is None:
            return await self._answer(partition, message, found)
        if (fault := fault_of(found.row, self._conversation, self._spec.source.key)) is not None:
            return failed_row(found.row, "no_turn", fault)
        message.conversation = conversation_of(found.row, self._conversation)
        talk = partition.talks.setdefault(message.conversation, Talk())
        talk.messages += 1
        async with talk.lock:
            return await self._answer(partition, message, found)

    async def _answer(self, partition: Partition, message: Message, found: RowPrompt) -> AnsweredRow | FailedRow:
        row, fingerprint, prompt = found
        flag, moderation = None, self._moderation
        if moderation is not None and "input" in moderation.on:
            verdict = await self._judge(partition, message, prompt.text)
            decision = decide(verdict, moderation)
            match decision.action:
                case "fail":
                    return FailedRow(row, refusal(decision, moderation, "prompt"))
                case "replace":
                    return replaced_row(row, fingerprint, decision, moderation, verdict.answered_at)
                case "flag":
                    flag = decision.category
        dialogue = self._begin_turn(partition, message, found)
        if dialogue is not None:
            prompt = dialogue.next_prompt() or prompt
            fingerprint = dialogue.fingerprint
        outcome, origin = await self._ask_model(partition, message, fingerprint, prompt)
        if dialogue is not None:
            row = self._finish_turn(partition, message, row, dialogue, outcome)
        if isinstance(outcome, Failure):
            return FailedRow(row, outcome, origin)
        answered = AnsweredRow(row, fingerprint, outcome, origin, moderation_input=flag)
        settled = await self._settle_altered(partition, message, answered, prompt)
        if isinstance(settled, FailedRow):
            return settled
        answered = settled
        if moderation is None or "output" not in moderation.on:
            return answered
        text, _ = with_published_text(answered, self._spec.generation.keep_reasoning)
        return judged_row(answered, decide(await self._judge(partition, message, text), moderation), moderation)

    async def _add_vectors(
        self, partition: Partition, message: Message, answered: AnsweredRow
    ) -> AnsweredRow | FailedRow:
        """Adds to a message the vectors of its answer; an answer without one of them is not stored anywhere."""
        found = await asyncio.gather(
            *(self._vector(partition, message, answered, vectors) for vectors in self._vectors)
        )
        if failures := [each for each in found if isinstance(each, Failure)]:
            return refused_row(answered, failures[0])
        message.vectors = tuple(each for each in found if isinstance(each, Vector))
        return answered

    async def _vector(
        self, partition: Partition, message: Message, answered: AnsweredRow, vectors: AnswerEmbedder
    ) -> Vector | Failure:
        text = text_to_embed(answered, vectors.field)
        if not text.strip():
            return Failure(
                kind="not_stored", message=f"`sink.embed.field` {vectors.field!r}: the answer has no text"
            )
        fingerprint, prompt = vectors.request(text)

        async def send(wait: float) -> Outcome:
            await asyncio.sleep(wait)
            message.is_sent = True
            return await vectors.send(prompt)

        outcome, origin = await self._ask(partition, message, fingerprint, prompt, send)
        if isinstance(outcome, Completion):
            self._counts.embedded += origin in OF_THIS_RUN
            return Vector(fingerprint, outcome, origin)
        return dataclasses.replace(outcome, message=f"the vector of the answer: {outcome.message}")

    async def _ask_model(
        self, partition: Partition, message: Message, fingerprint: str, prompt: Prompt
    ) -> tuple[Outcome, Origin]:
        """Returns the outcome of a prompt of the model, within the rate of the key of the message; see `_ask`."""
        is_admitted = False

        async def send(wait: float) -> Outcome:
            nonlocal is_admitted
            message.is_sent = False  # until `self._requests` sends it
            if self._keys is not None and not is_admitted:
                of_key, is_admitted = self._keys.admit(message.key or b"", time.time()), True
                if of_key is None:
                    return _too_many()
                wait = max(wait, of_key)
            left = seconds_to_send(message.produced_at, self._spec.stream, time.time() + wait)
            if left is not None and left <= 0:
                return _too_old()
            await asyncio.sleep(wait)
            return await self._requests.send(prompt, message, left)

        return await self._ask(partition, message, fingerprint, prompt, send)

    async def _settle_altered(
        self, partition: Partition, message: Message, answered: AnsweredRow, prompt: Prompt
    ) -> AnsweredRow | FailedRow:
        """Applies `privacy.on_altered` to an answer, which is not yet restored."""
        privacy = self._spec.safety.privacy
        if privacy is None or privacy.on_altered == "keep" or not (found := returned_of(answered)).altered:
            return answered
        if privacy.on_altered == "fail":
            return altered_row(answered, found, "`safety.privacy.on_altered` is 'fail'")
        question = dataclasses.replace(prompt, text=repair_text(prompt.text, found))
        fingerprint = repair_fingerprint(answered.fingerprint)
        outcome, origin = await self._ask_model(partition, message, fingerprint, question)
        return apply_repair(answered, outcome, is_counted=origin in ("fresh", "repaired"))

    def _begin_turn(self, partition: Partition, message: Message, found: RowPrompt) -> Dialogue | None:
        if self._histories is None or message.conversation is None:
            return None
        row, _, prompt = found
        turn = RowTurn(turn_name(row, self._spec.source.key), (message.offset,), row, prompt.text, prompt.system)
        talk = partition.talks[message.conversation]
        return self._histories.begin(partition.place, talk, message.conversation, turn, time.time())

    def _finish_turn(
        self, partition: Partition, message: Message, row: Row, dialogue: Dialogue, outcome: Outcome
    ) -> Row:
        """Adds a turn to its conversation; returns its row, with the values of the placeholders before it."""
        assert self._histories is not None
        assert message.conversation is not None
        talk = partition.talks[message.conversation]
        asked, message.state = self._histories.finish(talk, dialogue, outcome)
        return add_sealed(row, asked.values, outcome.text) if isinstance(outcome, Completion) else row

    async def _send(self, message: Message, send: _SendAfter) -> Outcome:
        """Sends a prompt for a message; once a budget is spent, when it begins anew."""
        wait = 0.0
        while True:
            try:
                return await send(wait)
            except BudgetExceededError as error:
                if error.renewed_at is None:
                    raise
                self._log_wait(error, error.renewed_at)
                message.is_sent = False
                wait = max(0.0, error.renewed_at - time.time())

    def _log_wait(self, error: BudgetExceededError, until: float) -> None:
        """Logs once in a window that its budget is spent."""
        if (seconds := until - time.time()) > 0 and round(until) > self._waits_until:
            self._waits_until = round(until)
            _log.warning("Nothing is sent for %.0f s, until the budget begins anew: %s", seconds, error)

    async def _judge(self, partition: Partition, message: Message, text: str) -> Outcome:
        assert self._questions is not None
        assert self._ask_guard is not None
        fingerprint, question = self._questions.of(text)
        ask_guard = self._ask_guard

        async def send(wait: float) -> Outcome:
            await asyncio.sleep(wait)
            message.is_sent = True
            (outcome,) = await asyncio.wrap_future(ask_guard([question]))
            return outcome

        outcome, _ = await self._ask(partition, message, fingerprint, question, send)
        return outcome

    async def _ask(
        self, partition: Partition, message: Message, fingerprint: str, prompt: Prompt, send: _SendAfter
    ) -> tuple[Outcome, Origin]:
        """Returns the outcome of a prompt, asked unless another message of its partition has its answer.

        Raises:
            JobFailedError: Every other message would fail, too.
        """
        journal = partition.journal
        while (ending := journal.ending.get(fingerprint)) is not None:
            await asyncio.wait([ending])
        journal.use(fingerprint)
        message.fingerprints.append(fingerprint)
        while (known := journal.paid(fingerprint)) is None:
            if (asked := partition.asked.get(fingerprint)) is not None:
                await asyncio.wait([asked])
                if not asked.cancelled():
                    self._counts.duplicates += 1
                    return asked.result(), "duplicate"
                continue
            asked = partition.asked[fingerprint] = asyncio.get_running_loop().create_future()
            try:
                if (earlier := await self._writer.find(fingerprint)) is not None:
                    journal.record(fingerprint, earlier, ELSEWHERE, was_read=True)
                    continue
                outcome = await self._send(message, send)
                if isinstance(outcome, Failure):
                    _refuse_of_the_job(outcome)
                await self._record(partition, message, fingerprint, prompt, outcome)
                asked.set_result(outcome)
            finally:
                del partition.asked[fingerprint]
                asked.cancel()
            return outcome, "repaired" if isinstance(outcome, Completion) and outcome.repairs else "fresh"
        self._counts.resumed += known.was_read
        self._counts.duplicates += not known.was_read
        return known.outcome, "resumed" if known.was_read else "duplicate"

    async def _record(
        self, partition: Partition, message: Message, fingerprint: str, prompt: Prompt, outcome: Outcome
    ) -> None:
        """Records an outcome, first in the audit and then in the journal, if it is paid."""
        self._counts.count(outcome)
        if self._trail is not None and self._records is not None and was_sent(outcome):
            assert isinstance(message.prompt, RowPrompt)
            rows = [message.prompt.row]
            hashes, masked = key_hashes(rows, self._trail.key), masked_in(prompt, rows)
            self._records.write(0, self._trail.line(outcome, fingerprint, hashes, "online", masked, prompt))
            self._records.store()
        if isinstance(outcome, Completion) or outcome.kind in REFUSED:
            entry = encode_entry(fingerprint, self._spec.name, outcome)
            offset = await self._writer.write(partition.place, fingerprint, entry)
            if offset is not None:
                partition.journal.record(fingerprint, outcome, offset)


def _refuse_of_the_job(failure: Failure) -> None:
    """Raises a failure that every other message would meet, too."""
    if failure.kind in _OF_THE_JOB:
        raise JobFailedError(
            f"No message can be answered: {failure.message} ({failure.kind}). Their positions have not "
            "moved. Correct the job or the account; the worker then continues where it was."
        )


def _questions(spec: JobSpec, moderation: Moderation) -> Questions:
    return Questions(guard_job(spec, moderation), moderation)


class _Requests:
    """Sends prompts, several in one request if the server takes them.

    Args:
        engine: The engine.
        wait_seconds: Longest time for which a prompt waits for others.
        write_piece: Writes pieces of answers; `None` for none.
    """

    def __init__(self, engine: Engine, wait_seconds: float, write_piece: Write | None) -> None:
        self._engine, self._write_piece = engine, write_piece
        self._batches = Batches(engine.answer, engine.max_instances, wait_seconds)

    async def send(self, prompt: Prompt, message: Message, left_seconds: float | None) -> Outcome:
        """Sends the prompt of a message, unless its time is over before it can be sent."""
        if self._engine.max_instances > 1:
            message.is_sent = True
            return await self._batches.send(prompt)
        pieces = self._pieces_of(message)
        try:
            async with asyncio.timeout(left_seconds) as limit:
                with listening(pieces):
                    (outcome,) = await self._engine.answer([prompt], (_Sending(message, limit, pieces),))
        except TimeoutError:
            return _too_old()
        if pieces is not None and isinstance(outcome, Completion):
            pieces.end()
        return outcome

    def _pieces_of(self, message: Message) -> Pieces | None:
        if self._write_piece is None or not isinstance(message.prompt, RowPrompt):
            return None
        return Pieces(message.prompt.row, message.key, self._write_piece)


class _Sending:
    """Ends the time in which a message may be sent when it is; an engine `Observer`."""

    def __init__(self, message: Message, limit: asyncio.Timeout, pieces: Pieces | None) -> None:
        self._message, self._limit, self._deadline = message, limit, limit.when()
        self._pieces = pieces

    def sent(self) -> None:
        """Has the answer awaited, and its pieces begin."""
        self._message.is_sent = True
        if self._pieces is not None:
            self._pieces.begin()
        self._limit.reschedule(None)

    def rejected(self, hold_seconds: float) -> None:
        """Has the time end again: a 429 is no answer."""
        self._limit.reschedule(self._deadline)

    def finished(self, prompt: Prompt, outcome: Outcome) -> None:
        """Does nothing."""


def _too_many() -> Failure:
    return Failure(kind="throttled", message="its key has more messages than `limits.per_key` allows")


def _too_old() -> Failure:
    return Failure(kind="too_old", message="the message reached `stream.max_age_seconds` before it could be sent")
