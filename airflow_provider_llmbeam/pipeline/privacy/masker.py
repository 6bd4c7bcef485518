"""Masks rows and prompts of a job, and restores its answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from airflow_provider_llmbeam.engine.outcome import Completion
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.exceptions import JobFailedError, LLMBeamError
from airflow_provider_llmbeam.pipeline.columns import named_columns
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, FailedRow, Row, failed_row
from airflow_provider_llmbeam.pipeline.privacy.cipher import WrongKeyError, cipher_of
from airflow_provider_llmbeam.pipeline.privacy.detection import DetectionError, detection_of
from airflow_provider_llmbeam.pipeline.privacy.dlp.inspector import inspections_of
from airflow_provider_llmbeam.pipeline.privacy.finding import Cell, Finding, Inspected
from airflow_provider_llmbeam.pipeline.privacy.placeholder import (
    LENGTHS,
    map_values,
    placeholders_in,
    restore_values,
    texts_of,
)
from airflow_provider_llmbeam.pipeline.privacy.vault import (
    HASH_DIGITS,
    VAULT,
    Issuer,
    Vault,
    is_sealed,
    open_vault,
    seal_vault,
    unseal_vault,
    vault_of,
    with_vault,
    without_vault,
)
from airflow_provider_llmbeam.pipeline.records import encode_record, warn_of_replaced, whole
from airflow_provider_llmbeam.pipeline.secrets import load_environment
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.safety import Privacy

#: Column of the dead letter with the reason of a failure, in which nothing is restored.
_ERROR = "llmbeam_error"
#: Kind of a text that a detector could not read: it is masked as a whole.
_UNREAD = "UNREAD"
#: A number with fewer digits is no personal data that a pattern finds.
_MIN_DIGITS = 6
#: Name for a service of a text that is in no column: the message of a row that could not be read.
_MESSAGE = "message"
#: What the report shows of the texts of rows in the spec, where a service would have to be asked about them again.
_NOT_SHOWN = "<TEXT>"
#: Fields of a sink that say where its rows are.
_PLACE = {"type", "uri", "table", "collection", "topic"}
#: Number of rows that `Masker.inspected` sends to a service together.
_INSPECTED_ROWS = 500

ItemT = TypeVar("ItemT")
#: Returns what a service has found in texts, for all of them.
Inspect = Callable[[Collection[Cell]], Mapping[Cell, Inspected]]


def itself(item: Any) -> Any:
    """Returns an item that is a row."""
    return item


class PersonalDataError(Exception):
    """A prompt has personal data that no row may have, or that cannot be masked. The message does not quote it."""


class Masker:
    """Masks the rows and the prompts of a job. One for each process: it is not pickled.

    Args:
        spec: The job.
        privacy: Its `safety.privacy`.
        key: Key columns of the rows; `None`: those of the source, and those that name a conversation.
        columns: Further columns that are masked, if `privacy.columns` says which.

    Raises:
        JobSpecError: The secret is missing, a detector cannot be used, a secret cannot be fetched, or there is no
            project or no account for a detector of type `dlp`.
    """

    def __init__(
        self, spec: JobSpec, privacy: Privacy, key: Collection[str] | None = None, columns: Collection[str] = ()
    ) -> None:
        load_environment(spec.environment_secrets)
        self._privacy = privacy
        self._inspections = inspections_of(spec)
        self._cipher = cipher_of(privacy)
        self._detection = detection_of(privacy.detectors)
        self._inspected: Mapping[Cell, Inspected] = {}
        self._recorded: dict[Cell, None] | None = None
        conversation = spec.conversation
        of_conversation = () if conversation is None else conversation.key
        self._key = frozenset((*spec.source.key, *of_conversation) if key is None else key)
        # The turns of a conversation have one history, in which no placeholder may stand for two values.
        self._least_digits = LENGTHS[0] if conversation is None else HASH_DIGITS
        self._named = named_columns(spec) | self._key | frozenset(columns)
        self._columns = None if privacy.columns is None else frozenset((*privacy.columns, *columns))
        self._sink = encode_record(spec.sink.model_dump(include=_PLACE))
        self._source_key = sorted(spec.source.key)
        prompt = spec.prompt
        self._in_templates = _forms(prompt.template, prompt.system, dict(prompt.variables))

    def row(self, row: Row | FailedRow, inspect: Inspect | None = None) -> Row | FailedRow:
        """Returns a row with its columns masked; a failed one if it is not sent, or was masked with another key.

        A row of a dead letter is restored first, so that it has the placeholders that its job gives it.

        Args:
            row: The row.
            inspect: See `Inspect`. `None` asks the service, if there is a detector of type `dlp`.

        Raises:
            JobSpecError: The service rejects every request.
            ModelUnavailableError: The service cannot be reached.
        """
        if self._inspections is not None:
            self._inspected = (inspect or self._inspections.of)(self.cells(row))
        return self._row(row)

    def cells(self, row: Row | FailedRow) -> tuple[Cell, ...]:
        """Returns the texts of a row that a service inspects, each once; none without a detector of type `dlp`."""
        if self._inspections is None:
            return ()
        recorded: dict[Cell, None] = {}
        self._recorded = recorded
        try:
            self._row(row)
        finally:
            self._recorded = None
        return tuple(recorded)

    def inspected(
        self, items: Iterable[ItemT], row_of: Callable[[ItemT], Row | FailedRow] = itself
    ) -> Iterator[ItemT]:
        """Yields items whose rows were inspected together, in few requests; `row` does not ask for them again.

        Args:
            items: The rows, or what holds them.
            row_of: Returns the row of an item.

        Raises:
            JobSpecError: See `row`.
            ModelUnavailableError: See `row`.
        """
        if self._inspections is None:
            yield from items
            return
        left = iter(items)
        while some := list(islice(left, _INSPECTED_ROWS)):
            self._inspections.of({cell: None for item in some for cell in self.cells(row_of(item))})
            yield from some

    @property
    def asks_service(self) -> bool:
        """Whether a service inspects the rows."""
        return self._inspections is not None

    @property
    def text_bytes(self) -> int:
        """Size of the texts of rows that a service has inspected, now or in an earlier run, in bytes."""
        return 0 if self._inspections is None else self._inspections.text_bytes

    def _find(self, text: str, column: str | None) -> tuple[Finding, ...]:
        """Finds the values in a text. Only those in a column are inspected by a service."""
        if self._inspections is None or column is None or not text.strip():
            return self._detection.find(text)
        cell = Cell(column, text)
        if self._recorded is not None:
            self._recorded[cell] = None
            return ()
        return self._detection.find(text, self._inspected[cell])

    def _row(self, row: Row | FailedRow) -> Row | FailedRow:
        if isinstance(row, FailedRow):
            return self._failed(row)
        try:
            row = self.plain(row)
        except WrongKeyError:
            return failed_row(
                self._of_another_key(row),
                "personal_data",
                f"the row was masked with another key than the one in {self._privacy.key_env!r} or for another "
                f"sink, or its column {VAULT!r} is that of a row with another key, or was changed; expected the "
                "row as a job with this secret, `source.key` and `sink` has written it",
            )
        masked, faults = self._mask(row, self._columns)
        return failed_row(masked, "personal_data", faults[0]) if faults else masked

    def prompt(self, row: Row, prompt: Prompt) -> tuple[Row, Prompt]:
        """Returns a masked row and its prompt, which is masked as well if no `columns` are given.

        Raises:
            PersonalDataError: The prompt has personal data that fails its row.
        """
        vault = vault_of(row)
        texts = [prompt.text, prompt.system or ""]
        if self._columns is not None and vault is None and not any(map(_has_form, texts)):
            return row, prompt
        masked, faults = texts, list[str]()
        issuer = None
        if self._columns is None:
            issuer = Issuer(self._cipher, lambda: self._in_templates | _forms(texts), vault, self._least_digits)
            masked = [self._text(text, issuer, None, faults) for text in texts]
        if faults:
            raise PersonalDataError(faults[0])
        sent = sorted(_forms(masked))
        if issuer is not None:
            vault = issuer.vault(sent)
        elif sent:
            vault = Vault({**(vault or {}), "sent": sent})
        system = None if prompt.system is None else masked[1]
        return with_vault(row, vault), replace(prompt, text=masked[0], system=system)

    def message(self, text: str, column: str | None = None) -> str:
        """Returns a message without personal data, which cannot be restored.

        Args:
            text: The message.
            column: Column that it quotes, while its row is masked. `None`: no service inspects it.
        """
        try:
            found = self._find(text, column)
        except DetectionError as error:
            return f"a message that is not shown, as {error}"
        for each in reversed(found):
            text = f"{text[: each.start]}<{each.kind}>{text[each.end :]}"
        return text

    def spec(self, plain: dict[str, Any]) -> dict[str, Any]:
        """Returns a spec as plain data without the personal data in its prompt and its rows."""
        masked = {**plain, "prompt": map_values(plain["prompt"], self._shown)}
        if "rows" in plain["source"]:
            rows = plain["source"]["rows"]
            if self._inspections is None:
                rows = map_values(rows, self._shown)
            else:
                rows = [{name: map_values(value, _hidden) for name, value in row.items()} for row in rows]
            masked["source"] = {**plain["source"], "rows": rows}
        return masked

    def plain(self, row: Row) -> Row:
        """Returns a masked row, or one of the dead letter, with its columns restored, without its vault.

        Raises:
            WrongKeyError: Its vault does not open, see `unseal_vault`.
        """
        if is_sealed(row):
            row = unseal_vault(row, self._owner(row), self._cipher)
        vault = vault_of(row)
        return row if vault is None else self._with_values(row, *open_vault(vault, self._cipher))

    def sealed(self, row: Row) -> Row:
        """Returns a masked row as the dead letter stores it: its vault opens in this row of this sink alone."""
        if (vault := vault_of(row)) is None:
            return row
        return {**row, VAULT: seal_vault(vault, self._owner(row), self._cipher)}

    def _owner(self, row: Row) -> bytes:
        """Returns what the vault of a row belongs to: the sink, in which alone it is restored, and the key."""
        key = {column: whole(row.get(column)) for column in self._source_key}
        return self._sink + encode_record(key)

    def restore(self, answered: AnsweredRow) -> AnsweredRow:
        """Returns an answered row with its columns and its answer restored, as the sink stores it.

        Raises:
            WrongKeyError: It was masked with another key.
        """
        if (vault := vault_of(answered.row)) is None:
            return answered
        values, of_key = open_vault(vault, self._cipher)
        row, sent = self._with_values(answered.row, values, of_key), vault.get("sent", ())
        # A text of the answer stays one, also where the column had a number: a schema may say so.
        values = {placeholder: str(values[placeholder]) for placeholder in sent if placeholder in values}
        completion = _restore_completion(answered.completion, values)
        return replace(answered, row=row, completion=completion, masked_row=self.sealed(answered.row))

    def _with_values(self, row: Row, values: dict[str, Any], of_key: dict[str, Any]) -> Row:
        """Returns a row with these values; those of `of_key` are restored in key columns alone."""
        in_key = of_key | values
        return {
            restore_values(name, in_key): value
            if name == _ERROR
            else restore_values(value, in_key if name in self._key else values)
            for name, value in without_vault(row).items()
        }

    def _failed(self, failed: FailedRow) -> FailedRow:
        """Masks a row that could not be read, whose columns may not be known."""
        row, message = failed.row, self.message(failed.failure.message, _MESSAGE)
        try:
            row, _ = self._mask(self.plain(row), None)
        except WrongKeyError:
            row = self._of_another_key(row)
        return replace(failed, row=row, failure=replace(failed.failure, message=message))

    def _of_another_key(self, row: Row) -> Row:
        """Returns a row with the vault that another key may open; what is found besides cannot be restored."""
        return {
            self._shown(name): value if name == VAULT else map_values(value, partial(self._shown, column=name))
            for name, value in row.items()
        }

    def _shown(self, value: Any, column: str | None = None) -> Any:
        if (text := _text_of(value)) is None:
            return value
        return value if (masked := self.message(text, column)) == text else masked

    def _mask(self, row: Row, columns: Collection[str] | None) -> tuple[Row, list[str]]:
        issuer = Issuer(
            self._cipher, lambda: self._in_templates | _forms(*row.values()), least_digits=self._least_digits
        )
        masked, names, faults = dict(row), dict[str, str](), list[str]()
        for name in sorted(row, key=lambda name: name not in self._key):  # the tags in a key are the longest
            if not (columns is None or name in columns or name == _ERROR):
                continue
            mask = partial(self._value, issuer=issuer, column=name, faults=faults, is_key=name in self._key)
            masked[name] = map_values(row[name], mask)
            if columns is None and name not in self._named:  # no two names become one, as no two keys do
                names[name] = self._text(name, issuer, None, faults, where="the name of a column", is_key=True)
        if (vault := issuer.vault()) is None:
            return row, faults
        if VAULT in row:
            warn_of_replaced(VAULT)
        renamed = {names.get(name, name): value for name, value in masked.items()}
        return {**renamed, VAULT: vault}, faults

    def _value(self, value: Any, issuer: Issuer, column: str, faults: list[str], is_key: bool) -> Any:
        if isinstance(value, str):
            return self._text(value, issuer, column, faults, is_key=is_key)
        text = _text_of(value)
        if text is None or len(text) < _MIN_DIGITS:
            return value
        try:
            found = self._find(text, column)
        except DetectionError:
            return self._text(text, issuer, column, faults, is_key=is_key)
        if not found:
            return value
        plain = value if isinstance(value, int | float | bytes) else text
        return self._issue(found[0].kind, plain, issuer, f"column {column!r}", faults, is_key)

    def _text(
        self,
        text: str,
        issuer: Issuer,
        column: str | None,
        faults: list[str],
        *,
        where: str = "the prompt",
        is_key: bool = False,
    ) -> str:
        where = where if column is None else f"column {column!r}"
        try:
            found = self._find(text, column)
        except DetectionError as error:
            faults.append(f"{where}: {error}, so it is masked as a whole and nothing of the row was sent")
            return issuer.issue(_UNREAD, text, "mask", is_key=is_key)
        if not found:
            return text
        parts, end = list[str](), 0
        for each in found:
            value = text[each.start : each.end]
            parts += text[end : each.start], self._issue(each.kind, value, issuer, where, faults, is_key)
            end = each.end
        return "".join((*parts, text[end:]))

    def _issue(self, kind: str, value: Any, issuer: Issuer, where: str, faults: list[str], is_key: bool) -> str:
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


def _restore_completion(completion: Completion, values: dict[str, str]) -> Completion:
    if not values:
        return completion
    if completion.parsed is None:
        completion = replace(completion, text=restore_values(completion.text, values))
    elif not (isinstance(completion.parsed, list) and not completion.text):  # a vector
        completion = replace(completion, parsed=restore_values(completion.parsed, values))
    beside = {"citations": completion.citations, "reasoning": completion.reasoning}
    restored = {name: restore_values(value, values) for name, value in beside.items() if value is not None}
    return replace(completion, **restored) if restored else completion


def _text_of(value: Any) -> str | None:
    """Returns the text of a value in which personal data is searched for; `None` for a value that has none.

    A float without decimals is searched as an integer: a column of integers that has nulls is read as floats.
    """
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else None
    return str(value)


def _hidden(value: Any) -> Any:
    text = _text_of(value)
    is_harmless = text is None or len(text) < _MIN_DIGITS
    return value if is_harmless and not isinstance(value, str) else _NOT_SHOWN


def _has_form(text: str) -> bool:
    return next(iter(placeholders_in(text)), None) is not None


def _forms(*values: Any) -> frozenset[str]:
    return frozenset(match[0] for value in values for text in texts_of(value) for match in placeholders_in(text))


@contextmanager
def mask_errors(spec: JobSpec) -> Iterator[None]:
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
