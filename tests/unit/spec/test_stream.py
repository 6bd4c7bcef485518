"""Options of a stream that are refused."""

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec import StreamOptions


def test_a_window_divides_an_hour_so_that_each_hour_has_whole_ones():
    assert StreamOptions.parse({"window_seconds": 10}).window_seconds == 10
    with pytest.raises(JobSpecError, match="`window_seconds`: must divide an hour"):
        StreamOptions.parse({"window_seconds": 70})
