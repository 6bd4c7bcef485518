"""Tests of the guard that restricts all tests to loopback addresses."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest


@pytest.mark.parametrize("address", ["192.0.2.1", "example.invalid"])
def test_no_test_reaches_an_address_but_loopback(address):
    with pytest.raises(PermissionError, match="loopback"):
        socket.create_connection((address, 80), timeout=1)


def test_no_process_that_a_test_starts_reaches_one_either():
    code = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=1)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "PermissionError: tests reach no address but loopback" in ended.stderr
