"""The task in which a person reviews one answer, with Airflow's own form.

It is an operator of the standard provider, whose import costs a Dag file that reviews nothing 3,000 calls: this
module is imported where a review is made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk.definitions.param import Param, ParamsDict

from airflow_provider_llmbeam.redaction import visible

if TYPE_CHECKING:
    from airflow.sdk import Context

ACCEPT, LEAVE_OUT = "Accept", "Leave out"
#: Maximum length of a subject, in characters. Airflow keeps 250 of a named map index.
MAX_SUBJECT = 120
_INTRODUCTION = (
    f"The model's answer to this row is in the fields. Correct what is wrong. **{ACCEPT}** makes their values the "
    f"expected ones of a golden row; **{LEAVE_OUT}** makes no golden row.\n\n"
)


class ReviewAnswerOperator(HITLOperator):
    """Shows a row and its answer to a person, who accepts, corrects or leaves it out.

    Airflow renders no field of it: row and answer are texts of others, and `{{ conn.… }}` in one of them would be
    executed. Values that `expand_kwargs` takes from an XCom are rendered (Airflow 3.3).

    Args:
        review: The answer, one of `reviews` of `pipeline.measure.review`, as JSON.
        kwargs: Arguments of `HITLOperator`.

    XCom:
        The verdict as JSON text, see `spec.evaluation.Verdict`.
    """

    template_fields: Sequence[str] = ()

    def __init__(self, *, review: str, **kwargs: Any) -> None:
        self.review: dict[str, Any] = json.loads(review)
        # Airflow adds the params of the Dag, which are no fields of this form.
        kwargs.pop("params", None)
        super().__init__(
            subject=subject(self.review),
            body=form_body(self.review["row"]),
            options=[ACCEPT, LEAVE_OUT],
            # The form highlights it alone. Airflow also records it for an answer that nobody reviews in time;
            # `verdict` accepts none of these.
            defaults=[ACCEPT],
            **kwargs,
        )
        self.params = ParamsDict(
            {name: Param(field["value"], schema=field["schema"]) for name, field in self.review["form"].items()}
        )

    def execute_complete(self, context: Context, event: dict[str, Any]) -> str:
        """Makes a verdict of the response; Airflow calls it."""
        return json.dumps(verdict(self.review, super().execute_complete(context, event)))


def subject(review: Mapping[str, Any]) -> str:
    """Returns the row and its answer in one line, e.g. `T103-00109 · label = delivery`.

    Args:
        review: The answer.
    """
    fields = ", ".join(f"{name} = {_line(field['value'])}" for name, field in review["form"].items())
    return _cut(f"{_cut(', '.join(map(_line, json.loads(review['key']).values())))} · {fields}", MAX_SUBJECT)


def _line(value: Any) -> str:
    return " ".join(visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).split())


def _cut(text: str, limit: int = MAX_SUBJECT // 2) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def form_body(row: Mapping[str, str]) -> str:
    """Returns the text above the form, in Markdown; the row is in one block of code, which nothing in it can end.

    Args:
        row: Columns that are shown, as texts.
    """
    lines = []
    for name, text in row.items():
        is_short = len(text.splitlines()) < 2
        lines.append(f"{' '.join(visible(name).split())}:{' ' if is_short else chr(10)}{visible(text)}")
    shown = "\n".join(lines)
    fence = "`" * (max((len(run) for run in re.findall("`+", shown)), default=0) + 3)
    return f"{_INTRODUCTION}{fence}text\n{shown}\n{fence}"


def verdict(review: Mapping[str, Any], response: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the verdict of a response, as plain data.

    Args:
        review: The answer.
        response: Result of `HITLOperator`.

    Raises:
        ValueError: A field for JSON text holds none; a retry asks again.
    """
    form, given = review["form"], response["params_input"] or {}
    user = response["responded_by_user"]  # `None` if nobody has answered in time
    return {
        "review_uri": review["review_uri"],
        "key": review["key"],
        "is_accepted": user is not None and response["chosen_options"] == [ACCEPT],
        "values": {
            name: _value(name, given.get(name, field["value"]), is_json=field["is_json"])
            for name, field in form.items()
        },
        "reviewed_by": user and user["name"],
        "reviewed_at": response["responded_at"].isoformat(),
    }


def _value(name: str, entered: Any, *, is_json: bool) -> Any:
    if not is_json:
        return entered
    try:
        return json.loads(entered)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"The field {name!r} must hold JSON; got {str(entered)[:80]!r} ({error}). Nothing was written. Clear "
            "this task, or let it retry, and answer the review again."
        ) from None
