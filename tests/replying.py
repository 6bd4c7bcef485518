"""A server on the loopback that sends any bytes as its reply."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes


def raw(body: bytes | str | Any, status: int = 200, **headers: str) -> bytes:
    """Returns a whole response; a body that is neither bytes nor text is sent as JSON."""
    content = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
    lines = {"Content-Length": str(len(content)), "Connection": "close"}
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status} Any\r\n{head}\r\n".encode("utf-8", "surrogateescape") + content


def chat_reply(text: str) -> bytes:
    """Returns the response of an OpenAI-compatible server that answers with a text."""
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return raw({"model": "m", "choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": 5}})


class Replying:
    """Answers each request with what `answer` returns for it, piece by piece."""

    def __init__(self, answer: Callable[[Received], bytes | Iterable[bytes]]) -> None:
        self.answer = answer
        self.received: list[Received] = []
        self.sent_bytes = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if "chunked" in self.headers.get("Transfer-Encoding", ""):
                    while size := int(self.rfile.readline(), 16):
                        body += self.rfile.read(size)
                        self.rfile.readline()
                    self.rfile.readline()
                request = Received(self.path, dict(self.headers.items()), body)
                outer.received.append(request)
                found = outer.answer(request)
                self.close_connection = True
                with contextlib.suppress(OSError):
                    for piece in [found] if isinstance(found, bytes) else found:
                        self.wfile.write(piece)
                        outer.sent_bytes += len(piece)

            do_GET = do_POST  # noqa: N815

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Replying:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
