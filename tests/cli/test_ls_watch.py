"""`lockline ls --watch`: the lines as they move, for people and for logs."""

from __future__ import annotations

import json
import signal

import lockline

from .conftest import LOCKLINE, OnScreen, Shell, end


def test_a_terminal_shows_each_change_in_place_and_q_gives_it_back(shell: Shell, on_screen: OnScreen) -> None:
    with lockline.connect(shell.url, owner="web-3:811") as client:
        screen = on_screen(*LOCKLINE, "ls", "--watch")
        screen.wait_for(r"\x1b\[\?1049h")
        screen.wait_for("nothing is held")
        lease = client.lock("orders/42").acquire()
        screen.wait_for(rf"orders/42 +lock +{lease.token} .* web-3:811")
        screen.wait_for("1 held, 0 waiting in 1 line")
        lease.release()
        screen.text = ""
        screen.wait_for("nothing is held")
        screen.type("q")
        assert screen.code() == 0
        assert screen.text.rstrip().endswith("\x1b[?25h\x1b[?1049l")


def test_a_loss_is_said_and_a_name_cannot_steer_the_terminal(shell: Shell, on_screen: OnScreen) -> None:
    """Takes some 7 s: the lease is seen, on a busy machine too, before it ends."""
    with lockline.connect(shell.url, owner="evil\x1b[31m:1") as client:
        screen = on_screen(*LOCKLINE, "ls", "--watch")
        screen.wait_for("nothing is held")
        lease = client.lock("name\x1b]0;title\x07", ttl=6, renew=False).acquire()
        screen.wait_for(r"name\\x1b]0;title\\x07 +lock")
        screen.wait_for(r"lost: name\\x1b]0;title\\x07 by evil\\x1b\[31m:1")
        assert not lease.valid
        screen.type("\x03")
        assert screen.code() == 130
        assert "\x1b]0;" not in screen.text
        assert screen.text.count("\x1b[?1049l") == 1


def test_a_term_signal_gives_the_terminal_back(shell: Shell, on_screen: OnScreen) -> None:
    screen = on_screen(*LOCKLINE, "ls", "--watch")
    screen.wait_for("nothing is held")
    screen.process.send_signal(signal.SIGTERM)
    assert screen.code() == 128 + signal.SIGTERM
    assert screen.text.count("\x1b[?1049l") == 1


def test_without_a_terminal_each_change_is_one_line(shell: Shell) -> None:
    with lockline.connect(shell.url, owner="web-3:811") as client:
        first = client.lock("there-before").acquire()
        watching = shell.start("ls", "--watch")
        assert watching.stdout is not None
        assert watching.stdout.readline().split()[1:] == [
            "took",
            "there-before",
            "web-3:811",
            "token",
            str(first.token),
        ]
        with client.lock("orders/42") as lease:
            assert watching.stdout.readline().split()[1:] == [
                "took",
                "orders/42",
                "web-3:811",
                "token",
                str(lease.token),
            ]
        said = watching.stdout.readline().split()
        assert said[1:7] == ["let", "go", "orders/42", "web-3:811", "token", str(lease.token)]
        first.release()
        watching.send_signal(signal.SIGINT)
        code, out, err = end(watching)
        assert (code, err.strip()) == (130, "")
        assert "\x1b" not in out


def test_for_programs_each_change_is_one_object(shell: Shell) -> None:
    with lockline.connect(shell.url, owner="web-3:811") as client, client.lock("b/1"):
        lease = client.lock("a/1").acquire()
        watching = shell.start("ls", "a/", "--watch", "--json")
        assert watching.stdout is not None
        told = json.loads(watching.stdout.readline())
        assert {key: told[key] for key in ("name", "what", "who", "token")} == {
            "name": "a/1", "what": "took", "who": "web-3:811", "token": str(lease.token),
        }  # fmt: skip
        lease.release()
        assert json.loads(watching.stdout.readline())["what"] == "let go"
        watching.send_signal(signal.SIGINT)
        end(watching)


def test_a_store_that_does_not_answer_is_said_once(shell: Shell) -> None:
    watching = shell.start("ls", "--watch", "--url", "redis://127.0.0.1:1")
    assert watching.stderr is not None
    assert "cannot be reached" in watching.stderr.readline()
    watching.send_signal(signal.SIGINT)
    assert end(watching)[0] == 130
