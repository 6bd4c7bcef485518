"""The emulated Vertex AI: endpoints, models and Model Garden."""
