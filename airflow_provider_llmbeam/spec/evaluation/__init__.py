"""What is measured of answers: metrics, judges, thresholds, reviews, and comparisons of prompts or models."""

from airflow_provider_llmbeam.spec.evaluation.comparison import Alternative, Comparison
from airflow_provider_llmbeam.spec.evaluation.evaluation import Evaluation
from airflow_provider_llmbeam.spec.evaluation.judge import Judge
from airflow_provider_llmbeam.spec.evaluation.metric import (
    ExactMetric,
    JudgeMetric,
    LabelF1Metric,
    Metric,
    NumericMetric,
    PythonMetric,
    ValidJsonMetric,
)
from airflow_provider_llmbeam.spec.evaluation.preview import PreviewSample
from airflow_provider_llmbeam.spec.evaluation.review import AnswerSample, GoldenAddition, Verdict

__all__ = [
    "Alternative",
    "AnswerSample",
    "Comparison",
    "Evaluation",
    "ExactMetric",
    "GoldenAddition",
    "Judge",
    "JudgeMetric",
    "LabelF1Metric",
    "Metric",
    "NumericMetric",
    "PreviewSample",
    "PythonMetric",
    "ValidJsonMetric",
    "Verdict",
]
