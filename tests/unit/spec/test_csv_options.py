from __future__ import annotations

import io
from typing import Any

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.sources.files import RowFormat, parse_csv
from airflow_provider_llmbeam.spec.source import CsvOptions, FilesSource


def read(text: str, **options: Any) -> list[Any]:
    return list(parse_csv(io.StringIO(text, newline=""), RowFormat("csv", CsvOptions.parse(options))))


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("id\ttext\n1\ta;b\n", {"delimiter": "\t"}),
        ("id;text\n1;'a;b'\n", {"delimiter": ";", "quotechar": "'"}),
        ("id;text\n1;a\\;b\n", {"delimiter": ";", "escapechar": "\\", "quotechar": None}),
        ("1,a;b\n", {"header": None, "names": ["id", "text"]}),
        ("number,words\n1,a;b\n", {"names": ["id", "text"]}),
        ("made by x\n\nid,text\n1,a;b\n", {"skiprows": 2}),
    ],
)
def test_a_file_is_read_as_it_is_written(text: str, options: dict[str, Any]) -> None:
    assert read(text, **options) == [{"id": "1", "text": "a;b"}]


def test_a_quote_is_text_where_cells_are_never_quoted() -> None:
    assert read('id,text\n1,5" disk\n', quotechar=None) == [{"id": "1", "text": '5" disk'}]


def test_skipped_lines_are_counted_in_the_messages() -> None:
    (odd,) = read('x\nid,text\n1,"a"b\n', skiprows=1)
    assert odd.failure.message.startswith("not CSV near line 3: ")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"delimiter": "tab"}, r"`delimiter`: must be one character, e\.g\. \";\", or .* for a tab; got 'tab'"),
        ({"quotechar": ""}, "`quotechar`: must be one character"),
        ({"encoding": "utf8x"}, r"`encoding`: must be an encoding of Python, e\.g\. 'utf-8'.*got 'utf8x'"),
        ({"encoding": "base64"}, "`encoding`: must be an encoding of Python"),
        ({"header": None}, "needs `names`, the names of the columns, where `header` is None"),
        ({"names": ["a", "a"]}, "must name each column once in `names`"),
        ({"delimiter": '"'}, "must have different characters for `delimiter` and `quotechar`"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(JobSpecError, match=expected):
        CsvOptions.parse(options)


def test_options_for_another_format_are_refused() -> None:
    with pytest.raises(JobSpecError, match="has `csv` options, and its format is 'parquet': set `format` to"):
        FilesSource.parse({"uri": "a.parquet", "key": ["id"], "csv": {"delimiter": ";"}})
