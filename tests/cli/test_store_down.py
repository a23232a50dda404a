"""A store that is not there, or does not answer: how soon the command line says so."""

from __future__ import annotations

import pytest

from tests.servers.process import free_port
from tests.servers.redis import a_redis

from .conftest import LOCKLINE, OnScreen, Shell
from .patient import PATIENT


@pytest.mark.parametrize(
    "words",
    [
        ("run", "job", "--no-wait", "--", "touch", "ran"),
        ("run", "job", "--timeout", "0.1", "--", "touch", "ran"),
        ("doctor",),
        ("ls",),
        ("show", "job"),
        ("evict", "job"),
    ],
)
def test_a_server_that_refuses_is_given_up_soon_by_what_does_not_wait(shell: Shell, words: tuple[str, ...]) -> None:
    shell.env["LOCKLINE_URL"] = f"redis://127.0.0.1:{free_port()}"
    # It does not take a whole try.
    done = shell(*words, call=PATIENT)
    assert done.returncode == 69, done.stderr
    assert not (shell.folder / "ran").exists()


@pytest.mark.slow
def test_a_person_sees_at_once_that_a_server_is_waited_for(shell: Shell, on_screen: OnScreen) -> None:
    port = free_port()
    refused = on_screen(*LOCKLINE, "run", "job", "--ttl", "60", "--url", f"redis://127.0.0.1:{port}", "--", "true")
    refused.wait_for("waiting for the server: ")
    refused.type("\x03")
    assert refused.code() == 130
    with a_redis() as server:
        server.freeze()
        try:
            frozen = on_screen(*LOCKLINE, "run", "job", "--ttl", "60", "--url", server.url, "--", "echo", "ran")
            frozen.wait_for(f"waiting for the server: {server.url}")
        finally:
            server.thaw()
        frozen.wait_for("\x1b\\[Kran")
        assert frozen.code() == 0


@pytest.mark.parametrize("words", [("show", "job"), ("ls",), ("doctor",), ("evict", "job")], ids=" ".join)
def test_a_silent_server_is_given_up_by_what_a_person_asks(shell: Shell, words: tuple[str, ...]) -> None:
    with a_redis() as server:
        server.freeze()
        try:
            shell.env["LOCKLINE_URL"] = server.url
            done = shell(*words, call=PATIENT)
        finally:
            server.thaw()
    assert done.returncode == 69, done.stderr
    assert "gave no answer" in done.stdout + done.stderr
