from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_llmbeam.pipeline.batch_inference import result_files as module
from airflow_provider_llmbeam.pipeline.batch_inference.result_files import result_files
from airflow_provider_llmbeam.providers.batch import BatchJob
from airflow_provider_llmbeam.providers.errors import ApiUnavailableError

RESULTS = b'{"key": "a"}\n{"key": "b"}\n'
PAGE = b"<html>\n<body>502 Bad Gateway</body>\n</html>\n"
CUT = RESULTS[:-5]
JOB = BatchJob(
    name="batches/1", display_name="d", state="", phase="succeeded", created_at=1.0, results=("files/1", "files/2")
)


class Provider:
    """A provider that sends one content after the other for its first file."""

    def __init__(self, *contents):
        self._contents = list(contents)

    def results(self, job):
        yield "files/1", self._first()
        yield "files/2", iter([RESULTS[:9], RESULTS[9:]])

    def _first(self):
        content = self._contents.pop(0)
        yield from (content[:1], content[1:])


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """Copies the files of a provider, and returns their contents."""
    waits = []
    monkeypatch.setattr(module.time, "sleep", waits.append)

    def copy(*contents):
        copies = [Path(uri).read_bytes() for uri in result_files(Provider(*contents), JOB, f"{tmp_path}/r")]
        return copies, waits

    return copy


@pytest.mark.parametrize("content", [RESULTS, RESULTS[:-1], RESULTS.replace(b"\n", b"\r\n"), b"", b"\n"])
def test_a_whole_file_is_read_once(copied, content):
    assert copied(content) == ([content, RESULTS], [])


@pytest.mark.parametrize("damaged", [PAGE, CUT])
def test_a_page_of_a_proxy_or_a_part_of_a_file_is_read_again(copied, caplog, damaged):
    assert copied(damaged, damaged, RESULTS) == ([RESULTS, RESULTS], [1.0, 5.0])
    assert caplog.text.count("Reading it again") == 2


def test_of_a_file_that_stays_cut_its_lines_are_used(copied):
    assert copied(CUT, CUT, CUT)[0] == [CUT, RESULTS]


def test_a_page_that_stays_is_no_result_and_the_paid_answers_are_kept(copied):
    with pytest.raises(ApiUnavailableError, match=r"files/1 of .*batches/1 has no line with .* are paid for"):
        copied(PAGE, PAGE, PAGE)
