"""Distilled stages, simulated and on real texts: `python -m bench.distilled simulate`, `texts`, `rows`.

`simulate`: vectors, labels and a small model are drawn at random; a job's own code learns, calibrates, and answers
all rows. `texts`: docstrings of the installed packages, without the names of packages; the label is the package,
and `model` is right on 97 % of them. `rows`: jobs with the echo model, and a free stage
before it, beside a graph with their shuffles alone. Nothing is sent.
"""

from __future__ import annotations

import argparse
import ast
import functools
import hashlib
import itertools
import json
import multiprocessing
import random
import re
import resource
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from airflow_provider_llmbeam.engine.tokens import estimate_tokens
from airflow_provider_llmbeam.pipeline.cascade.binomial import lower_bound, upper_bound
from airflow_provider_llmbeam.pipeline.cascade.calibration import Costs, Draw, StageAnswer, calibrate
from airflow_provider_llmbeam.pipeline.cascade.distilled.curve import LearningPoint, labels_pay, measure
from airflow_provider_llmbeam.pipeline.cascade.distilled.learn import Learned, Lesson, learn, weigh_vectors
from airflow_provider_llmbeam.pipeline.cascade.draw import draw_sample
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.providers.distilled.fit import Classifier, digest_of, read_fit
from airflow_provider_llmbeam.providers.distilled.vectors import hash_texts
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.distilled import ColumnVectors, HeadType, TfidfVectors, Vectors
from bench.cascade import CLASS_AGREEMENT, CONFIDENCE, GOOD, PROMPTS, Rows, final_agreement

COLUMN = ColumnVectors(type="column", column="vector")
TFIDF = TfidfVectors(type="tfidf")
HEADS = (HeadType(None, "one"),)
_INTERVAL = 0.995

#: Shares of the classes of a simulation, and the length of its vectors.
CLASSES = {"a": 0.42, "b": 0.36, "c": 0.20, "rare": 0.02}
DIMENSIONS = 8
SEPARATIONS = {"separable": 6.0, "half separable": 2.5, "not separable": 0.0}
SMALL_RIGHT, SMALL_COST = 0.85, 0.1

#: Prices of a million tokens of input and output, and output tokens of an answer: gemini-2.5-pro and
#: gemini-embedding-001. Source: ai.google.dev/gemini-api/docs/pricing (2026-11)
MODEL_USD, EMBEDDING_USD, OUTPUT_TOKENS = (1.25, 10.0), 0.15, 10
PACKAGES, ERRORS = 20, 0.03
#: Most docstrings of a package, before equal ones count once, and characters of each.
PACKAGE_TEXTS, TEXT = 2000, 400

#: What is measured with many rows: the fields of a stage before the echo model, or none.
SHUFFLES = "the shuffles of a job alone"
JOBS: dict[str, dict[str, Any] | None] = {
    SHUFFLES: None,
    "echo alone": None,
    "a column of 8 numbers": {"embedding": {"type": "column", "column": "vector"}},
    "TF-IDF": {"embedding": "tfidf", "prompt": "{{ row.text }}"},
}


@dataclass(frozen=True)
class Distilled:
    """What a classifier answers.

    Attributes:
        learned: What it has learned.
        choosing: Answer and score by the row of the draws that choose, of fits that have not seen it.
        answers: Answer and score of each row, by the fit.
    """

    learned: Learned
    choosing: dict[int, tuple[Any, float]]
    answers: list[tuple[Any, float]]


def teach(vectors: Any, labels: Sequence[str], drawn: Sequence[int], embedding: Vectors) -> Distilled:
    """Returns what a classifier answers that has learned from draws."""
    counts = Counter(drawn)
    rows = [*counts]
    lesson = Lesson(vectors[rows], [labels[row] for row in rows], np.array([*counts.values()], dtype=float))
    learned = learn(lesson, embedding, HEADS, has_schema=False, learned_from={})
    content = learned.fit.to_bytes()
    fit = read_fit(content, digest_of(content))
    answers = Classifier(fit).answer(weigh_vectors(fit, vectors))
    return Distilled(learned, dict(zip(rows, learned.answers, strict=True)), answers)


