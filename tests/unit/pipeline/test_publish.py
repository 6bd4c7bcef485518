from __future__ import annotations

from collections import Counter

import pytest

from airflow_provider_llmbeam.exceptions import RowsLostError
from airflow_provider_llmbeam.pipeline.account import Tally
from airflow_provider_llmbeam.pipeline.publish import check_sums


def test_sums_that_fit_pass() -> None:
    check_sums(Tally(read=3, answered=Counter(fresh=1, duplicate=1), dead=Counter(blocked=1)))
    check_sums(Tally())


@pytest.mark.parametrize("rows_read", [2, 4])
def test_a_row_too_few_or_too_many_stops_the_publication(rows_read: int) -> None:
    with pytest.raises(
        RowsLostError, match=rf"^{rows_read} rows read, but 2 answered \+ 1 in the dead letter = 3\."
    ):
        check_sums(Tally(read=rows_read, answered=Counter(fresh=2), dead=Counter(blocked=1)))
