"""Successful replies of model servers: their JSON, and values beside an answer, believed only within bounds.

Without an HTTP client, which takes 0.1 s to import.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NotRequired, TypedDict

from airflow_provider_llmbeam.engine.logprobs import TokenLogprob
from airflow_provider_llmbeam.engine.plan import prompt_tokens
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.engine.tokens import BYTES_PER_TOKEN
from airflow_provider_llmbeam.spec.characters import valid_text
from airflow_provider_llmbeam.spec.facts import REPORTED_TIERS
from airflow_provider_llmbeam.spec.model.tier import AskedTier, ServiceTier
from airflow_provider_llmbeam.transport.server_reply import body_error, list_of, mapping_of, parse_json, str_of

#: Description of a chunk of a stream that is none, see `json_object`.
NO_CHUNK = "streamed, with a chunk that is no JSON object"
#: No headers.
EMPTY: Mapping[str, str] = MappingProxyType({})

_log = logging.getLogger(__name__)

#: Largest number of tokens of one reply that is believed: twice the longest context window of a served model
#: (10 million, Llama 4 Scout). A larger one would stall the governor of the machine, and spend the budget.
MAX_TOKENS = 20_000_000
#: Maximum length of the name of a model or of a finish reason.
_NAME_CHARACTERS = 128
#: Smallest logarithm of a probability that is believed; servers clip theirs at -9999 or above.
_LEAST_LOGPROB = -1e6


def believable_tokens(reported: Any) -> int | None:
    """Returns a reported number of tokens; `None` for a value that cannot be one.

    Integral floats count, as Vertex AI sends every number of a prediction as a double.
    """
    if type(reported) is float and reported.is_integer():
        reported = int(reported)
    return reported if type(reported) is int and 0 <= reported <= MAX_TOKENS else None


class Billed(TypedDict):
    """Billed tokens of a reply, and their tier, as `Reply` and `RequestError` take them."""

    tokens: Tokens
    service_tier: NotRequired[ServiceTier]


def tier_of(reported: Any, asked: AskedTier | None = None) -> ServiceTier:
    """Returns the tier that a server reports; `standard` for another name.

    If it reports none, it is the dearer one of `standard` and the tier that was asked for.
    """
    if isinstance(reported, str):
        return REPORTED_TIERS.get(reported.lower(), "standard")
    return "priority" if asked == "priority" else "standard"


class UsageReader:
    """Reads the usage of replies; a number that is absent or cannot be true becomes an estimate, with one warning.

    Args:
        model: Name of the model, for the warning.
        asked_tier: Tier that the requests ask for; the first reply that was served at another one is named in the
            log. `None` for batch inference and vectors, which have no tiers.
        is_documented: Whether the service documents a usage; where it does not, an estimate is no news.
    """

    def __init__(self, model: str, asked_tier: AskedTier | None = None, *, is_documented: bool = True) -> None:
        self._model = model
        self._is_documented = is_documented
        self._asked_tier = asked_tier
        self._has_warned = False
        self._has_warned_of_tier = False

    def tokens(self, reported: Any) -> int | None:
        """Returns a reported number of tokens; `None` if the server reports none, or none that can be true."""
        found = believable_tokens(reported)
        if found is None and reported is not None:
            self._warn(reported)
        return found

    def count(self, reported: Any, estimate: int) -> tuple[int, int]:
        """Returns a number of billed tokens, and how many of them are an estimate.

        Args:
            reported: The number as reported. Some servers report 0 instead of none.
            estimate: Tokens by the length of the text, which replace no number, 0, and one that cannot be true.
        """
        if found := self.tokens(reported):
            return found, 0
        if estimate and not reported and self._is_documented:
            self._warn(reported)
        return estimate, estimate

    def cached(self, reported: Any, input_tokens: int) -> int:
        """Returns the input tokens that came from the provider's cache: at most all of them."""
        return min(self.tokens(reported) or 0, input_tokens)

    def audio(self, reported: Any, cached: Any, most: int) -> int:
        """Returns the input tokens of audio that did not come from the provider's cache: at most `most`.

        Args:
            reported: Tokens of audio.
            cached: Those of them that came from the cache.
            most: Input tokens that did not come from the cache.
        """
        return max(0, min((self.tokens(reported) or 0) - (self.tokens(cached) or 0), most))

    def tier(self, reported: Any) -> ServiceTier:
        """Returns the tier that a server reports, see `tier_of`."""
        found = tier_of(reported, self._asked_tier)
        is_as_asked = self._asked_tier in (None, found) or found in ("provisioned", "off_peak")
        if not is_as_asked and not self._has_warned_of_tier:
            self._has_warned_of_tier = True
            _log.warning(
                "A request for the %s tier was served at the tier %r, by the server's reply, and is billed at "
                "that price. `service_tiers` of the report counts the answers of each tier; further ones are not "
                "logged.",
                self._asked_tier,
                found,
            )
        return found

    def _warn(self, reported: Any) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        fault = f"a number of tokens that cannot be true: {_shown(reported)}" if reported else "no usage of tokens"
        _log.warning(
            "Model %r reports %s. Expected a whole number from 1 to %s. Such a number is replaced by an estimate "
            "from the length of the text, in the records, for the pacing and for `limits.budget_usd`; "
            "`tokens.estimated` of the report counts them. Further ones are not logged.",
            self._model,
            fault,
            f"{MAX_TOKENS:,}",
        )


