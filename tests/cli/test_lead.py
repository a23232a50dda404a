"""`lockline lead`: one machine runs the command, and the next one when that ends or loses."""

from __future__ import annotations

import os
import signal

from tests.servers.process import free_port, wait_for

from .conftest import Shell, alive, end


def test_one_leads_and_the_next_one_takes_over_on_term(shell: Shell) -> None:
    first = shell.start("lead", "boss", "--", "sh", "-c", "echo $$ > first; echo $LOCKLINE_TOKEN; exec sleep 600")
    pid = shell.pid_in("first")
    second = shell.start("lead", "boss", "--", "sh", "-c", "echo $$ > second; echo $LOCKLINE_TOKEN; exec sleep 600")
    wait_for(lambda: shell.waiters("boss") == 1, 60, "one who stands behind")
    first.send_signal(signal.SIGTERM)
    assert shell.pid_in("second")
    assert not alive(pid), "the next one leads only when the first command has ended"
    code, term, _ = end(first)
    assert code == 128 + signal.SIGTERM
    second.send_signal(signal.SIGTERM)
    code, next_term, _ = end(second)
    assert code == 128 + signal.SIGTERM
    assert int(next_term) > int(term)
    assert not shell.held("boss")


def test_the_commands_own_end_ends_the_lead_with_its_code(shell: Shell) -> None:
    done = shell("lead", "boss", "--", "sh", "-c", "exit 7")
    assert done.returncode == 7
    assert not shell.held("boss")


def test_who_lost_stops_the_command_and_leads_again_under_a_higher_term(shell: Shell) -> None:
    script = 'echo "$LOCKLINE_TOKEN $$" >> terms; echo $$ > leads; exec sleep 600'
    leading = shell.start("lead", "boss", "--grace", "0", "--", "sh", "-c", script)
    first = shell.pid_in("leads")
    assert shell("evict", "boss", "--yes").returncode == 0
    terms = shell.folder / "terms"
    wait_for(lambda: terms.read_text().count("\n") == 2, 60, "the second term")
    (one, pid), (two, other) = (line.split() for line in terms.read_text().splitlines())
    assert int(two) > int(one)
    assert (int(pid), alive(first)) == (first, False)
    assert other != pid
    os.kill(leading.pid, signal.SIGTERM)
    code, _, said = end(leading)
    assert code == 128 + signal.SIGTERM
    assert "was lost" in said


def test_a_signal_ends_the_standing_and_leaves_nothing(shell: Shell) -> None:
    shell.start("lead", "boss", "--", "sh", "-c", "echo $$ > leads; exec sleep 600")
    shell.pid_in("leads")
    second = shell.start("lead", "boss", "--", "sh", "-c", "echo never")
    wait_for(lambda: shell.waiters("boss") == 1, 60, "one who stands behind")
    second.send_signal(signal.SIGTERM)
    assert end(second)[:2] == (128 + signal.SIGTERM, "")
    assert shell.waiters("boss") == 0


def test_a_killed_leader_takes_its_command_along_before_another_leads(shell: Shell) -> None:
    first = shell.start("lead", "boss", "--", "sh", "-c", "echo $$ > first; exec sleep 600")
    pid = shell.pid_in("first")
    shell.start("lead", "boss", "--", "sh", "-c", "echo $$ > second; exec sleep 600")
    wait_for(lambda: shell.waiters("boss") == 1, 60, "one who stands behind")
    first.kill()
    shell.pid_in("second")
    assert not alive(pid)


def test_wrong_use_is_said_before_anything_runs(shell: Shell) -> None:
    assert shell("lead", "boss").returncode == 64
    assert shell("lead", "", "--", "true").returncode == 64
    assert shell("lead", "boss", "--grace", "9", "--", "true").returncode == 64
    assert shell("lead", "boss", "--require", "server", "--url", "local:", "--", "true").returncode == 64
    assert shell("lead", "boss", "--url", "memory:", "--", "true").returncode == 64
    assert "Examples:" in shell("lead", "--help").stdout


def test_a_signal_between_two_tries_at_a_store_that_is_away_is_not_lost(shell: Shell) -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    leading = shell.start("lead", "boss", "--ttl", "0.5", "--url", url, "--", "echo", "never")
    assert leading.stderr is not None
    # It says so, and then rests before it stands again.
    assert "standing again" in leading.stderr.readline()
    leading.send_signal(signal.SIGTERM)
    assert end(leading)[:2] == (128 + signal.SIGTERM, "")
