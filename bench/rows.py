"""Creates the rows of a job, which are the same for every contender and every repeat."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, TypedDict, get_args

RowKind = Literal["short", "duplicates", "heavy-tailed", "sharegpt"]
ROW_KINDS: tuple[RowKind, ...] = get_args(RowKind)

#: Number of bytes per token, as in both the sandbox and our engine.
BYTES_PER_TOKEN = 4
#: Number of words in an answer: the sandbox answers with the first eight words of the prompt's first 2,000
#: characters and a marker of about 36 characters, so long words result in long answers.
ANSWER_WORDS = 8
LONGEST_ANSWER_TOKENS = 450
#: Mean and sigma of the log-normal lengths of ShareGPT prompts, in tokens.
SHAREGPT_MEAN_TOKENS, SHAREGPT_SIGMA = 161.0, 1.3


class Row(TypedDict):
    """One input record."""

    id: int
    text: str


def make_rows(kind: RowKind, count: int, seed: int = 7) -> list[Row]:
    """Creates the rows of a job; each text contains the name of its row, so that a swapped answer is detected.

    Raises:
        ValueError: `kind` is unknown.
    """
    if kind not in ROW_KINDS:
        raise ValueError(f"`kind` must be one of {', '.join(ROW_KINDS)}; got {kind!r}.")
    rng = random.Random(seed)
    texts = {
        "short": _short,
        "duplicates": _duplicates,
        "heavy-tailed": _heavy_tailed,
        "sharegpt": _sharegpt,
    }[kind](count, rng)
    return [Row(id=number, text=text) for number, text in enumerate(texts)]


def write_rows(target: Path, texts: Iterable[str]) -> None:
    """Writes a row of each text to a file of JSON lines."""
    with target.open("w") as lines:
        for number, text in enumerate(texts):
            lines.write(json.dumps(Row(id=number, text=text)) + "\n")


def input_tokens(rows: list[Row]) -> int:
    """Counts the tokens of all rows; the count of each row is rounded up, as by the servers."""
    return sum(-(-len(row["text"].encode()) // BYTES_PER_TOKEN) for row in rows)


def _short(count: int, rng: random.Random) -> Iterator[str]:
    for number in range(count):
        yield f"row{number} is one of {count} rows, {rng.randrange(10**6)} its number"


def _duplicates(count: int, rng: random.Random) -> list[str]:
    """Returns rows of which a quarter repeat an earlier row, at random positions."""
    distinct = list(_short(count - count // 4, rng))
    texts = [*distinct, *rng.sample(distinct, count // 4)]
    rng.shuffle(texts)
    return texts


def _heavy_tailed(count: int, rng: random.Random) -> Iterator[str]:
    """Yields rows of about 400 input tokens (32 to 8,000) and, independently, 100 output tokens on average."""
    for number in range(count):
        in_tokens = _log_normal(rng, mean=400, sigma=1.2, low=32, high=8000)
        out_tokens = _log_normal(rng, mean=100, sigma=1.0, low=24, high=LONGEST_ANSWER_TOKENS)
        answer_bytes = out_tokens * BYTES_PER_TOKEN - 40
        word = "x" * max(1, answer_bytes // (ANSWER_WORDS - 1))
        head = " ".join([f"row{number}", *[word] * (ANSWER_WORDS - 1)])
        yield head + " tail" * max(0, (in_tokens * BYTES_PER_TOKEN - len(head)) // len(" tail"))


def _sharegpt(count: int, rng: random.Random) -> Iterator[str]:
    for number in range(count):
        tokens = _log_normal(rng, mean=SHAREGPT_MEAN_TOKENS, sigma=SHAREGPT_SIGMA, low=2, high=8192)
        yield f"row{number} ".ljust(tokens * BYTES_PER_TOKEN, "x")[: max(8, tokens * BYTES_PER_TOKEN)]


def _log_normal(rng: random.Random, *, mean: float, sigma: float, low: int, high: int) -> int:
    length = rng.lognormvariate(math.log(mean) - sigma**2 / 2, sigma)
    return int(min(high, max(low, round(length))))
