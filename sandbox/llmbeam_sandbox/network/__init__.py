"""The proxy, its certificates and credentials, which route unmodified clients to the sandbox."""
