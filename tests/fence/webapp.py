"""A served counter: GET reads it, PUT replaces it. `main` with the arguments asgi|wsgi PORT FILE MARKS|- serves it, fenced or not.

The file is written without any care for others on purpose: keeping them apart is what the fence is for.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lockline.fence import FileMarks, HttpFence


def get(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b"0"


def put(file: Path, body: bytes) -> bytes:
    draft = file.with_suffix(".draft")
    draft.write_bytes(body)
    os.replace(draft, file)
    return b"written"


def asgi(file: Path) -> Callable[..., Any]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        answer = put(file, body) if scope["method"] == "PUT" else get(file)
        headers = [(b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        # In pieces, as a long answer goes: the next one is taken only when there is room for it on the line.
        for at in range(0, len(answer), 65536):
            await send({"type": "http.response.body", "body": answer[at : at + 65536], "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return app


def wsgi(file: Path) -> Callable[..., Iterable[bytes]]:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        answer = put(file, body) if environ["REQUEST_METHOD"] == "PUT" else get(file)
        start_response("200 OK", [("Content-Length", str(len(answer)))])
        return [answer]

    return app


def dying() -> None:
    """Serve an application that dies before its write or after it, when token 6 comes."""
    import uvicorn

    port, file, marks, at = sys.argv[1:]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if dict(scope["headers"])[b"fencing-token"] == b"6":
            if at == "after the write":
                put(Path(file), b"6")
            os.kill(os.getpid(), signal.SIGKILL)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    fenced = HttpFence(FileMarks(marks)).asgi(app)
    uvicorn.run(fenced, host="127.0.0.1", port=int(port), log_level="error", lifespan="off")


def main() -> None:
    kind, port, file, marks = sys.argv[1:]
    fence = None if marks == "-" else HttpFence(FileMarks(marks))
    if kind == "asgi":
        import uvicorn

        app = asgi(Path(file))
        served = app if fence is None else fence.asgi(app)
        uvicorn.run(served, host="127.0.0.1", port=int(port), log_level="warning", lifespan="off")
    else:
        from socketserver import ThreadingMixIn
        from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

        class Quiet(WSGIRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Threads(ThreadingMixIn, WSGIServer):
            daemon_threads = True

        plain = wsgi(Path(file))
        make_server(
            "127.0.0.1", int(port), plain if fence is None else fence.wsgi(plain), Threads, Quiet
        ).serve_forever()