def estimated_prompt(prompt: Prompt) -> int:
    """Returns the estimated tokens of a prompt; 0 for one that is not known, as those of batch results."""
    return prompt_tokens(prompt) if prompt.text or prompt.media else 0


def estimated_text(text: str) -> int:
    """Returns the estimated tokens of an answer, rounded up as they are billed; 0 for an empty one."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


def name_of(reported: Any, fallback: str) -> str:
    """Returns a short printable name that a server reports; `fallback` for any other value."""
    if not isinstance(reported, str):
        return fallback
    if len(reported) <= _NAME_CHARACTERS and reported.isprintable():
        return reported.strip() or fallback
    text = valid_text(reported[:_NAME_CHARACTERS])
    return "".join(letter for letter in text if letter.isprintable()).strip() or fallback


def finish_reason_of(reported: Any) -> str:
    """Returns a finish reason: `stop` if the server reports none, `unknown` for a value that is no name."""
    return name_of(reported, "stop" if reported is None or reported == "" else "unknown")


def logprob_of(reported: Any) -> float | None:
    """Returns the natural logarithm of a probability, or a mean of them; `None` for a value that is none."""
    return float(reported) if type(reported) in (int, float) and _LEAST_LOGPROB <= reported <= 0 else None


def token_logprobs_of(tokens: Any, text: str, logprob: str) -> tuple[TokenLogprob, ...]:
    """Returns the tokens of an answer with their log-probabilities, without those that have none.

    Args:
        tokens: What a server reports of each token.
        text: Name of the field with the token.
        logprob: Name of the field with the natural logarithm of its probability.
    """
    found = ((str_of(each.get(text)), logprob_of(each.get(logprob))) for each in map(mapping_of, list_of(tokens)))
    return tuple((token, value) for token, value in found if value is not None)


def _shown(reported: Any) -> str:
    try:
        return repr(reported)[:100]
    except (RecursionError, ValueError):  # a deep value; an integer of more than 4,300 digits
        return type(reported).__name__


#: Parses an error response from its status, its headers and its body.
ErrorOf = Callable[[int, Mapping[str, str], str], RequestError]


def json_object(
    content: bytes, description: str, error_of: ErrorOf, headers: Mapping[str, str] = EMPTY
) -> dict[str, Any]:
    """Parses the body of a successful response, or a chunk of a stream; an error in it is that of the response.

    Args:
        content: The body.
        description: Description of any other body, for the error after "a 200 that is".
        error_of: Parses an error of this server.
        headers: Headers of the response.

    Raises:
        RequestError: The body is an error, or is not a JSON object.
    """
    body = parse_json(content)
    if not isinstance(body, dict):
        raise invalid_response(content, description)
    if (fault := body_error(body)) is not None:
        error, usage = error_of(fault[0], headers, fault[1]), mapping_of(body.get("usage"))
        counts = (believable_tokens(usage.get(f"{name}_tokens")) or 0 for name in ("prompt", "completion"))
        error.tokens = Tokens(*counts)  # billed all the same
        raise error
    return body


def invalid_response(content: bytes, description: str, **billed: Any) -> RequestError:
    """Returns the error of a successful response without an answer, which quotes its body; see `Billed`."""
    body = content[:500].decode("utf-8", "replace")
    return RequestError("garbage", f"a 200 that is {description}: {body}", http_status=200, **billed)
