"""Parts shared by operators and sensors: identity, process, literal arguments and errors of their task."""