def draws_of(rows: Rows, distilled: Distilled, labels: Sequence[str], drawn: Sequence[int]) -> list[Draw]:
    """Returns draws whose first half has answers of other folds."""
    found = []
    for number, row in enumerate(drawn):
        draw = rows.draw(row)
        if number < len(drawn) // 2:
            answer, score = distilled.choosing[row]
            draw = Draw((StageAnswer(score, answer == labels[row], answer), *draw.stages[1:]), label=labels[row])
        found.append(draw)
    return found


@dataclass(frozen=True)
class Result:
    """What became of a simulated run."""

    misses: bool
    is_found: bool
    by_stage: tuple[float, ...]
    agreement: float
    rare: float


#: What is simulated of one source: the targets, each without and with a small model.
SETTINGS = [(target, has_small) for target in (0.90, 0.95) for has_small in (False, True)]


def simulate(separation: float, draws: int, seed: int) -> list[Result]:
    """Draws rows, learns, calibrates for each of `SETTINGS`, and counts all rows."""
    source = np.random.default_rng(seed)
    names = np.array([*CLASSES])
    classes = source.choice(len(names), PROMPTS, p=[*CLASSES.values()])
    labels = names[classes]
    vectors = source.standard_normal((PROMPTS, DIMENSIONS))
    vectors[np.arange(PROMPTS), classes] += separation
    weights = source.integers(1, 10, PROMPTS)
    drawn = [
        int(each) for each in draw_sample({f"{row:05d}": int(weights[row]) for row in range(PROMPTS)}, seed, draws)
    ]
    texts = labels.tolist()
    distilled = teach(vectors, texts, drawn[: draws // 2], COLUMN)
    answers = np.array([answer for answer, _ in distilled.answers])
    is_right = source.random(PROMPTS) < SMALL_RIGHT
    wrong = names[(classes + source.integers(1, len(names), PROMPTS)) % len(names)]
    distance = NormalDist().inv_cdf(GOOD) * 2**0.5
    every = Rows(
        weights,
        [
            np.array([score for _, score in distilled.answers]),
            source.standard_normal(PROMPTS) + distance * is_right,
        ],
        [answers == labels, is_right],
        labels,
        [answers, np.where(is_right, labels, wrong)],
    )
    found = []
    for target, has_small in SETTINGS:
        stages = 1 + has_small
        rows = replace(
            every,
            scores=every.scores[:stages],
            agrees=every.agrees[:stages],
            predicted=every.predicted[:stages],
        )
        calibration = calibrate(
            draws_of(rows, distilled, texts, drawn),
            Costs((0.0, SMALL_COST)[:stages], 1.0),
            target_agreement=target,
            confidence=CONFIDENCE,
            class_agreement=CLASS_AGREEMENT,
        )
        chosen = rows.choose(calibration)
        final = final_agreement(rows, chosen)
        agreement, of_classes = rows.share(final), rows.share_by_class(final)
        misses = any(of_classes[label] < CLASS_AGREEMENT for label in calibration.guaranteed or ())
        found.append(
            Result(
                misses=agreement < target or misses,
                is_found=not calibration.reason,
                by_stage=tuple(rows.share(chosen == stage) for stage in range(stages + 1)),
                agreement=agreement,
                rare=of_classes["rare"],
            )
        )
    return found


def run_simulation(runs: int, processes: int) -> int:
    """Prints the table of simulations; returns 1 if a setting misses its target more often than allowed."""
    titles = (
        "Setting",
        "Missed the target: 99 % interval",
        "Found a threshold",
        "Kept by the classifier",
        "By the small model",
        "Sent to `model`",
        "Agreement of the class of 2 %, mean",
    )
    sys.stdout.write(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}\n")
    is_missed, began = False, time.monotonic()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for name, separation in SEPARATIONS.items():
            every = pool.starmap(simulate, [(separation, 1000, seed) for seed in range(runs)], chunksize=5)
            for (target, has_small), *results in zip(SETTINGS, *every, strict=True):
                missed = sum(result.misses for result in results)
                low, high = lower_bound(missed, runs, _INTERVAL), upper_bound(missed, runs, _INTERVAL)
                is_missed |= low > 1 - CONFIDENCE
                shares = [fmean(each) for each in zip(*(result.by_stage for result in results), strict=True)]
                small = f"{shares[1]:.1%}" if has_small else "–"
                sys.stdout.write(
                    f"| {name}, {target:.2f}, {'small model' if has_small else 'alone'} "
                    f"| {missed / runs:.1%}: {low:.1%}–{high:.1%} "
                    f"| {fmean(result.is_found for result in results):.0%} | {shares[0]:.1%} | {small} "
                    f"| {shares[-1]:.1%} | {fmean(result.rare for result in results):.1%} |\n"
                )
            sys.stdout.flush()
    sys.stdout.write(f"\n{runs} runs of each, {time.monotonic() - began:.0f} s\n")
    return int(is_missed)


def read_docstrings(seed: int = 0) -> tuple[list[str], list[str]]:
    """Returns docstrings of public functions and classes of the largest packages, and the package of each."""
    root, source = Path(sysconfig.get_paths()["purelib"]), random.Random(seed)
    files: dict[str, list[Path]] = {}
    for path in sorted(root.rglob("*.py")):
        files.setdefault(path.relative_to(root).parts[0].removesuffix(".py"), []).append(path)
    found: dict[str, list[str]] = {}
    for package, paths in files.items():
        source.shuffle(paths)
        # Half of all docstrings are of one package: its files are read until it has its share.
        distinct = dict.fromkeys(
            itertools.islice(itertools.chain.from_iterable(map(_read_file, paths)), PACKAGE_TEXTS)
        )
        found[package] = [*distinct]
    largest = sorted(found, key=lambda package: (-len(found[package]), package))[:PACKAGES]
    names = re.compile("|".join(sorted(map(re.escape, found), key=len, reverse=True)), re.IGNORECASE)
    # Word by word, each once: 100,000 texts against 300 names took longer than all that follows.
    mask = functools.cache(lambda word: names.sub("NAME", word))
    # A text of several packages has the first one as its label.
    label_of: dict[str, str] = {}
    for package in largest:
        for text in found[package]:
            label_of.setdefault(re.sub(r"\w+", lambda word: mask(word[0]), text), package)
    texts = sorted(label_of)
    source.shuffle(texts)
    return texts, [label_of[text] for text in texts]


def _read_file(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_text())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_":
            text = ast.get_docstring(node)
            if text and len(text) >= 40:
                yield text[:TEXT]


def reduce_texts(hashed: Any) -> Any:
    """Returns vectors of 256 numbers, by a decomposition of the first 5,000 texts: no model is at hand here."""
    from sklearn.decomposition import TruncatedSVD

    numbers = np.bincount(hashed.indices, minlength=hashed.shape[1])
    weighted = hashed.multiply(1 + np.log((1 + hashed.shape[0]) / (1 + numbers))).tocsr()
    vectors = TruncatedSVD(256, random_state=0, n_iter=2).fit(weighted[:5000]).transform(weighted)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1), 1e-9)[:, None]


