"""The addresses of a job below its `state_uri` and its sink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_llmbeam.spec.job.output_rules import reads_own_dead_letter
from airflow_provider_llmbeam.spec.runner import DataflowRunner
from airflow_provider_llmbeam.spec.safety import FilesAudit
from airflow_provider_llmbeam.spec.sink import FilesSink
from airflow_provider_llmbeam.spec.source import BigQuerySource

if TYPE_CHECKING:
    from airflow_provider_llmbeam.spec.job.job import JobSpec

#: Name of the file in which the launcher of a Flex Template leaves its error.
LAUNCH_ERROR_NAME = "launch-error.txt"
#: Name of the report of a job, and of one that sends its failed rows.
REPORT_NAMES = ("report", "report-retry")


@dataclass(frozen=True, slots=True)
class JobPaths:
    """The addresses of a job; those of directories end in `/`.

    Attributes:
        spec: The job.
    """

    spec: JobSpec

    @property
    def home_uri(self) -> str:
        """Directory of the state of this job."""
        if self.spec.state_uri is not None:
            return f"{self.spec.state_uri}{self.spec.name}/"
        return f"{self.output_uri}.llmbeam/{self.spec.name}/"

    @property
    def output_uri(self) -> str:
        """Directory of the report and the dead letter, and of the answers of a files sink."""
        return self.spec.sink.uri if isinstance(self.spec.sink, FilesSink) else self.home_uri

    @property
    def dead_letter_uri(self) -> str:
        """Address of the dead letter."""
        return f"{self.output_uri}dead_letter-00000-of-00001.jsonl"

    @property
    def report_uri(self) -> str:
        """Address of the report of the last run that published.

        A job that sends the failed rows of the job before it has one of its own: that of the whole run stays.
        """
        return f"{self.output_uri}{self._report}.json"

    @property
    def report_html_uri(self) -> str:
        """Address of the same report as a page."""
        return f"{self.output_uri}{self._report}.html"

    @property
    def report_uris(self) -> tuple[str, ...]:
        """Addresses of the reports, with their pages, of this job and of those that share its output."""
        return tuple(f"{self.output_uri}{name}.{kind}" for name in REPORT_NAMES for kind in ("json", "html"))

    @property
    def _report(self) -> str:
        return REPORT_NAMES[reads_own_dead_letter(self.spec)]

    @property
    def skipped_uri(self) -> str:
        """Address of the report of a run that was skipped and published nothing."""
        return f"{self.home_uri}skipped.json"

    @property
    def failed_uri(self) -> str:
        """Address of the report of a run in which too many rows failed, and which published no answers."""
        return f"{self.home_uri}failed.json"

    @property
    def failed_html_uri(self) -> str:
        """Address of the same report as a page."""
        return f"{self.home_uri}failed.html"

    @property
    def failed_rows_uri(self) -> str:
        """Address of the failed rows of the same run; the dead letter belongs to the answers beside it."""
        return f"{self.home_uri}failed_rows.jsonl"

    @property
    def launch_error_uri(self) -> str:
        """Address of the error of the launcher of a Flex Template, beside the spec that it reads."""
        return f"{self.home_uri}{LAUNCH_ERROR_NAME}"

    @property
    def alerts_uri(self) -> str:
        """Address of the file that names the alerts that the run has raised."""
        return f"{self.home_uri}alerts.json"

    @property
    def stream_uri(self) -> str:
        """Directory of the windows of a stream: a folder for each hour, with a file of each member."""
        return f"{self.home_uri}stream/"

    @property
    def stream_html_uri(self) -> str:
        """Address of the page of a stream."""
        return f"{self.home_uri}stream.html"

    @property
    def owner_uri(self) -> str | None:
        """Address of the file that names the owner of a files sink, and what jobs have published there."""
        return f"{self.spec.sink.uri}.llmbeam/_owner.json" if isinstance(self.spec.sink, FilesSink) else None

    @property
    def staging_uri(self) -> str:
        """Directory of unpublished files, on the filesystem of the output, where a rename is cheap."""
        if isinstance(self.spec.sink, FilesSink):
            return f"{self.spec.sink.uri}.llmbeam/{self.spec.name}/staging/"
        return f"{self.home_uri}staging/"

    @property
    def journal_uri(self) -> str:
        """Directory of the journal segments of the model's server; with a cache it is shared with other jobs."""
        return f"{self._journal}{self.spec.server.namespace(is_shared=self.spec.cache is not None)}/"

    @property
    def journal_uris(self) -> tuple[str, ...]:
        """Directories whose answers are used: that of the model's server, and that of the providers.

        A job that asks another server, e.g. a gateway, does not pay again for what a provider has answered.
        """
        return tuple(dict.fromkeys((self.journal_uri, f"{self._journal}/")))

    @property
    def segments_uri(self) -> str:
        """Directory of the journal segments of resident workers, which delete what is of no use any more."""
        return f"{self.journal_uri.rstrip('/')}@stream/"

    @property
    def shared_uri(self) -> str:
        """Directory of what the jobs with this `state_uri`, or this files sink, share."""
        return self.spec.state_uri or f"{self.output_uri}.llmbeam/"

    @property
    def rates_uri(self) -> str:
        """Directory of the rates that jobs have learned of servers."""
        return f"{self.shared_uri}rates/"

    @property
    def budget_uri(self) -> str | None:
        """Address of the ledger of a budget that many runs share; `None` for none."""
        budget = self.spec.limits.budget
        return None if budget is None else f"{self.shared_uri}budgets/{budget.over}.json"

    @property
    def inspections_uri(self) -> str:
        """Directory of what a detector of type `dlp` has found; with a cache it is shared with other jobs."""
        return f"{self._journal}@inspections/"

    @property
    def _journal(self) -> str:
        cache = self.spec.cache
        return f"{self.home_uri}journal" if cache is None else f"{self.spec.state_uri}cache/{cache.scope}"

    @property
    def private_uris(self) -> tuple[str, ...]:
        """Directories that belong to this package: nobody else needs to read them."""
        spec = self.spec
        below_sink = (f"{spec.sink.uri}.llmbeam/",) if isinstance(spec.sink, FilesSink) else ()
        shared = (f"{spec.state_uri}cache/",) if spec.cache is not None else ()
        history = (f"{spec.state_uri}conversations/",) if spec.conversation is not None else ()
        home = (self.home_uri,) if spec.state_uri is not None else ()
        audit = () if self.audit_uri is None else (self.audit_uri,)
        return (*below_sink, *shared, *history, *home, *audit)

    @property
    def audit_uri(self) -> str | None:
        """Directory of the audit records, or of those that are to be loaded; `None` for no audit."""
        audit = self.spec.safety.audit
        if audit is None:
            return None
        return audit.uri if isinstance(audit, FilesAudit) else f"{self.home_uri}audit/"

    @property
    def stop_uri(self) -> str:
        """File whose existence ends the job: every worker records what is in flight, and sends nothing more."""
        return f"{self.home_uri}stop"

    @property
    def sent_uri(self) -> str:
        """File that names the answers of the last run that were sent to a queue."""
        return f"{self.home_uri}sent.json"

    @property
    def lease_uri(self) -> str:
        """File or object that names the process that runs the job."""
        return f"{self.home_uri}lease"

    @property
    def launch_uri(self) -> str:
        """File that the launch of the job writes, for workers elsewhere that must have the same disk."""
        return f"{self.home_uri}launch"

    @property
    def progress_uri(self) -> str:
        """Directory in which workers in other processes write their counts, while the job runs."""
        return f"{self.home_uri}progress/"

    @property
    def export_uri(self) -> str:
        """Directory of the exports of a BigQuery source, and of staged rows, for this job only."""
        given = self.spec.source.export_uri if isinstance(self.spec.source, BigQuerySource) else None
        return f"{given}{self.spec.name}/" if given else f"{self.home_uri}export/"

    @property
    def temp_uri(self) -> str:
        """Directory in which Dataflow stages files."""
        given = self.spec.runner.temp_uri if isinstance(self.spec.runner, DataflowRunner) else None
        return given or f"{self.home_uri}dataflow/"

    @property
    def batch_uri(self) -> str:
        """Directory of the request and result files of batch inference."""
        return f"{self.home_uri}batch/"

    @property
    def manifest_uri(self) -> str:
        """Address of the manifest of batch inference."""
        return f"{self.batch_uri}manifest.json"

    @property
    def prepared_uri(self) -> str:
        """Address of the list of its request files."""
        return f"{self.batch_uri}prepared.jsonl"

    def requests_uri(self, digest: str) -> str:
        """Returns the address of a request file, by the digest of its prompts."""
        return f"{self.batch_uri}requests-{digest}.jsonl"

    def index_uri(self, digest: str) -> str:
        """Returns the address of the file that has the key and the fingerprint of each of its requests."""
        return f"{self.batch_uri}index-{digest}.txt"

    @property
    def guard_usage_uri(self) -> str:
        """Address of the numbers of the requests to a guard model for them."""
        return f"{self.batch_uri}guard.json"

    @property
    def estimate_uri(self) -> str:
        """Address of the estimate."""
        return f"{self.output_uri}estimate.json"

    @property
    def accepted_uri(self) -> str:
        """Address of the last accepted evaluation."""
        return f"{self.home_uri}accepted.json"

    @property
    def new_turns_uri(self) -> str:
        """Directory of the new turns of conversations until they are published."""
        return f"{self.home_uri}conversation/"

    @property
    def first_attempt_uri(self) -> str:
        """Address of the time of the first attempt of a run with conversations."""
        return f"{self.home_uri}conversation.json"
