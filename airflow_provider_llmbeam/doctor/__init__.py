"""Whether the account, the project and this machine have what a job needs: checks, facts, findings, remedies."""