def run_texts() -> int:
    """Prints learning curves, and what is kept, saved and right on real texts."""
    began, used = time.monotonic(), time.process_time()
    texts, right = read_docstrings()
    names = sorted(set(right))
    source = random.Random(1)
    answers = [
        source.choice([name for name in names if name != label]) if source.random() < ERRORS else label
        for label in right
    ]
    sizes = Counter(right).most_common()
    sys.stdout.write(f"{len(texts):,} texts; {', '.join(f'{name} {size:,}' for name, size in sizes)}\n\n")
    tokens = sum(map(estimate_tokens, texts))
    model_usd = (tokens * MODEL_USD[0] + len(texts) * OUTPUT_TOKENS * MODEL_USD[1]) / 1e6
    embedding_usd = tokens * EMBEDDING_USD / 1e6
    for line in (
        "| Vectors | Target | `class_agreement` | Labels | Kept | Agreement of all rows | Right "
        "| All by `model` | Cascade | Saved | Batch of all |",
        f"|{'---|' * 11}",
    ):
        sys.stdout.write(line + "\n")
    curves = []
    hashed = hash_texts(texts)
    for name, embedding, vectors in (
        ("256 dimensions", COLUMN, reduce_texts(hashed)),
        ("TF-IDF", TFIDF, hashed),
    ):
        for target, draws in ((0.90, 500), (0.95, 1000)):
            learned = _Text(answers, vectors, embedding, target, draws)
            for class_agreement in (CLASS_AGREEMENT, 0.5):
                kept = learned.keep(class_agreement)
                final = [
                    mine if is_kept else answer
                    for mine, is_kept, answer in zip(learned.mine, kept, answers, strict=True)
                ]
                asked = {row for row, is_kept in enumerate(kept) if not is_kept} | learned.labelled
                # Without a threshold, only the sample has embeddings.
                embedded = (len(texts) if any(kept) else len(learned.labelled)) if embedding is COLUMN else 0
                cascade = (model_usd * len(asked) + embedding_usd * embedded) / len(texts)
                agree, are_right = (
                    fmean(one == two for one, two in zip(final, others, strict=True))
                    for others in (answers, right)
                )
                sys.stdout.write(
                    f"| {name} | {target:.2f} | {class_agreement:.2f} | {learned.curve[-1].labels:,} "
                    f"| {fmean(kept):.1%} | {agree:.2%} | {are_right:.2%} | ${model_usd:.2f} "
                    f"| ${cascade:.2f} | {1 - cascade / model_usd:.1%} | ${model_usd / 2:.2f} |\n"
                )
                sys.stdout.flush()
            curves.append((name, target, learned.curve))
    sys.stdout.write(
        "\n| Vectors | Target | Labels | Agreement, cross-fitted | Could keep |\n|---|---|---|---|---|\n"
    )
    for name, target, curve in curves:
        for point in curve:
            sys.stdout.write(
                f"| {name} | {target:.2f} | {point.labels:,} | {point.agreement:.1%} | {point.kept:.1%} |\n"
            )
    sys.stdout.write(f"\n{time.monotonic() - began:.0f} s, {time.process_time() - used:.0f} s of CPU time\n")
    return 0


