"""What the hooks on Google Cloud share: base hook, REST, tokens, credentials, errors, sessions and returned values."""
