"""Run an LLM over a table from Apache Airflow, through bucketed RunInference on Apache Beam."""

__version__ = "0.1.0"