class _Text:
    """A cascade of a classifier and `model` over texts, with more labels while they pay."""

    def __init__(
        self,
        answers: Sequence[str],
        vectors: Any,
        embedding: Vectors,
        target: float,
        draws: int,
        max_labels: int = 2000,
    ) -> None:
        weights = {f"{row:06d}": 1 for row in range(len(answers))}
        drawn = [int(each) for each in draw_sample(weights, 0, draws + max_labels)]
        first, tested, more = drawn[: draws // 2], drawn[draws // 2 : draws], 0

        def learned(lessons: Sequence[int]) -> tuple[Distilled, LearningPoint]:
            distilled = teach(vectors, answers, lessons, embedding)
            counts = Counter(lessons)
            found = [distilled.choosing[row] for row in counts]
            is_right = [answer == answers[row] for row, (answer, _) in zip(counts, found, strict=True)]
            return distilled, measure([score for _, score in found], is_right, [*counts.values()], target)

        self.curve = [learned(first[: len(first) // part])[1] for part in (4, 2)]
        while True:
            lessons = first + drawn[draws : draws + more]
            distilled, point = learned(lessons)
            self.curve.append(point)
            labels = min(len(first) + more, max_labels - more)
            if not labels_pay(self.curve, rows=len(answers), labels=labels):
                break
            more += labels
        self.mine = [answer for answer, _ in distilled.answers]
        self.labelled = {*lessons, *tested}
        self._scores, self._target = [score for _, score in distilled.answers], target

        def draw(row: int, answer: str, score: float) -> Draw:
            return Draw((StageAnswer(score, answer == answers[row], answer),), label=answers[row])

        self._draws = [
            *(draw(row, *distilled.choosing[row]) for row in first),
            *(draw(row, *distilled.answers[row]) for row in tested),
        ]

    def keep(self, class_agreement: float) -> list[bool]:
        """Returns whether the classifier answers, for each row."""
        calibration = calibrate(
            self._draws,
            Costs((0.0,), 1.0),
            target_agreement=self._target,
            confidence=CONFIDENCE,
            class_agreement=class_agreement,
        )
        sys.stderr.write(f"{calibration.reason or 'found a threshold'}\n")
        (threshold,) = calibration.thresholds
        return [
            threshold is not None and score >= threshold and answer in (calibration.guaranteed or ())
            for answer, score in zip(self.mine, self._scores, strict=True)
        ]


def run_rows(rows: int) -> int:
    """Prints rows per second and memory of jobs with the echo model, and of a graph with their shuffles alone."""
    titles = ("Job", "Rows", "Kept by the stage", "Rows per s", "CPU time per row", "Peak memory")
    sys.stdout.write(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}\n")
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        _write_rows(Path(folder, "rows.jsonl"), rows)
        for name, embedding in JOBS.items():
            process = context.Process(target=_measure_job, args=(name, embedding, rows, folder))
            process.start()
            process.join()
    return 0


def _measure_job(name: str, embedding: dict[str, Any] | None, rows: int, folder: str) -> None:
    began, used = time.monotonic(), time.process_time()
    kept = _run_shuffles(folder) if name == SHUFFLES else _run_job(embedding, f"{folder}/{name}", folder)
    seconds, cpu = time.monotonic() - began, time.process_time() - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(
        f"| {name} | {rows:,} | {kept / rows:.1%} | {rows / seconds:,.0f} | {cpu / rows * 1e6:.0f} µs "
        f"| {peak:,.0f} MiB |\n"
    )
    sys.stdout.flush()


def _write_rows(path: Path, rows: int) -> None:
    source = random.Random(0)
    with path.open("w") as file:
        for number in range(rows):
            label = source.choice("abcd")
            words = " ".join(f"{label if source.random() < 0.5 else 'w'}{source.randrange(50)}" for _ in range(12))
            vector = [round(source.gauss(2.5 * (place == "abcd".index(label)), 1), 3) for place in range(8)]
            file.write(json.dumps({"id": number, "label": label, "text": words, "vector": vector}) + "\n")


def _run_shuffles(folder: str) -> int:
    """Runs a graph with what each job shuffles, rows by prompt and lines by file, and nothing else."""

    def key(line: str) -> tuple[str, tuple[dict[str, Any], str]]:
        row = json.loads(line)
        return hashlib.sha256(row["text"].encode()).hexdigest(), (row, row["text"])

    def answer(group: tuple[str, Iterable[tuple[dict[str, Any], str]]]) -> Iterator[tuple[int, bytes]]:
        for row, text in group[1]:
            yield 0, json.dumps({**row, "answer": text, "fingerprint": group[0]}).encode() + b"\n"

    def write(group: tuple[int, Iterable[bytes]]) -> None:
        with Path(folder, "shuffled.jsonl").open("wb") as file:
            file.writelines(group[1])

    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        lines = pipeline | beam.io.ReadFromText(f"{folder}/rows.jsonl")
        answers = lines | beam.Map(key) | "ByPrompt" >> beam.GroupByKey() | beam.FlatMap(answer)
        _ = answers | "ByFile" >> beam.GroupByKey() | beam.Map(write)
    return 0


def _run_job(embedding: dict[str, Any] | None, place: str, folder: str) -> int:
    """Runs a job, and returns the number of rows that its stage keeps."""
    schema = {"type": "object", "properties": {"label": {"type": "string", "enum": [*"abcd"]}}}
    spec: dict[str, Any] = {
        "name": "rows",
        "source": {"uri": f"{folder}/rows.jsonl", "key": ["id"]},
        # The echo model answers with the prompt. Of two equal names, JSON of Python takes the last one: with a
        # field more than the schema has, no answer of a classifier would agree.
        "prompt": {
            "template": '{"label": "{{ row.text }}", "label": "{{ row.label }}"}',
            "output_schema": {**schema, "required": ["label"]},
        },
        "model": "echo",
        "limits": {"price": {"input_usd_per_million_tokens": 1, "output_usd_per_million_tokens": 1}},
        "sink": {"uri": f"{place}/out"},
        "state_uri": f"{place}/state",
    }
    if embedding is not None:
        spec["cascade"] = {
            "stages": [{"type": "distilled", "max_labels": 0, **embedding}],
            "target_agreement": 0.9,
        }
    stages = (run(JobSpec.parse(spec))["cascade"] or {"stages": [{}]})["stages"]
    return int(stages[0].get("answered", 0))


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a table; returns 1 if a simulated setting misses its target more often than allowed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["simulate", "texts", "rows"])
    parser.add_argument(
        "--rows", type=int, default=1_000_000, metavar="N", help="rows of a job (default: 1,000,000)"
    )
    parser.add_argument("--runs", type=int, default=400, metavar="N", help="runs of each setting (default: 400)")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="processes (default: 1)")
    options = parser.parse_args(arguments)
    if options.what == "rows":
        return run_rows(options.rows)
    return run_texts() if options.what == "texts" else run_simulation(options.runs, options.processes)


if __name__ == "__main__":
    sys.exit(main())
