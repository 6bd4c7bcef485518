"""Bill reconciliation: the cost that runs have reported, beside the rows of a Cloud Billing export."""
