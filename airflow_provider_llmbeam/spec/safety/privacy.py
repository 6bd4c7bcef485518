"""Personal data: what is masked before a prompt is rendered, and how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from airflow_provider_llmbeam.spec.base import NOT_SHOWN, FieldFaultError, SpecModel, http_address, variable_name
from airflow_provider_llmbeam.spec.fields.names import FunctionPath, InfoType, PersonalDataKind, ProjectId
from airflow_provider_llmbeam.spec.fields.suggestion import nearest
from airflow_provider_llmbeam.spec.fields.text import from_text
from airflow_provider_llmbeam.spec.runner import DataflowRunner

if TYPE_CHECKING:
    from airflow_provider_llmbeam.spec.job import JobSpec

#: Kinds that the patterns find in texts of every country.
GeneralKind = Literal["EMAIL", "PHONE", "CREDIT_CARD", "IBAN", "IP_ADDRESS", "MAC_ADDRESS", "CRYPTO_WALLET", "URL"]
#: Identity numbers of one country, whose code their name begins with.
NationalKind = Literal[
    "AU_TFN",
    "CA_SIN",
    "DE_SOCIAL_SECURITY",
    "DE_TAX_ID",
    "ES_NIE",
    "ES_NIF",
    "FI_PERSONAL_ID",
    "GB_NHS",
    "GB_NINO",
    "IN_AADHAAR",
    "IN_PAN",
    "IT_FISCAL_CODE",
    "KR_RRN",
    "PL_PESEL",
    "SE_PERSONNUMMER",
    "SG_NRIC",
    "TH_TNIN",
    "US_ITIN",
    "US_SSN",
]
PatternKind = Literal[GeneralKind, NationalKind]
#: How sure Sensitive Data Protection is of a finding, in ascending order.
Likelihood = Literal["VERY_UNLIKELY", "UNLIKELY", "POSSIBLE", "LIKELY", "VERY_LIKELY"]
#: Kinds of the patterns by infoType, so that `actions` by kind hold whichever detector finds a value.
_KINDS_OF_PATTERNS = {
    "CREDIT_CARD_NUMBER": "CREDIT_CARD",
    "EMAIL_ADDRESS": "EMAIL",
    "IBAN_CODE": "IBAN",
    "PHONE_NUMBER": "PHONE",
    "US_SOCIAL_SECURITY_NUMBER": "US_SSN",
}
Action = Literal["mask", "hash", "drop", "fail"]
Country = Annotated[str, Field(pattern=r"^[A-Z]{2}$")]


def _not_empty(items: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    # `min_length` would be reported besides the fault of an item.
    if items == ():
        raise ValueError("must have at least 1 item")
    return items


class PatternsDetector(SpecModel):
    """Finds values by their form and their check digits. It needs the extra `privacy`, and no download.

    It finds no names of people, and no addresses: docs/evidence/privacy.md has the recall of each kind.

    Attributes:
        entities: Kinds that are found. `None`: all general ones but `URL`, and the identity numbers of the
            `countries`.
        countries: Countries, by their codes, whose phone numbers are found without +, and whose identity numbers
            are found. Each costs time with every text that has a number of six digits or more.
    """

    type: Literal["patterns"] = "patterns"
    entities: tuple[PatternKind, ...] | None = None
    countries: tuple[Country, ...] = ("US", "GB", "DE", "FR")

    _some = field_validator("entities", "countries")(_not_empty)


class CustomDetector(SpecModel):
    """Finds values by a regular expression or a function of yours.

    Attributes:
        name: Kind of the values, e.g. `CUSTOMER_ID`; their placeholders begin with it.
        pattern: Regular expression of the package `regex`. A text on which it takes more than 0.5 s fails its row.
        function: Where a function is, `package.module:name`; the Python of the job imports it. It is called with a
            text, and returns the `(start, end)` of each value. If it raises, it fails the row.
    """

    type: Literal["custom"]
    name: PersonalDataKind
    pattern: Annotated[str, Field(min_length=1)] | None = None
    function: FunctionPath | None = None

    @field_validator("pattern")
    @classmethod
    def _is_pattern(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            import regex

            try:
                matches_nothing = regex.fullmatch(pattern, "", timeout=0.5) is not None
            except regex.error as error:
                raise ValueError(f"is not a regular expression ({error})") from None
            if matches_nothing:
                raise ValueError("must not match an empty text: it would be found between any two characters")
        return pattern

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if (self.pattern is None) == (self.function is None):
            raise FieldFaultError("pattern", "exactly one of this field and `function` is needed", self.pattern)
        return self


class DlpDetector(SpecModel):
    """Finds values with Google's Sensitive Data Protection (Cloud DLP), also names of people and addresses.

    The masked columns of the rows are sent there; each distinct text of a column is inspected, and billed by its
    bytes, once: what was found is kept beside the journal, without the text. The rendered prompt is not inspected,
    so neither are `prompt.variables` nor the text of templates. The account of the workers needs the role
    `roles/dlp.user` on the project.

    Attributes:
        info_types: Names of infoTypes; cloud.google.com/sensitive-data-protection/docs/infotypes-reference lists
            them. Their kinds have the same names, but for `CREDIT_CARD`, `EMAIL`, `IBAN`, `PHONE` and `US_SSN`,
            which are those of the patterns.
        min_likelihood: Findings of which the service is less sure are left out.
        project: Google Cloud project that is billed. `None`: that of the model, which its connection may give, or
            that of `runner`.
        location: Region in which the texts are processed. `global` has the largest quota: 10,000 requests per
            minute, where a region has 600.
        base_url: Another address of the same API, e.g. the regional `https://dlp.europe-west3.rep.googleapis.com`.
        requests_per_minute: Quota of requests. `None`: unknown; the rate is learned from the 429s of the service.
        max_in_flight: Maximum number of concurrent requests per worker process.
    """

    type: Literal["dlp"]
    info_types: tuple[InfoType, ...] = (
        "PERSON_NAME",
        "STREET_ADDRESS",
        "DATE_OF_BIRTH",
        "EMAIL_ADDRESS",
        "PHONE_NUMBER",
        "CREDIT_CARD_NUMBER",
        "IBAN_CODE",
        "IP_ADDRESS",
        "MAC_ADDRESS",
        "PASSPORT",
        "US_SOCIAL_SECURITY_NUMBER",
    )
    min_likelihood: Likelihood = "POSSIBLE"
    project: ProjectId | None = None
    location: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")] = "global"
    base_url: str | None = None
    requests_per_minute: Annotated[float, Field(gt=0)] | None = None
    max_in_flight: Annotated[int, Field(ge=1, le=1000)] = 16

    _some = field_validator("info_types")(_not_empty)
    _address = field_validator("base_url")(http_address)


#: List price of an inspection up to 1 TiB a month; the first GiB of a month is free. That bytes are billed is from
#: cloud.google.com/sensitive-data-protection/pricing; the amount is that of 2025, and was not read there again.
_INSPECTION_USD_PER_GIB = 3.0


def inspection_usd(text_bytes: float) -> float:
    """Returns the list price of the inspection of texts, in US dollars, without the free GiB of each month."""
    return text_bytes / 2**30 * _INSPECTION_USD_PER_GIB


def kind_of_info_type(name: str) -> str:
    """Returns the kind of values that an infoType finds."""
    return _KINDS_OF_PATTERNS.get(name, name)


def _by_type(value: Any) -> Any:
    """Returns the fields of a detector that is given by its type alone."""
    value = from_text(value)
    return {"type": value} if isinstance(value, str) else value


Detector = Annotated[
    Annotated[PatternsDetector | DlpDetector | CustomDetector, Field(discriminator="type")],
    BeforeValidator(_by_type),
]


class Privacy(SpecModel):
    """Masks personal data in rows and prompts, and restores it in the answers that the sink stores.

    Journal, cache, request files, dead letter, report, logs and the model get placeholders, e.g. `<EMAIL_7f3a>`.
    One value has one placeholder for one key, so that equal prompts are still sent once.

    Attributes:
        columns: Columns whose values are masked. `None`: all columns, and the whole rendered prompt with its
            system instruction.
        detectors: What finds personal data. A text in place of a detector is its `type`.
        action: What is done with a value: `mask` by a placeholder that the sink restores, `hash` by one that
            is never restored, `drop` the value, or `fail` its row, which goes to the dead letter.
        actions: The same by kind, for kinds that differ, e.g. `{"CREDIT_CARD": "drop"}`. Key columns are always
            masked and restored.
        key_env: Environment variable with the secret from which the key of the placeholders is derived, of at
            least 16 characters; on Dataflow named in `runner.environment_secrets`.
        key_conn_id: Airflow connection, of any type, whose password is that secret; the operator sets the variable
            for the process of the job. `None`: the worker has the variable.
        on_altered: What is done with an answer in which the model altered a placeholder: `keep` it as it is,
            `fail` its row, or `repair` it by one more request, and fail the row if one is altered again.
    """

    columns: tuple[str, ...] | None = None
    detectors: tuple[Detector, ...] = (PatternsDetector(),)
    action: Action = "mask"
    actions: Mapping[str, Action] = Field(default_factory=dict)
    key_env: Annotated[str, Field(min_length=1)] = "LLMBEAM_PRIVACY_KEY"
    key_conn_id: str | None = None
    on_altered: Literal["keep", "fail", "repair"] = "keep"

    _some = field_validator("columns", "detectors")(_not_empty)
    _variable = field_validator("key_env")(variable_name)

    @model_validator(mode="after")
    def _has_one_dlp(self) -> Self:
        if sum(isinstance(each, DlpDetector) for each in self.detectors) > 1:
            raise FieldFaultError("detectors", "at most one may have type 'dlp', with all `info_types`", NOT_SHOWN)
        return self

    @model_validator(mode="after")
    def _actions_are_of_kinds(self) -> Self:
        kinds = {kind for detector in self.detectors for kind in kinds_of(detector)}
        for kind in self.actions:
            if kind not in kinds:
                known = ", ".join(sorted(kinds))
                instead = f"; {hint}" if (hint := nearest(kind, kinds)) else f": {known}"
                raise FieldFaultError(f"actions.{kind}", f"is no kind that the detectors find{instead}")
        return self

    def action_of(self, kind: str) -> Action:
        """Returns what is done with values of a kind."""
        return self.actions.get(kind, self.action)

    @property
    def dlp(self) -> DlpDetector | None:
        """The detector of type `dlp`, if there is one."""
        return next((each for each in self.detectors if isinstance(each, DlpDetector)), None)

    def find_fault(self, spec: JobSpec) -> FieldFaultError | None:
        """Returns why the personal data of a job cannot be masked, or `None`."""
        if spec.prompt.media and self.columns is None:
            return FieldFaultError(
                "safety.privacy.columns",
                "this field is needed with `prompt.media`: files are sent as they are, and only texts are masked; "
                "name the columns whose texts are",
                None,
            )
        if self.on_altered != "keep" and spec.embedding is not None:
            return FieldFaultError(
                "safety.privacy.on_altered",
                "must be 'keep' to embed: a vector has no placeholders",
                self.on_altered,
            )
        if self.on_altered == "repair" and spec.prompt.media:
            return FieldFaultError(
                "safety.privacy.on_altered",
                "must be 'keep' or 'fail' with `prompt.media`: a repair would send and bill the files again",
                self.on_altered,
            )
        runner = spec.runner
        if (
            isinstance(runner, DataflowRunner)
            and runner.container_image is None
            and self.key_env not in runner.environment_secrets
        ):
            return FieldFaultError(
                "runner.environment_secrets",
                f"the workers need {self.key_env!r} for `safety.privacy`: name the secret that holds it, "
                f"{{{self.key_env!r}: 'projects/…/secrets/…/versions/latest'}}",
                NOT_SHOWN,
            )
        return None


def kinds_of(detector: PatternsDetector | DlpDetector | CustomDetector) -> tuple[str, ...]:
    """Returns the kinds of values that a detector finds."""
    if isinstance(detector, CustomDetector):
        return (detector.name,)
    if isinstance(detector, DlpDetector):
        return tuple(map(kind_of_info_type, detector.info_types))
    if detector.entities is not None:
        return detector.entities
    general = [kind for kind in GeneralKind.__args__ if kind != "URL"]  # type: ignore[attr-defined]
    national = [kind for kind in NationalKind.__args__ if kind[:2] in detector.countries]  # type: ignore[attr-defined]
    return (*general, *national)
