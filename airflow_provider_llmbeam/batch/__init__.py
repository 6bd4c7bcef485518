"""Batch-inference jobs of the providers: submit, find, poll and cancel. No Airflow, no Beam, no engine."""
