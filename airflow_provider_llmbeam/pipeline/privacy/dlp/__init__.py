"""The detector `dlp`: texts are inspected by Google's Sensitive Data Protection, many in one request."""
