"""Models that are deployed to an endpoint of Vertex AI."""
