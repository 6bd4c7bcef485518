"""How unmodified clients reach the sandbox: the proxy, its certificates, and a service account."""
