"""Batch-inference jobs of the providers: submit, find, poll, cancel and sweep. No Airflow, no Beam, no engine."""
