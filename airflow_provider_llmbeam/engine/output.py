"""Validation of answers."""

from __future__ import annotations

import asyncio
import json
import math
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.logprobs import score_logprob
from airflow_provider_llmbeam.engine.mending import decoded_twice, mended_json, read_json, without_reasoning
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.spec.fields.failure_kind import FailureKind
from airflow_provider_llmbeam.spec.nesting import MAX_DEPTH, text_depth_exceeds

if TYPE_CHECKING:
    from airflow_provider_llmbeam.spec.model import Embedding, Generation
    from airflow_provider_llmbeam.spec.prompt.answer_schema import AnswerSchema

#: Maximum number of steps of `AnswerSchema` while the event loop stands still: 30 ms, or 0.1 s of a 4 MB text.
#: An answer of 1,000 characters takes about 100.
LOOP_STEPS = 10_000
#: Maximum length of an answer that is parsed, in characters. The longest answers of today's models have 128,000
#: tokens, 0.5 million characters.
MAX_ANSWER = 4 * 2**20


class OutputParser:
    """Rejects empty answers, and answers that are not valid against `output_schema` or not one of the choices.

    Args:
        output_schema: JSON Schema (draft 2020-12), or `None` for free text.
        choices: The only valid texts; empty for any text.
        strips_reasoning: Whether reasoning before an answer is no part of it.
        keeps_reasoning: Whether a reply with an answer keeps its reasoning.
        score: Which log-probability a reply keeps beside the mean; `None` for no other one.
    """

    def __init__(
        self,
        output_schema: Mapping[str, Any] | None,
        choices: Collection[str] = (),
        *,
        strips_reasoning: bool = True,
        keeps_reasoning: bool = False,
        score: Literal["minimum", "label"] | None = None,
    ) -> None:
        self._output_schema = output_schema
        self._choices = choices
        self._strips_reasoning = strips_reasoning
        self._keeps_reasoning = keeps_reasoning
        self._score = score
        self._schema: AnswerSchema | None = None
        if output_schema is not None:
            from airflow_provider_llmbeam.spec.prompt.answer_schema import AnswerSchema  # see `checked_schema`

            self._schema = AnswerSchema(output_schema)
        self._thread = asyncio.Lock()

    def mended(self, reply: Reply) -> Reply:
        """Returns a reply with its score, without reasoning in its text, and with its JSON alone."""
        if self._score is not None:
            score = score_logprob(reply.token_logprobs, self._score, self._output_schema)
            reply = replace(reply, score_logprob=score)
        text, block = without_reasoning(reply.text) if self._strips_reasoning else (reply.text, "")
        reasoning = "\n".join(filter(None, (reply.reasoning, block)))
        if text.strip() and not self._keeps_reasoning:  # the error of an empty answer says how much there is
            reasoning = ""
        value = None if self._schema is None or len(text) > MAX_ANSWER else self._mended_value(self._schema, text)
        if value is None and text == reply.text and reasoning == reply.reasoning:
            return reply
        return replace(
            reply,
            text=text if value is None else json.dumps(value, ensure_ascii=False),
            reasoning=reasoning,
            mended=int(value is not None),
        )

    @staticmethod
    def _mended_value(schema: AnswerSchema, text: str) -> Any:
        """Returns the value of a text that is not valid as it is, if it is once mended; else `None`."""
        try:
            value = read_json(text)
        except (ValueError, RecursionError):
            value = mended_json(text)
            if not isinstance(value, str) and value is not None:
                return value
        else:
            if not isinstance(value, str):
                return None
        return None if schema.mismatch(value) is None else decoded_twice(value)

    async def parse_on_loop(self, reply: Reply) -> Any:
        """Does the same as `parse` on an event loop; one answer at a time that takes long is checked in a thread.

        Other requests would time out meanwhile, and be paid for again.
        """
        if self._schema is None:
            return self.parse(reply)
        from airflow_provider_llmbeam.spec.prompt.answer_schema import TooManyStepsError

        try:
            return self.parse(reply, LOOP_STEPS)
        except TooManyStepsError:
            async with self._thread:
                return await asyncio.to_thread(self._parse_anew, reply)

    def _parse_anew(self, reply: Reply) -> Any:
        """Does the same as `parse` in another thread, as an `AnswerSchema` checks one value at a time."""
        return OutputParser(self._output_schema, self._choices).parse(reply)

    def parse(self, reply: Reply, max_steps: int | None = None) -> Any:
        """Returns the JSON value of the answer, or `None` without a schema.

        Args:
            reply: The reply.
            max_steps: See `AnswerSchema.mismatch`.

        Raises:
            RequestError: The answer is invalid (kind `invalid_output`, or `truncated`), or empty (`garbage`); the
                error has the billed tokens.
            TooManyStepsError: See `AnswerSchema.mismatch`.
        """
        if not reply.text.strip():
            if reply.finish_reason == "max_tokens":
                raise self._invalid(reply, _empty(reply))
            # Another request may be answered: it is sent within `max_attempts`, and by the next run.
            raise _invalid(reply, _empty(reply), "garbage")
        if self._choices and reply.text.strip() not in self._choices:
            shown = ", ".join(map(repr, list(self._choices)[:10]))
            raise self._invalid(
                reply, f"the answer is not one of {shown} (`structured_outputs`): {reply.text[:500]}"
            )
        if self._schema is None:
            return None
        if len(reply.text) > MAX_ANSWER:
            raise self._invalid(reply, f"the answer has {len(reply.text):,} characters; at most {MAX_ANSWER:,}")
        try:
            value = read_json(reply.text)
        except (ValueError, RecursionError) as error:
            raise self._invalid(reply, f"the answer is not JSON ({error}): {reply.text[:500]}") from None
        if text_depth_exceeds(reply.text, value):
            raise self._invalid(reply, f"the answer is nested more than {MAX_DEPTH} levels deep")
        if (mismatch := self._schema.mismatch(value, max_steps)) is not None:
            raise self._invalid(reply, f"the answer does not match `output_schema` {mismatch}")
        return value

    @staticmethod
    def _invalid(reply: Reply, message: str) -> RequestError:
        if reply.finish_reason == "max_tokens":
            return _invalid(reply, f"{message} (truncated at `max_output_tokens`)", "truncated")
        return _invalid(reply, message)


