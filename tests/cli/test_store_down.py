"""A store that is not there, or does not answer: how soon the command line says so."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.servers.process import free_port
from tests.servers.redis import a_redis

from .conftest import LOCKLINE, OnScreen, Shell

TIMED = """
import sys
from lockline.cli.app import run
from lockline.lab.calm import calm
import lockline.backends.redis
began = calm()
code = run(sys.argv[1:])
print("seconds", calm() - began)
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (("run", "job", "--no-wait", "--", "touch", "ran"), 2),
        (("run", "job", "--timeout", "0.1", "--", "touch", "ran"), 2),
        (("doctor",), 2),
        (("ls",), 2),
        (("show", "job"), 2),
        (("evict", "job"), 2),
    ],
)
def test_a_server_that_refuses_is_given_up_soon_by_what_does_not_wait(
    shell: Shell, words: tuple[str, ...], most: float
) -> None:
    shell.env["LOCKLINE_URL"] = f"redis://127.0.0.1:{free_port()}"
    done = subprocess.run(
        [sys.executable, "-c", TIMED, *words],
        env=shell.env,
        cwd=shell.folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 69, done.stderr
    assert float(done.stdout.split()[-1]) < most
    assert not (shell.folder / "ran").exists()


@pytest.mark.slow
def test_a_person_sees_at_once_that_a_server_is_waited_for(shell: Shell, on_screen: OnScreen) -> None:
    port = free_port()
    refused = on_screen(*LOCKLINE, "run", "job", "--ttl", "60", "--url", f"redis://127.0.0.1:{port}", "--", "true")
    refused.wait_for("waiting for the server: ", 30)
    refused.type("\x03")
    assert refused.code() == 130
    with a_redis() as server:
        server.freeze()
        try:
            frozen = on_screen(*LOCKLINE, "run", "job", "--ttl", "60", "--url", server.url, "--", "echo", "ran")
            frozen.wait_for(f"waiting for the server: {server.url}", 30)
        finally:
            server.thaw()
        frozen.wait_for("\x1b\\[Kran", 20)
        assert frozen.code() == 0
