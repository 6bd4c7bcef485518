"""The proxy, its certificates and credentials, which lead unmodified clients to the sandbox."""
