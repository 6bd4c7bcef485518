"""Masks rows and prompts of a job, and restores its answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from airflow_provider_llmbeam.engine.outcome import Completion
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.exceptions import JobFailedError, LLMBeamError
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, FailedRow, Row, failed_row
from airflow_provider_llmbeam.pipeline.privacy.cipher import WrongKeyError, cipher_of
from airflow_provider_llmbeam.pipeline.privacy.detection import DetectionError, detection_of
from airflow_provider_llmbeam.pipeline.privacy.placeholder import placeholders_in
from airflow_provider_llmbeam.pipeline.privacy.values import mapped, restored, texts_of
from airflow_provider_llmbeam.pipeline.privacy.vault import (
    VAULT,
    Issuer,
    opened,
    sealed_values,
    with_vault,
    without_vault,
)
from airflow_provider_llmbeam.pipeline.secrets import load_environment
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.safety import Privacy

#: Column of the dead letter with the reason of a failure, in which nothing is restored.
_ERROR = "llmbeam_error"
#: Kind of a text that a detector could not read: it is masked as a whole.
_UNREAD = "UNREAD"
#: A number with fewer digits is no personal data that a pattern finds.
_MIN_DIGITS = 6


class PersonalDataError(Exception):
    """A prompt has personal data that no row may have, or that cannot be masked. The message does not quote it."""


class Masker:
    """Masks the rows and the prompts of a job. One for each process: it is not pickled.

    Args:
        spec: The job.
        privacy: Its `safety.privacy`.
        key: Key columns of the rows; `None`: those of the source.
        columns: Further columns that are masked, if `privacy.columns` says which.

    Raises:
        JobSpecError: The secret is missing, a detector cannot be used, or a secret cannot be fetched.
    """

    def __init__(
        self, spec: JobSpec, privacy: Privacy, key: Collection[str] | None = None, columns: Collection[str] = ()
    ) -> None:
        load_environment(spec.environment_secrets)
        self._privacy = privacy
        self._cipher = cipher_of(privacy.key_env)
        self._detection = detection_of(privacy.detectors)
        self._key = frozenset(spec.source.key if key is None else key)
        self._columns = None if privacy.columns is None else frozenset((*privacy.columns, *columns))
        prompt = spec.prompt
        self._in_templates = _forms(prompt.template, prompt.system, dict(prompt.variables))

    def row(self, row: Row | FailedRow) -> Row | FailedRow:
        """Returns a row with its columns masked; a failed one if it is not sent, or was masked with another key.

        A row of a dead letter is restored first, so that it has the placeholders that its job gives it.
        """
        if isinstance(row, FailedRow):
            return self._failed(row)
        if VAULT in row:
            try:
                row = self.plain(row)
            except WrongKeyError:
                return failed_row(
                    self._of_another_key(row),
                    "personal_data",
                    f"the row was masked with another key than the one in {self._privacy.key_env!r}, or its "
                    f"column {VAULT!r} was changed; expected the key of the job that wrote it",
                )
        masked, faults = self._masked(row, self._columns)
        return failed_row(masked, "personal_data", faults[0]) if faults else masked

    def prompt(self, row: Row, prompt: Prompt) -> tuple[Row, Prompt]:
        """Returns a masked row and its prompt, which is masked as well if no `columns` are given.

        Raises:
            PersonalDataError: The prompt has personal data that fails its row.
        """
        vault = row.get(VAULT)
        texts = [prompt.text, prompt.system or ""]
        if self._columns is not None and vault is None and not any(map(_has_form, texts)):
            return row, prompt
        masked, faults = texts, list[str]()
        issuer = None
        if self._columns is None:
            issuer = Issuer(self._cipher, lambda: self._in_templates | _forms(texts), vault)
            masked = [self._text(text, issuer, "the prompt", faults) for text in texts]
        if faults:
            raise PersonalDataError(faults[0])
        sent = sorted(_forms(masked))
        if issuer is not None:
            vault = issuer.vault(sent)
        elif sent:
            vault = {**(vault or {}), "sent": sent}
        system = None if prompt.system is None else masked[1]
        return with_vault(row, vault), replace(prompt, text=masked[0], system=system)

    def message(self, text: str) -> str:
        """Returns a message without personal data, which cannot be restored."""
        try:
            found = self._detection.find(text)
        except DetectionError as error:
            return f"a message that is not shown, as {error}"
        for each in reversed(found):
            text = f"{text[: each.start]}<{each.kind}>{text[each.end :]}"
        return text

    def spec(self, plain: dict[str, Any]) -> dict[str, Any]:
        """Returns a spec as plain data without the personal data in its prompt and its rows."""
        masked = {**plain, "prompt": mapped(plain["prompt"], self._shown)}
        if "rows" in plain["source"]:
            masked["source"] = {**plain["source"], "rows": mapped(plain["source"]["rows"], self._shown)}
        return masked

    def plain(self, row: Row) -> Row:
        """Returns a row with its columns restored, without its vault.

        Raises:
            WrongKeyError: It was masked with another key.
        """
        if VAULT not in row:
            return row
        return self._with_values(row, *opened(row, self._cipher))

    def restored(self, answered: AnsweredRow) -> AnsweredRow:
        """Returns an answered row with its columns and its answer restored, as the sink stores it.

        Raises:
            WrongKeyError: It was masked with another key.
        """
        if VAULT not in answered.row:
            return answered
        values, of_key = opened(answered.row, self._cipher)
        row, sent = self._with_values(answered.row, values, of_key), answered.row[VAULT].get("sent", ())
        # A text of the answer stays one, also where the column had a number: a schema may say so.
        values = {placeholder: str(values[placeholder]) for placeholder in sent if placeholder in values}
        return replace(answered, row=row, completion=_restored_completion(answered.completion, values))

    def _with_values(self, row: Row, values: dict[str, Any], of_key: dict[str, Any]) -> Row:
        """Returns a row with these values; those of `of_key` are restored in key columns alone."""
        in_key = of_key | values
        return {
            name: value if name == _ERROR else restored(value, in_key if name in self._key else values)
            for name, value in without_vault(row).items()
        }

    def _failed(self, failed: FailedRow) -> FailedRow:
        """Masks a row that could not be read, whose columns may not be known."""
        row, message = failed.row, self.message(failed.failure.message)
        try:
            row, _ = self._masked(self.plain(row), None)
        except WrongKeyError:
            row = self._of_another_key(row)
        return replace(failed, row=row, failure=replace(failed.failure, message=message))

    def _of_another_key(self, row: Row) -> Row:
        """Returns a row with the vault that another key may open; what is found besides cannot be restored."""
        masked = {name: mapped(value, self._shown) for name, value in without_vault(row).items()}
        return with_vault(masked, sealed_values(row))

    def _shown(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | float):
            return value
        text = value if isinstance(value, str) else str(value)
        return value if (masked := self.message(text)) == text else masked

    def _masked(self, row: Row, columns: Collection[str] | None) -> tuple[Row, list[str]]:
        issuer = Issuer(self._cipher, lambda: self._in_templates | _forms(*row.values()))
        masked, faults = dict(row), list[str]()
        for name in sorted(row, key=lambda name: name not in self._key):  # the tags in a key are the longest
            if name == VAULT or not (columns is None or name in columns or name == _ERROR):
                continue
            where = f"column {name!r}"
            mask = partial(self._value, issuer=issuer, where=where, faults=faults, is_key=name in self._key)
            masked[name] = mapped(row[name], mask)
        vault = issuer.vault()
        return (row if vault is None else {**masked, VAULT: vault}), faults

    def _value(self, value: Any, issuer: Issuer, where: str, faults: list[str], is_key: bool) -> Any:
        if isinstance(value, str):
            return self._text(value, issuer, where, faults, is_key=is_key)
        text = str(value)
        if value is None or isinstance(value, bool | float) or len(text) < _MIN_DIGITS:
            return value
        try:
            found = self._detection.find(text)
        except DetectionError:
            return self._text(text, issuer, where, faults, is_key=is_key)
        if not found:
            return value
        plain = value if isinstance(value, int) else text
        return self._issued(found[0].kind, plain, issuer, where, faults, is_key)

    def _text(self, text: str, issuer: Issuer, where: str, faults: list[str], *, is_key: bool = False) -> str:
        try:
            found = self._detection.find(text)
        except DetectionError as error:
            faults.append(f"{where}: {error}, so it is masked as a whole and nothing of the row was sent")
            return issuer.issue(_UNREAD, text, "mask", is_key=is_key)
        if not found:
            return text
        parts, end = list[str](), 0
        for each in found:
            value = text[each.start : each.end]
            parts += text[end : each.start], self._issued(each.kind, value, issuer, where, faults, is_key)
            end = each.end
        return "".join((*parts, text[end:]))

    def _issued(self, kind: str, value: Any, issuer: Issuer, where: str, faults: list[str], is_key: bool) -> str:
        action = self._privacy.action_of(kind)
        if action == "fail":
            faults.append(f"{where} has a value of kind {kind}, which `safety.privacy.actions` lets no row have")
        return issuer.issue(kind, value, action, is_key=is_key)


def masker_of(spec: JobSpec, key: Collection[str] | None = None, columns: Collection[str] = ()) -> Masker | None:
    """Returns the masker of a job; `None` if nothing is masked.

    Args:
        spec: The job.
        key: See `Masker`.
        columns: See `Masker`.

    Raises:
        JobSpecError: See `Masker`.
    """
    privacy = spec.safety.privacy
    return None if privacy is None else Masker(spec, privacy, key, columns)


@contextmanager
def errors_masked(spec: JobSpec) -> Iterator[None]:
    """Masks the messages of errors of the body: a sink is given plain values, and its server may quote one.

    Raises:
        LLMBeamError: The error of the body, with a message that has no personal data.
        JobFailedError: Another error of the body whose message has some.
    """
    try:
        yield
    except Exception as error:
        masker = masker_of(spec)
        text = str(error)
        if masker is None or (message := masker.message(text)) == text:
            raise
        if not isinstance(error, LLMBeamError):
            raise JobFailedError(f"{type(error).__name__}: {message}") from None
        error.args = (message,)
        raise error from None


def plain_rows(spec: JobSpec) -> Callable[[Row], Row]:
    """Returns a function that restores rows of the dead letter; one that another key masked is left as it is."""
    masker = masker_of(spec)

    def plain(row: Row) -> Row:
        if masker is None:
            return row
        with suppress(WrongKeyError):
            return masker.plain(row)
        return row

    return plain


def _restored_completion(completion: Completion, values: dict[str, str]) -> Completion:
    if not values:
        return completion
    if completion.parsed is None:
        completion = replace(completion, text=restored(completion.text, values))
    elif not (isinstance(completion.parsed, list) and not completion.text):  # a vector
        completion = replace(completion, parsed=restored(completion.parsed, values))
    if completion.citations is None:
        return completion
    return replace(completion, citations=restored(completion.citations, values))


def _has_form(text: str) -> bool:
    return next(iter(placeholders_in(text)), None) is not None


def _forms(*values: Any) -> frozenset[str]:
    return frozenset(match[0] for value in values for text in texts_of(value) for match in placeholders_in(text))
