"""The audit of a job: one record per request, written where the request is answered."""
