"""What the Google Cloud hooks share: base hook, REST, tokens, credentials, errors, sessions, returned values."""
