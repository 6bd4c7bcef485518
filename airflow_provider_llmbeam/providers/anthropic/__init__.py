"""The Claude API, and Claude on Vertex AI."""