def _empty(reply: Reply) -> str:
    if not reply.reasoning:
        return "the answer is empty"
    return f"the answer is empty: the model has sent {len(reply.reasoning):,} characters of reasoning alone"


class VectorParser:
    """Rejects vectors with values that are not finite, or with a length that differs from the others.

    Args:
        dimensions: Required length; `None`: that of the first vector.
    """

    def __init__(self, dimensions: int | None) -> None:
        self._dimensions = dimensions

    def mended(self, reply: Reply) -> Reply:
        """Returns the reply as it is."""
        return reply

    async def parse_on_loop(self, reply: Reply) -> list[float]:
        """Does the same as `parse`."""
        return self.parse(reply)

    def parse(self, reply: Reply) -> list[float]:
        """Returns the vector.

        Raises:
            RequestError: The vector is invalid (kind `invalid_output`); the error has the billed tokens.
        """
        vector = reply.vector
        if not vector:
            raise _invalid(reply, "the answer has no vector")
        if not _is_finite(vector):
            raise _invalid(reply, "the vector has values that are not finite 32-bit numbers")
        if self._dimensions is None:
            self._dimensions = len(vector)
        if len(vector) != self._dimensions:
            raise _invalid(reply, f"the vector has {len(vector)} dimensions, not {self._dimensions}")
        return list(vector)


def open_parser(
    output_schema: Mapping[str, Any] | None, generation: Generation, embedding: Embedding | None = None
) -> OutputParser | VectorParser:
    """Returns the parser of the answers of a job."""
    if embedding is not None:
        return VectorParser(embedding.dimensions)
    return OutputParser(
        output_schema,
        generation.choices,
        strips_reasoning=generation.strip_reasoning,
        keeps_reasoning=generation.keep_reasoning,
        score=None if isinstance(generation.logprobs, bool) else generation.logprobs,
    )


def _is_finite(vector: Sequence[Any]) -> bool:
    """Whether all values are finite as 32-bit numbers, which models, Parquet and Milvus use."""
    if not {*map(type, vector)} <= {float, int}:
        return False
    try:
        return all(map(math.isfinite, array("f", vector)))
    except OverflowError:
        return False


def _invalid(reply: Reply, message: str, kind: FailureKind = "invalid_output") -> RequestError:
    return RequestError(
        kind,
        message,
        http_status=200,
        tokens=reply.tokens,
        service_tier=reply.service_tier,
    )
