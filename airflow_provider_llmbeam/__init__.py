"""Run an LLM over a table from Apache Airflow, through bucketed RunInference on Apache Beam."""

__version__ = "0.1.0"

#: Template of the day of a Dag run in the zone of its Dag, e.g. '2026-11-03', for the addresses of a task:
#: `sink=f"gs://my-bucket/moods/{DAY}"`. `{{ ds }}` is a day in UTC, and a run without a logical date has none: its
#: day is that on which it may start.
DAY = "{{ (dag_run.logical_date or dag_run.run_after).astimezone(dag.timezone) | ds }}"
