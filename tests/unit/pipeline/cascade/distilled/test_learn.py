from __future__ import annotations

import json

import numpy as np
import pytest

from airflow_provider_llmbeam.pipeline.cascade.distilled.learn import Lesson, learn, make_vectors, weigh_vectors
from airflow_provider_llmbeam.providers.distilled.fit import Classifier, FitError, digest_of, read_fit
from airflow_provider_llmbeam.spec import ColumnVectors, TfidfVectors
from airflow_provider_llmbeam.spec.distilled import HeadType, find_heads

COLUMN = ColumnVectors(type="column", column="vector")
TFIDF = TfidfVectors(type="tfidf")
SCHEMA = {
    "properties": {
        "label": {"enum": ["a", "b", "c"]},
        "urgent": {"type": "boolean"},
        "stars": {"type": "integer", "minimum": 1, "maximum": 3},
        "tags": {"type": "array", "items": {"enum": ["x", "y"]}},
    }
}


def lesson(rows: int = 300) -> Lesson:
    source = np.random.default_rng(0)
    classes = source.integers(3, size=rows)
    vectors = source.normal(size=(rows, 6)) * 0.2
    vectors[np.arange(rows), classes] += 2
    values = [
        {"label": "abc"[each], "urgent": bool(each), "stars": int(each) + 1, "tags": ["x", "y"][:each]}
        for each in classes
    ]
    return Lesson(vectors, values, np.ones(rows))


def test_several_fields_a_scale_and_a_list_are_learned_and_answered_by_the_json_alone():
    taught = lesson()
    learned = learn(taught, COLUMN, find_heads(SCHEMA), has_schema=True, learned_from={"prompt": "p"})
    assert [answer for answer, _ in learned.answers] == taught.values
    content = learned.fit.to_bytes()
    fit = read_fit(content, digest_of(content))
    assert fit == learned.fit
    answers = Classifier(fit).answer(weigh_vectors(fit, taught.vectors))
    assert [answer for answer, _ in answers] == taught.values
    assert all(score <= 0 for _, score in answers)


def test_scores_are_logarithms_of_the_probability_to_be_right():
    source = np.random.default_rng(1)
    classes = source.integers(2, size=2000)
    vectors = source.normal(size=(2000, 3))
    vectors[:, 0] += classes
    values = [{"label": "ab"[each]} for each in classes]
    taught = Lesson(vectors, values, np.ones(2000))
    learned = learn(taught, COLUMN, (HeadType("label", "one"),), has_schema=True, learned_from={})
    right = np.mean([answer == value for (answer, _), value in zip(learned.answers, values, strict=True)])
    assert np.mean(np.exp([score for _, score in learned.answers])) == pytest.approx(right, abs=0.03)


def test_words_of_texts_are_learned():
    texts = [
        f"{['good', 'great', 'fine'][n % 3] if n % 2 else ['bad', 'awful', 'poor'][n % 3]} {n}" for n in range(60)
    ]
    values = ["yes" if n % 2 else "no" for n in range(60)]
    taught = Lesson(make_vectors(TFIDF, texts), values, np.ones(60))
    fit = learn(taught, TFIDF, find_heads(None, ["yes", "no"]), has_schema=False, learned_from={}).fit
    found = Classifier(fit).answer(weigh_vectors(fit, make_vectors(TFIDF, ["great 500", "awful 501"])))
    assert [answer for answer, _ in found] == ["yes", "no"]


def test_a_class_that_all_labels_have_is_answered_with_certainty():
    taught = lesson(50)
    same = Lesson(taught.vectors, [{"label": "a"}] * 50, taught.weights)
    learned = learn(same, COLUMN, (HeadType("label", "one"),), has_schema=True, learned_from={})
    assert set(map(str, learned.answers)) == {"({'label': 'a'}, 0.0)"}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"size": 5}, "are not 5 numbers for each label"),
        ({"idf": [1.0]}, "`idf` has 1 numbers"),
        ({"version": 2}, "version"),
    ],
)
def test_a_fit_of_another_shape_is_refused(change, fault):
    learned = learn(lesson(), COLUMN, find_heads(SCHEMA), has_schema=True, learned_from={})
    content = json.dumps(json.loads(learned.fit.to_bytes()) | change).encode()
    with pytest.raises(FitError, match=fault):
        read_fit(content, digest_of(content))
