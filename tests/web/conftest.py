"""The page as an operator has it: `lockline web` as a process of its own, and a real browser in front."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

import lockline

from ..servers.process import missing, program, wait_for
from ..servers.redis import a_redis

# What has to come in time is measured by the stories themselves; a browser on a busy machine may take long to show anything at all.
expect.set_options(timeout=30_000)

SCREENSHOTS = Path(__file__).parents[2] / ".test-logs" / "web"
"""Kept, to be looked at."""


class WebServer:
    """One `lockline web`, and the address that it printed."""

    def __init__(self, urls: tuple[str, ...], options: tuple[str, ...], folder: Path) -> None:
        self.urls = urls
        self.audit = folder / "audit.jsonl"
        if "--allow-evict" in options:
            options = (*options, "--audit", str(self.audit))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lockline.cli", "web", *urls, "--port", "0", *options],
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
        self.entrance = printed.strip()
        self._visitors: list[httpx.Client] = []
        # What it logs must not fill the pipe.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self.said = ""
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line

    def visitor(self, **headers: str) -> httpx.Client:
        """Somebody who has shown the token."""
        visitor = httpx.Client(base_url=self.address, headers=headers, timeout=30)
        self._visitors.append(visitor)
        if self.token:
            assert visitor.get("/", params={"token": self.token}).status_code == 200
        return visitor

    def audited(self, since: int = 0) -> list[dict[str, Any]]:
        """The audit's lines, from that one on."""
        return [json.loads(line) for line in self.audit.read_text().splitlines()[since:]]

    def stop(self) -> int:
        for visitor in self._visitors:
            visitor.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait(20)
        self._reader.join(20)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


class Serve:
    """Starts servers, and stops them at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._servers: list[WebServer] = []

    def __call__(self, *urls: str, options: tuple[str, ...] = ()) -> WebServer:
        server = WebServer(urls, options, self.folder)
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


@pytest.fixture(params=["local", pytest.param("redis", marks=pytest.mark.server)])
def store(request: pytest.FixtureRequest) -> str:
    """A store that another process shows; `memory:` is shown in its own, by the tests of the mounted page."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url if request.param == "local" else f"{url}/?prefix={os.urandom(4).hex()}"


@pytest.fixture
def client(store: str) -> Iterator[lockline.Client]:
    with lockline.connect(store, owner="tester:1") as client:
        yield client


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """For one file of tests: while it is there, this thread counts as inside an event loop."""
    path = program("chromium", "chromium-browser", "google-chrome")
    with sync_playwright() as playwright:
        try:
            # The tests often run as root, in containers: there Chromium's own sandbox cannot be had.
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except Exception as problem:
            missing(f"chromium does not start: {problem}")
            raise
        yield browser
        browser.close()


class Visit:
    """One browser at the page. Whatever the console says against it fails the test."""

    def __init__(self, context: BrowserContext, server: WebServer) -> None:
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

    def _asked(self, url: str, server: WebServer) -> None:
        if not url.startswith(server.address):
            self.elsewhere.append(url)

    def line(self, name: str) -> Any:
        """The row of that line."""
        return self.page.locator(".line").filter(has=self.page.get_by_role("button", name=name, exact=True))

    def keep(self, name: str) -> None:
        """A screenshot, to be looked at."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png")


class Browse:
    """Opens browsers at a page."""

    def __init__(self, chromium: Browser) -> None:
        self._chromium = chromium
        self._visits: list[Visit] = []

    def __call__(self, server: WebServer, *, width: int = 1280, height: int = 860, scheme: Any = "dark") -> Visit:
        context = self._chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        context.set_default_timeout(20_000)
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
        wait_for(lambda: any(one.owner == owner for one in self._client.inspect(name).claims), what=f"{owner} in line")

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
        self._thread.join(20)


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
        leases.append(lock.acquire(20))
        return leases[-1]

    yield take
    for lease in leases:
        with contextlib.suppress(lockline.LocklineError):
            lease.release()
