"""plan: groups prompts into requests and orders them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.tokens import estimate_tokens
from airflow_provider_llmbeam.engine.value import value

#: Prompts with a common prefix of this many characters are sent one after the other: servers cache prefixes in
#: blocks of some dozen tokens, for a short time.
PREFIX_CHARACTERS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticBatching:
    """Limits of a server that computes the prompts of one request together, each padded to the longest.

    Attributes:
        max_padded_tokens: Maximum size of one request: number of prompts × tokens of the longest.
        max_instances: Maximum number of prompts per request.
        max_bytes: Maximum size of the prompts of one request, in bytes.
    """

    max_padded_tokens: int
    max_instances: int = 1024
    max_bytes: int = 1_500_000  # Vertex AI's limit of a `predict` request

    def within(self, max_padded_tokens: int, max_instances: int | None) -> StaticBatching:
        """Returns the stricter of these and the given limits; `None` keeps a limit."""
        return replace(
            self,
            max_padded_tokens=min(self.max_padded_tokens, max_padded_tokens),
            max_instances=min(self.max_instances, max_instances or self.max_instances),
        )


@value()
class PlannedRequest:
    """One request.

    Attributes:
        indices: Positions of its prompts in the batch.
        input_tokens: Estimated tokens of each prompt, in the same order.
    """

    indices: tuple[int, ...]
    input_tokens: tuple[int, ...]

    @property
    def padded_tokens(self) -> int:
        """Tokens that a static-batch server computes for this request."""
        return len(self.input_tokens) * max(self.input_tokens)


def plan(prompts: Sequence[Prompt], batching: StaticBatching | None = None) -> list[PlannedRequest]:
    """Divides a batch into requests, in the order in which they are sent.

    Args:
        prompts: The batch.
        batching: Limits of a static-batch server; `None` for a server that batches by itself (Gemini, vLLM): one
            prompt per request.

    Returns:
        Requests that contain each prompt once, the most expensive first, so that the last ones are short.
    """
    tokens = [prompt_tokens(prompt) for prompt in prompts]
    if batching is None:
        return [PlannedRequest((index,), (tokens[index],)) for index in _longest_first(prompts, tokens)]
    longest_first = sorted(range(len(prompts)), key=lambda index: -tokens[index])
    return [
        PlannedRequest(tuple(run), tuple(tokens[index] for index in run))
        for run in _cut(
            longest_first,
            tokens,
            [len(prompt.text.encode("utf-8", "surrogatepass")) for prompt in prompts],
            batching,
        )
    ]


def in_order(prompts: Sequence[Prompt], first: int = 0) -> list[PlannedRequest]:
    """Returns one request per prompt, in the order given; `first` is the position of the first prompt."""
    return [PlannedRequest((first + number,), (prompt_tokens(prompt),)) for number, prompt in enumerate(prompts)]


def padding_ratio(requests: Iterable[PlannedRequest]) -> float:
    """Returns the padding over all tokens that a static-batch server computes, 0 to 1."""
    real = padded = 0
    for request in requests:
        real += sum(request.input_tokens)
        padded += request.padded_tokens
    return 1 - real / padded if padded else 0.0


def prompt_tokens(prompt: Prompt) -> int:
    """Estimates the input tokens of a prompt, including the system text, media and history."""
    text_tokens = estimate_tokens(prompt.text) + (estimate_tokens(prompt.system) if prompt.system else 0)
    for turn in prompt.history:
        text_tokens += estimate_tokens(turn.text) + estimate_tokens(turn.answer)
    return text_tokens + prompt.media_tokens


def _longest_first(prompts: Sequence[Prompt], tokens: Sequence[int]) -> list[int]:
    """Sorts by length, descending; prompts with a common prefix stay together, at the position of the longest."""
    first_of: dict[str, int] = {}
    group = [
        first_of.setdefault(prompt.text[:PREFIX_CHARACTERS], index)
        if len(prompt.text) > PREFIX_CHARACTERS
        else index
        for index, prompt in enumerate(prompts)
    ]
    longest = list(tokens)
    for first, count in zip(group, tokens, strict=True):
        longest[first] = max(longest[first], count)
    return sorted(range(len(prompts)), key=lambda index: (-longest[group[index]], group[index], -tokens[index]))


def _cut(
    order: Iterable[int], tokens: Sequence[int], sizes: Sequence[int], batching: StaticBatching
) -> Iterable[list[int]]:
    """Cuts a descending order into runs; the first prompt of a run is its longest.

    Measured on ShareGPT-like lengths at about 32 prompts per request: cutting by padded tokens in a window of
    10,000 pads 1.8 %, sorting alone 6 %, powers of two 29 %, Beam's buckets 57 %, arrival order 87 %.
    """
    run: list[int] = []
    size = 0
    for index in order:
        is_full = run and (
            (len(run) + 1) * tokens[run[0]] > batching.max_padded_tokens
            or len(run) == batching.max_instances
            or size + sizes[index] > batching.max_bytes
        )
        if is_full:
            yield run
            run, size = [], 0
        run.append(index)
        size += sizes[index]
    if run:
        yield run
