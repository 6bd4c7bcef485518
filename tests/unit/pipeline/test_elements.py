from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline.answer_form import AnswerForm
from airflow_provider_llmbeam.pipeline.elements import FAILED, Request, RequestCoder
from airflow_provider_llmbeam.pipeline.transforms.check_rows import wait_for_row_check
from airflow_provider_llmbeam.pipeline.transforms.reuse import REUSED, MakeRequest, Reuse
from airflow_provider_llmbeam.spec import EchoModel, FilesSink, JobSpec, PromptTemplate, RowsSource


class Unpicklable:
    def __reduce__(self) -> Any:
        raise AssertionError("pickled")


def test_a_request_is_the_same_after_a_shuffle() -> None:
    coder, request = RequestCoder(), Request("f", ({"id": 0}, {"id": 1}), Prompt("Hi", "Be brief."))
    assert coder.decode(coder.encode(request)) == request


def test_the_size_of_a_batch_is_estimated_without_pickling_its_requests() -> None:
    coder = beam.coders.registry.get_coder(beam.typehints.List[Request])
    batch = [Request("f", ({"id": Unpicklable()},), Prompt("Hi")) for _ in range(2)]
    assert coder.estimate_size(batch) > 0
    with pytest.raises(AssertionError, match="pickled"):
        coder.encode(batch)


def test_requests_keep_their_type_up_to_the_model_so_that_beam_finds_their_coder() -> None:
    spec = JobSpec(
        name="nightly",
        source=RowsSource(type="rows", key=("id",), rows=({"id": 1},), min_rows=2),
        prompt=PromptTemplate(template="{{ row.id }}"),
        model=EchoModel(type="echo"),
        sink=FilesSink(uri="/out"),  # never written
    )
    root = beam.Pipeline()
    rows = root | beam.Create([{"id": 1}])
    first_run = rows | beam.ParDo(MakeRequest())
    step = beam.ParDo(Reuse("nightly", AnswerForm.of(None, None))).with_outputs(REUSED, FAILED, main="requests")
    later_run = (rows | step)["requests"]
    checked = wait_for_row_check((first_run, later_run), (rows,), spec)
    assert [branch.element_type for branch in checked] == [Request, Request]
    assert checked[0] is not first_run
