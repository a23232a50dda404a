"""The page as an operator has it: `lockline web`, and a real browser in front."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

import lockline
from lockline.cli import web as web_command
from lockline.web.asgi_page import AsgiPage
from lockline.web.server import PageServer

from ..servers.process import missing, program, wait_for
from ..servers.redis import a_redis
from ..tier import FULL, sample
from .mounted import Address, aborting

HANGS = 120.0
"""Seconds after which a test gives up. Nothing here has to be quick: a browser on a busy machine may take long to show anything."""
expect.set_options(timeout=1000 * HANGS)

SCREENSHOTS = Path(__file__).parents[2] / ".test-logs" / "web"
"""Kept by `make test-full`, to be looked at."""


class WebServer:
    """One `lockline web`: its stores, its address and its token."""

    address: str
    port: int
    token: str | None

    def __init__(self, urls: tuple[str, ...], folder: Path) -> None:
        self.urls = urls
        self.audit = folder / "audit.jsonl"
        self._visitors: list[httpx.Client] = []

    def words(self, options: tuple[str, ...]) -> list[str]:
        """What stands behind `lockline web`."""
        audit = ["--audit", str(self.audit)] if "--allow-evict" in options else []
        return [*self.urls, "--port", "0", *options, *audit]

    @property
    def entrance(self) -> str:
        """The address with the token, as the command prints it."""
        return self.address + (f"?token={self.token}" if self.token else "")

    def visitor(self, **headers: str) -> httpx.Client:
        """Somebody who has shown the token."""
        # There is no TLS here, and to read all certificates of the machine takes longer than a request.
        visitor = httpx.Client(base_url=self.address, headers=headers, timeout=HANGS, verify=False)
        self._visitors.append(visitor)
        if self.token:
            assert visitor.get("/", params={"token": self.token}).status_code == 200
        return visitor

    def audited(self, since: int = 0) -> list[dict[str, Any]]:
        """The audit's lines, from that one on."""
        return [json.loads(line) for line in self.audit.read_text().splitlines()[since:]]

    def stop(self) -> None:
        for visitor in self._visitors:
            visitor.close()


class WebProcess(WebServer):
    """`lockline web` as a process of its own."""

    def __init__(self, urls: tuple[str, ...], options: tuple[str, ...], folder: Path) -> None:
        super().__init__(urls, folder)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lockline.cli", "web", *self.words(options)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "XDG_STATE_HOME": str(folder), "LOCKLINE_URL": ""},
        )
        assert self.process.stdout is not None
        printed = self.process.stdout.readline()
        found = re.match(r"(http://localhost:(\d+)/)(?:\?token=(.+))?", printed)
        assert found, printed
        self.address, self.port, self.token = found[1], int(found[2]), found[3]
        # What it logs must not fill the pipe.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self.said = ""
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line

    def stop(self) -> None:
        super().stop()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(HANGS)
        finally:
            self.process.kill()
            self.process.wait()
        self._reader.join(HANGS)
        assert self.process.stdout is not None
        self.process.stdout.close()


class WebThread(WebServer):
    """The same command in a thread of the tests, which takes a second of a processor less."""

    def __init__(self, urls: tuple[str, ...], options: tuple[str, ...], folder: Path) -> None:
        super().__init__(urls, folder)
        self._server: PageServer | None = None
        self._announced = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self.words(options),), daemon=True)
        with (
            mock.patch.object(web_command, "serve", self._serve),
            mock.patch.object(web_command, "_announce", self._announce),
        ):
            self._thread.start()
            assert self._announced.wait(HANGS)

    def _run(self, words: list[str]) -> None:
        web_command.command.main(words, standalone_mode=False)

    def _announce(self, listener: socket.socket, token: str | None, host: str) -> None:
        self.port, self.token = listener.getsockname()[1], token
        self.address = f"http://localhost:{self.port}/"

    def _serve(self, page: AsgiPage, listener: socket.socket, ready: Callable[[], object]) -> None:
        self._server = aborting(PageServer)(page)
        ready()
        self._announced.set()
        self._server.run(sockets=[listener])

    def stop(self) -> None:
        super().stop()
        assert self._server is not None
        self._server.should_exit = True
        self._thread.join(HANGS)
        assert not self._thread.is_alive()


