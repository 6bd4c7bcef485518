"""Common parts of the Google Cloud hooks: base hook, REST, tokens, credentials, errors, sessions, results."""
