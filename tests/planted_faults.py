"""Faults that the tests have to see: twenty changes of one place each, in the parts that keep the promises.

`scripts/plant-faults` plants them one after the other in a copy of the tree, and runs the tests that have to fail.
"""

from __future__ import annotations

from dataclasses import dataclass

PACKAGE = "airflow_provider_llmbeam"


@dataclass(frozen=True, kw_only=True)
class PlantedFault:
    """One fault.

    Attributes:
        area: Part of the package that it breaks.
        what: What goes wrong for a user.
        file: The file, below the package.
        old: Text that stands there once.
        new: Text that replaces it.
        tests: Modules of the loop that see it.
    """

    area: str
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


PLANTED_FAULTS = {
    "budget-never-cancels": PlantedFault(
        area="deciders",
        what="a Dataflow job above its budget is waited for, and never cancelled",
        file="jobs/state_machine.py",
        old='return Wait(CANCELLING_SECONDS) if job.phase == "cancelling" else OverBudget(cost_usd)',
        new="return Wait(CANCELLING_SECONDS)",
        tests=("tests/unit/jobs/test_moments.py",),
    ),
    "old-try-fights-on": PlantedFault(
        area="deciders",
        what="a try whose endpoint was taken over adopts it back",
        file="endpoints/provisioning.py",
        old="if history.labelled and any(others):",
        new="if False and history.labelled and any(others):",
        tests=("tests/unit/endpoints/test_provisioning.py", "tests/unit/endpoints/test_moments.py"),
    ),
    "own-fault-is-a-leftover": PlantedFault(
        area="deciders",
        what="a try takes the fault of its own deployment for that of an earlier one, and tries a region for ever",
        file="endpoints/provisioning.py",
        old="operation=operation or self.history.operation, is_ours=True)",
        new="operation=operation or self.history.operation)",
        tests=("tests/unit/endpoints/test_moments.py",),
    ),
    "cancelled-batch-goes-on": PlantedFault(
        area="deciders",
        what="batch inference that is being cancelled is waited for again once fewer rows are unanswered",
        file="pipeline/batch_inference/decide.py",
        old="if now >= switch_at or history.first_cancelled_at is not None:",
        new="if now >= switch_at:",
        tests=("tests/unit/pipeline/batch_inference/test_moments.py",),
    ),
    "failed-batch-with-results-again": PlantedFault(
        area="deciders",
        what="a batch that failed with results is submitted again, and its answers are paid for twice",
        file="pipeline/batch_inference/decide.py",
        old='return self.job.phase == "failed" and not self.job.results and self.submits < MAX_SUBMITS',
        new='return self.job.phase == "failed" and self.submits < MAX_SUBMITS',
        tests=("tests/unit/pipeline/batch_inference/test_moments.py",),
    ),
    "refusal-above-answer": PlantedFault(
        area="journal",
        what="a refusal that was recorded after an answer replaces it, and the row is sent again",
        file="engine/journal/journal.py",
        old="return earlier if isinstance(later, Failure) and isinstance(earlier, Completion) else later",
        new="return later",
        tests=("tests/unit/engine/journal/test_journal.py",),
    ),
    "answers-stay-in-memory": PlantedFault(
        area="journal",
        what="answers are recorded at the end of the batch, so that a kill loses what was paid for",
        file="engine/journal/segment_writer.py",
        old="            file.writelines(line for _, line in self._unwritten)\n            file.flush()",
        new="            file.writelines(line for _, line in self._unwritten)",
        tests=(
            "tests/unit/engine/journal/test_segment_writer.py",
            "tests/unit/engine/journal/test_journal.py",
            "tests/pipeline/test_no_answer_is_paid_for_twice.py",
        ),
    ),
    "grown-segment-not-read": PlantedFault(
        area="journal",
        what="what another process has added to a segment since it was read is not found, and is paid for again",
        file="engine/journal/journal.py",
        old="is_current = index.size in (None, size)",
        new="is_current = index.size != 0",
        tests=("tests/unit/engine/journal/test_journal.py",),
    ),
    "live-holder-displaced": PlantedFault(
        area="lease",
        what="a process that renews its lease is displaced after 45 s, and two send the same rows",
        file="pipeline/lease.py",
        old="seen, seen_at = blob.generation, now",
        new="seen, seen_at = blob.generation, seen_at or now",
        tests=("tests/pipeline/test_lease.py",),
    ),
    "always-sure": PlantedFault(
        area="lease",
        what="a process that stood still goes on sending although another one may have taken over its job",
        file="pipeline/lease.py",
        old="return all(lease.silent_seconds() < SURE_SECONDS for lease in tuple(_held))",
        new="return True",
        tests=("tests/pipeline/test_lease.py",),
    ),
    "workers-outlive-takeover": PlantedFault(
        area="lease",
        what="workers of a job that was taken over by another launcher go on sending",
        file="pipeline/lease.py",
        old="if holder is None or holder.lease_id != self.lease_id or holder.has_ended():",
        new="if holder is None or holder.has_ended():",
        tests=("tests/pipeline/test_lease.py",),
    ),
    "first-result-wins": PlantedFault(
        area="harvest",
        what="of a result that a provider delivered twice, a failure hides the answer",
        file="pipeline/batch_inference/harvest.py",
        old="yield fingerprint, next((each for each in found if isinstance(each, Completion)), found[0])",
        new="yield fingerprint, found[0]",
        tests=("tests/unit/pipeline/batch_inference/test_harvest.py",),
    ),
    "batch-at-full-price": PlantedFault(
        area="harvest",
        what="answers of batch inference have the online price in report and budget",
        file="pipeline/batch_inference/harvest.py",
        old='bill = Bill.of(result.tokens, self._price, "batch")',
        new='bill = Bill.of(result.tokens, self._price, "standard")',
        tests=("tests/unit/pipeline/batch_inference/test_harvest.py", "tests/pipeline/test_batch_inference.py"),
    ),
    "provider-errors-are-final": PlantedFault(
        area="harvest",
        what="rows that the provider failed count as refused instead of being sent online",
        file="pipeline/answer_form.py",
        old="if self.embedding is not None or outcome.kind not in REFUSED:",
        new="if self.embedding is not None:",
        tests=("tests/unit/pipeline/batch_inference/test_harvest.py",),
    ),
    "gpu-waits-for-operation": PlantedFault(
        area="teardown",
        what="a deployed model bills until an unrelated creating operation can be cancelled",
        file="endpoints/teardown.py",
        old='if one.kind == "endpoint" and (one.deployed or not creating)]',
        new='if one.kind == "endpoint" and not creating]',
        tests=("tests/unit/endpoints/test_teardown.py", "tests/unit/endpoints/test_moments.py"),
    ),
    "removes-what-was-taken-over": PlantedFault(
        area="teardown",
        what="an abandoned try removes the GPU that a later try has taken over",
        file="endpoints/teardown.py",
        old="if attempt is not None and owners:",
        new="if False and attempt is not None and owners:",
        tests=("tests/unit/endpoints/test_moments.py",),
    ),
    "deployment-in-flight-is-nothing": PlantedFault(
        area="teardown",
        what="a teardown ends while a deployment is still running, whose GPU bills afterwards",
        file="endpoints/teardown.py",
        old="return not self.resources and not self.operations",
        new="return not self.resources",
        tests=("tests/unit/endpoints/test_moments.py",),
    ),
    "sums-unchecked": PlantedFault(
        area="publish",
        what="a job that has lost rows publishes and succeeds",
        file="pipeline/transforms/publish.py",
        old="        check_sums(tally)\n        queue.before_publication(spec)",
        new="        queue.before_publication(spec)",
        tests=("tests/unit/pipeline/transforms/test_publish.py",),
    ),
    "report-of-an-earlier-run": PlantedFault(
        area="publish",
        what="answers whose staged files are gone are taken from the report of an earlier run",
        file="pipeline/transforms/publish.py",
        old="if Report.model_validate_json(text).started_at == self._report.started_at:",
        new="if Report.model_validate_json(text):",
        tests=("tests/unit/pipeline/transforms/test_publish.py",),
    ),
    "dead-letter-of-a-failed-run": PlantedFault(
        area="publish",
        what="a job with too many failed rows replaces the dead letter that belongs to the published answers",
        file="pipeline/transforms/publish.py",
        old="move_in({failed: spec.paths.failed_rows_uri})",
        new="move_in({failed: spec.paths.dead_letter_uri})",
        tests=("tests/unit/pipeline/transforms/test_publish.py", "tests/pipeline/test_no_row_is_lost.py"),
    ),
    "tested-on-what-chose": PlantedFault(
        area="cascade",
        what="thresholds are tested on the draws that chose them, and miss their target more often than promised",
        file="pipeline/cascade/calibration.py",
        old="outcomes = search.count(testing)",
        new="outcomes = search.count(choosing)",
        tests=("tests/unit/pipeline/cascade/test_calibration.py",),
    ),
    "cheap-answer-of-model": PlantedFault(
        area="cascade",
        what="the answer of a stage is kept as that of `model`, which later jobs and the shared cache believe",
        file="pipeline/cascade/transform.py",
        old="fingerprint, prompt = made",
        new="fingerprint, prompt = request.fingerprint, made[1]",
        tests=("tests/pipeline/test_cascade.py",),
    ),
    "class-without-draws-is-kept": PlantedFault(
        area="cascade",
        what="a stage's answers of a class that nothing is known of are kept, and the rare class is sacrificed",
        file="pipeline/cascade/calibration.py",
        old="math.isfinite(answer.score) and (guaranteed is None or answer.label in guaranteed)",
        new="math.isfinite(answer.score)",
        tests=("tests/unit/pipeline/cascade/test_choice.py", "tests/unit/pipeline/cascade/test_calibration.py"),
    ),
}