class Serve:
    """Starts servers, and stops them at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._servers: list[WebServer] = []

    def __call__(self, *urls: str, options: tuple[str, ...] = ()) -> WebServer:
        server = WebThread(urls, options, self.folder)
        self._servers.append(server)
        return server

    def stop(self) -> None:
        for server in self._servers:
            server.stop()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    serve = Serve(tmp_path)
    yield serve
    serve.stop()


@pytest.fixture
def local_url(tmp_path: Path) -> str:
    return f"local://{tmp_path}/locks.db"


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    with a_redis() as server:
        yield server.url


REDIS: Any = pytest.param("redis", marks=pytest.mark.server)
ONE_STORE: list[Any] = [REDIS]
BOTH_STORES: list[Any] = ["local", REDIS]


@pytest.fixture(params=sample(ONE_STORE, BOTH_STORES))
def store(request: pytest.FixtureRequest) -> str:
    """A store of many processes. Most other tests show a `local:` store, and those of the mounted page show `memory:`."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url if request.param == "local" else f"{url}/?prefix={os.urandom(4).hex()}"


@pytest.fixture
def client(store: str) -> Iterator[lockline.Client]:
    with lockline.connect(store, owner="tester:1") as client:
        yield client


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """One for all tests of this folder. While it is there, this thread counts as inside an event loop."""
    path = program("chromium", "chromium-browser", "google-chrome")
    with sync_playwright() as playwright:
        try:
            # The tests often run as root, in containers: there Chromium's own sandbox cannot be had.
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        except Exception as problem:
            missing(f"chromium does not start: {problem}")
            raise
        yield browser
        browser.close()


class Visit:
    """One browser at the page. Whatever the console says against it fails the test."""

    def __init__(self, context: BrowserContext, server: WebServer | Address) -> None:
        self.context = context
        self.page: Page = context.new_page()
        self.complaints: list[str] = []
        self.elsewhere: list[str] = []
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self._asked(request.url, server))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        self.page.goto(server.entrance)
        self.page.wait_for_url(server.address)

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _asked(self, url: str, server: WebServer | Address) -> None:
        if not url.startswith(server.address):
            self.elsewhere.append(url)

    def line(self, name: str) -> Any:
        """The row of that line."""
        return self.page.locator(".line").filter(has=self.page.get_by_role("button", name=name, exact=True))

    def keep(self, name: str) -> None:
        """A screenshot, to be looked at; in `make test-full` alone, since a test sees nothing in it."""
        if not FULL:
            return
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png")


class Browse:
    """Opens browsers at a page."""

    def __init__(self, chromium: Browser) -> None:
        self._chromium = chromium
        self._visits: list[Visit] = []

    def __call__(
        self,
        server: WebServer | Address,
        *,
        width: int = 1280,
        height: int = 860,
        scheme: Any = "dark",
        motion: Any = "reduce",
    ) -> Visit:
        context = self._chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion=motion
        )
        context.set_default_timeout(1000 * HANGS)
        visit = Visit(context, server)
        self._visits.append(visit)
        return visit

    def close(self) -> None:
        complaints = [complaint for visit in self._visits for complaint in visit.complaints]
        elsewhere = [url for visit in self._visits for url in visit.elsewhere]
        for visit in self._visits:
            visit.context.close()
        assert complaints == []
        assert elsewhere == []


@pytest.fixture
def browse(chromium: Browser) -> Iterator[Browse]:
    browse = Browse(chromium)
    yield browse
    browse.close()


class Waiter:
    """Somebody who waits for a lock in a thread of the test, and holds it until the end."""

    def __init__(self, url: str, name: str, owner: str) -> None:
        self._client = lockline.connect(url, owner=owner)
        self.got = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._wait, args=(name,), daemon=True)
        self._thread.start()
        wait_for(
            lambda: any(one.owner == owner for one in self._client.inspect(name).claims), HANGS, f"{owner} in line"
        )

    def _wait(self, name: str) -> None:
        try:
            with self._client.lock(name):
                self.got.set()
                self._over.wait()
        except lockline.LocklineError:
            pass

    def end(self) -> None:
        self._over.set()
        self._client.close()
        self._thread.join(HANGS)


@pytest.fixture
def waiter() -> Iterator[Any]:
    waiters: list[Waiter] = []

    def begin(url: str, name: str, owner: str) -> Waiter:
        waiters.append(Waiter(url, name, owner))
        return waiters[-1]

    yield begin
    for one in waiters:
        one.end()


@pytest.fixture
def hold() -> Iterator[Callable[[lockline.Lock], lockline.Lease]]:
    """Takes a lock and keeps the lease to the end of the test."""
    leases: list[lockline.Lease] = []

    def take(lock: lockline.Lock) -> lockline.Lease:
        leases.append(lock.acquire(HANGS))
        return leases[-1]

    yield take
    for lease in leases:
        with contextlib.suppress(lockline.LocklineError):
            lease.release()
