"""Run facets of this package. Only a task that emits OpenLineage events imports this module."""

from __future__ import annotations

from typing import ClassVar

from attrs import define
from openlineage.client.generated.base import RunFacet

from airflow_provider_llmbeam import __version__


def _schema(name: str) -> str:
    # A name, not an address: the schemas are in the wheel, in `lineage/schemas.json`.
    return f"urn:airflow-provider-llmbeam:{__version__}:lineage/schemas.json#/$defs/{name}"


@define
class LLMInferenceRunFacet(RunFacet):
    """What a task asked for.

    Attributes:
        jobName: Name of the job; tries of a run share it.
        task: `generate` or `embed`.
        modelType: Type of the model, e.g. `gemini`.
        modelName: Name of the model, with its version if the name has one.
        serverOrigin: Scheme, host and port of the server.
        promptSha256: SHA-256 of the prompt's template, in hexadecimal digits.
        systemSha256: SHA-256 of the template of the system instruction.
        outputSchemaSha256: SHA-256 of the JSON Schema of the answers.
        inferenceMode: `online`, `batch` or `auto`.
        runner: Type of the runner.
        region: Region of the runner.
        journalUri: Directory of the journal, which holds the answers that were paid for.
        reportUri: Address of the report.
        deadLetterUri: Address of the failed rows.
    """

    jobName: str
    task: str
    modelType: str
    modelName: str
    promptSha256: str
    inferenceMode: str
    runner: str
    journalUri: str
    reportUri: str
    deadLetterUri: str
    serverOrigin: str | None = None
    systemSha256: str | None = None
    outputSchemaSha256: str | None = None
    region: str | None = None

    @staticmethod
    def _get_schema() -> str:
        return _schema("LLMInferenceRunFacet")


#: The masker of Airflow takes `token` in a name for a secret, and would replace the numbers.
_TOKENS = ["inputTokens", "cachedInputTokens", "outputTokens"]


@define
class LLMUsageRunFacet(RunFacet):
    """What a job did; all sums are those of this run.

    Attributes:
        rowsRead: Rows read: answered and failed ones.
        rowsAnswered: Rows with an answer.
        rowsFailed: Rows in the dead letter.
        failedByKind: Failed rows by kind of failure.
        origins: Answered rows by the origin of the answer, e.g. `fresh`, `batch`, `resumed` or `cached`.
        serviceTiers: Answers by the tier that served them.
        requests: Requests sent.
        rejectedRequests: Requests answered with 429.
        inputTokens: Input tokens billed.
        cachedInputTokens: Those of them that came from the provider's cache.
        outputTokens: Output tokens billed, thoughts included.
        costUsd: Cost of the tokens, in US dollars; missing if no price is known.
        truncatedAnswers: Answers cut off at the longest output.
        durationSeconds: Duration of the job, in seconds.
        skippedBecause: Why the job published nothing.
    """

    rowsRead: int
    rowsAnswered: int
    rowsFailed: int
    failedByKind: dict[str, int]
    origins: dict[str, int]
    serviceTiers: dict[str, int]
    requests: int
    rejectedRequests: int
    inputTokens: int
    cachedInputTokens: int
    outputTokens: int
    truncatedAnswers: int
    durationSeconds: float
    costUsd: float | None = None
    skippedBecause: str | None = None

    _additional_skip_redact: ClassVar[list[str]] = _TOKENS

    @staticmethod
    def _get_schema() -> str:
        return _schema("LLMUsageRunFacet")


@define
class LLMEstimateRunFacet(RunFacet):
    """What a job is estimated to take.

    Attributes:
        rows: Rows in the source.
        requests: Prompts that the job will send.
        inputTokens: Input tokens that will be billed.
        outputTokens: Output tokens that will be billed.
        costUsd: Cost of the tokens, in US dollars; missing if no price is known.
        durationSeconds: Duration of the job, in seconds; missing if it is not known.
        errorRatio: Half of the 95 % interval of the tokens, relative to them.
    """

    rows: int
    requests: int
    inputTokens: int
    outputTokens: int
    costUsd: float | None = None
    durationSeconds: float | None = None
    errorRatio: float | None = None

    _additional_skip_redact: ClassVar[list[str]] = _TOKENS

    @staticmethod
    def _get_schema() -> str:
        return _schema("LLMEstimateRunFacet")


@define
class LLMEndpointRunFacet(RunFacet):
    """An endpoint that a task provisions or removes.

    Attributes:
        name: Name of the endpoint.
        endpointType: `vertex` or `cloud_run`.
        modelName: Model that it serves.
        locations: Regions in which it may be.
    """

    name: str
    endpointType: str
    modelName: str
    locations: list[str]

    @staticmethod
    def _get_schema() -> str:
        return _schema("LLMEndpointRunFacet")


@define
class LLMSweepRunFacet(RunFacet):
    """What a sweeper removed.

    Attributes:
        counts: Number of resources by what became of them, e.g. `deleted`, `kept`.
        isDryRun: Whether nothing was removed.
    """

    counts: dict[str, int]
    isDryRun: bool

    @staticmethod
    def _get_schema() -> str:
        return _schema("LLMSweepRunFacet")
