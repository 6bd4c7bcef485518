"""What is measured of answers: metrics, a judge and thresholds, and a comparison with another prompt or model."""

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

__all__ = [
    "Alternative",
    "Comparison",
    "Evaluation",
    "ExactMetric",
    "Judge",
    "JudgeMetric",
    "LabelF1Metric",
    "Metric",
    "NumericMetric",
    "PreviewSample",
    "PythonMetric",
    "ValidJsonMetric",
]
