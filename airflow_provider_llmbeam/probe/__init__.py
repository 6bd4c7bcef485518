"""Small live requests to a model: build, send and judge them; readiness of an endpoint."""
