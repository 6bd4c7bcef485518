"""OpenLineage: the datasets and facets of a task, from its spec and its manifest."""
