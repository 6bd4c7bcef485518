"""What operators and sensors share about their task: identity, process, literal arguments and errors."""
