"""The command, its group and its lease: who is stopped when, and when the lock is given back."""

from __future__ import annotations

import os
import platform
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from tests.calm import Busy
from tests.servers.process import wait_for

from .conftest import LOCKLINE, Shell, alive, end

IGNORES_TERM = "trap '' TERM; echo $$ > child; while :; do sleep 0.1; done"
FORKS = (
    "trap '' TERM; (echo $(exec sh -c 'echo $PPID') > grandchild; while :; do sleep 0.1; done) & echo $$ > child; wait"
)


def test_the_command_knows_its_lock(shell: Shell) -> None:
    script = 'echo "$LOCKLINE_NAME|$LOCKLINE_TOKEN|$LOCKLINE_OWNER|$LOCKLINE_URL"'
    first = shell("run", "a/b c", "--", "sh", "-c", script).stdout.strip().split("|")
    second = shell("run", "a/b c", "--url", shell.url, "--", "sh", "-c", script).stdout.strip().split("|")
    assert first[0] == second[0] == "a/b c"
    assert int(second[1]) > int(first[1]) > 0
    assert first[2]
    assert first[3] == second[3] == shell.url


def test_the_command_runs_in_a_group_of_its_own_in_the_same_session(shell: Shell) -> None:
    script = "import os; print(os.getpid(), os.getpgrp(), os.getsid(0))"
    done = shell("run", "job", "--", sys.executable, "-c", script)
    pid, group, session = map(int, done.stdout.split())
    assert pid == group
    assert session == os.getsid(0)


def test_stdin_stdout_and_stderr_pass_through_untouched(shell: Shell) -> None:
    data = bytes(range(256)) * 4000
    script = "import sys, shutil; shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer); sys.stderr.write('said')"
    done = subprocess.run(
        [*LOCKLINE, "run", "job", "--", sys.executable, "-c", script],
        env=shell.env, input=data, capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == data
    assert done.stderr == b"said"


def test_other_inherited_files_reach_the_command(shell: Shell) -> None:
    read, write = os.pipe()
    try:
        subprocess.run(
            [*LOCKLINE, "run", "job", "--", sys.executable, "-c", f"import os; os.write({write}, b'through')"],
            env=shell.env, pass_fds=[write], timeout=60, check=True,
        )  # fmt: skip
        assert os.read(read, 100) == b"through"
    finally:
        os.close(read)
        os.close(write)


def test_the_lock_is_kept_and_renewed_until_the_last_grandchild_has_ended(shell: Shell) -> None:
    """Takes some 9 s: a ttl that a busy machine renews in time has to pass."""
    run = shell.run(
        "(echo $(exec sh -c 'echo $PPID') > grandchild; while [ ! -e go ]; do sleep 0.1; done) & exit 5", "--ttl", "8"
    )
    grandchild = shell.pid_in("grandchild")
    time.sleep(8.2)  # a ttl, and more
    assert alive(grandchild)
    assert run.poll() is None
    assert shell("run", "job", "--no-wait", "--", "true").returncode == 75
    (shell.folder / "go").touch()
    assert end(run)[0] == 5
    assert not shell.held()


def test_a_dead_process_that_nobody_waited_for_does_not_keep_the_lock(shell: Shell) -> None:
    # The parent leaves the group, its child comes back into it and ends: a zombie is all that is left of the group.
    script = """
import os, time
group = os.getpgrp()
ready, done = os.pipe()
if os.fork() == 0:
    os.setpgid(0, 0)
    if os.fork() == 0:
        os.setpgid(0, group)
        os._exit(0)
    print(os.getpid(), file=open("parent", "w"))
    for file in (0, 1, 2):
        os.close(file)
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    os.write(done, b"x")
    time.sleep(60)
os.read(ready, 1)
os._exit(3)
"""
    run = shell.start("run", "job", "--", sys.executable, "-c", script)
    assert end(run)[0] == 3
    assert alive(shell.pid_in("parent"))


EXIT_OF_A_THREAD = {"x86_64": 60, "aarch64": 93}


@pytest.mark.skipif(platform.machine() not in EXIT_OF_A_THREAD, reason="the number of that system call is not known")
def test_a_process_that_works_on_in_another_thread_keeps_the_lock(shell: Shell) -> None:
    # Its first thread ends: from outside it looks like a process that has ended and was not waited for.
    script = f"""
import ctypes, os, threading, time
def work():
    while open("/proc/self/stat").read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    print(os.getpid(), file=open("threads", "w"))
    while not os.path.exists("go"):
        time.sleep(0.02)
    os._exit(0)
threading.Thread(target=work).start()
ctypes.CDLL(None).syscall({EXIT_OF_A_THREAD[platform.machine()]}, 0)
"""
    (shell.folder / "work.py").write_text(script)
    run = shell.run(f"{sys.executable} work.py & while [ ! -s threads ]; do sleep 0.1; done; exit 5")
    pid = int(wait_for_text(shell, "threads"))
    try:
        assert os.path.exists(f"/proc/{pid}")
        assert shell("run", "job", "--no-wait", "--", "true").returncode == 75
        assert run.poll() is None
    finally:
        (shell.folder / "go").touch()
    assert end(run)[0] == 5


def wait_for_text(shell: Shell, file: str) -> str:
    path = shell.folder / file
    wait_for(lambda: path.exists() and path.read_text().endswith("\n"), 60, f"a word in {file}")
    return path.read_text()


def test_a_daemon_that_left_the_group_does_not_keep_the_lock(shell: Shell) -> None:
    run = shell.run(
        "setsid sh -c 'echo $$ > daemon; exec sleep 600' > /dev/null 2>&1 & while [ ! -s daemon ]; do sleep 0.1; done; exit 3"
    )
    assert end(run)[0] == 3
    assert alive(shell.pid_in("daemon"))
    assert not shell.held()


def test_an_eviction_terminates_the_command_and_gives_76(shell: Shell) -> None:
    run = shell.run("trap 'echo told > told; exit 0' TERM; echo $$ > child; while :; do sleep 0.1; done")
    shell.pid_in("child")
    assert shell("evict", "job").returncode == 0
    code, _, err = end(run)
    assert code == 76
    assert "evicted" in err
    assert (shell.folder / "told").exists()


def test_an_eviction_kills_what_ignores_term_with_its_grandchildren(shell: Shell) -> None:
    run = shell.run(FORKS)
    child, grandchild = shell.pid_in("child"), shell.pid_in("grandchild")
    shell("evict", "job")
    assert end(run)[0] == 76
    assert not alive(child)
    assert not alive(grandchild)


def test_the_next_one_gets_in_after_an_eviction_with_a_higher_token(shell: Shell) -> None:
    run = shell.run("echo $LOCKLINE_TOKEN > token; " + IGNORES_TERM)
    child = shell.pid_in("child")
    after = shell.run("echo $LOCKLINE_TOKEN")
    wait_for(lambda: shell.waiters() == 1, 60, "a waiter")
    shell("evict", "job")
    code, out, _ = end(after)
    assert code == 0
    assert int(out) > int((shell.folder / "token").read_text())
    assert end(run)[0] == 76
    assert not alive(child)


def test_a_frozen_run_loses_its_command_at_the_deadline_and_gives_76_when_it_wakes(shell: Shell) -> None:
    """Takes some 6 s: a ttl that a busy machine renews in time has to pass."""
    run = shell.run(FORKS, "--ttl", "5")
    child, grandchild = shell.pid_in("child"), shell.pid_in("grandchild")
    run.send_signal(signal.SIGSTOP)
    # The one who waits notes whether the old command was still there when its own turn came.
    # (As zombies they may be: a frozen parent waits for nobody.)
    after = shell.run(f"cat /proc/{child}/stat /proc/{grandchild}/stat 2> /dev/null | grep -v ') Z'; echo in")
    assert end(after)[1] == "in\n"
    assert not alive(child)
    assert not alive(grandchild)
    run.send_signal(signal.SIGCONT)
    code, _, err = end(run)
    assert code == 76
    assert "expired" in err


def test_a_killed_run_takes_its_command_with_it(shell: Shell) -> None:
    run = shell.run(FORKS, "--ttl", "60")
    child, grandchild = shell.pid_in("child"), shell.pid_in("grandchild")
    run.kill()
    wait_for(lambda: not alive(child) and not alive(grandchild), 60, "the end of the group")
    assert shell("run", "job", "--timeout", "60", "--", "true").returncode == 0


@pytest.mark.slow
def test_a_store_that_no_longer_answers_stops_the_command_before_the_deadline(shell: Shell) -> None:
    """Takes some 18 s: the ttl has to pass without a renewal, and the release waits for the store in vain."""
    # The command notes when it was told, on the clock that leases run on.
    script = """
import os, signal, time
def told(*_):
    with open("told", "w") as file:
        print(time.clock_gettime(time.CLOCK_BOOTTIME), file=file)
signal.signal(signal.SIGTERM, told)
print("ready", file=open("ready", "w"))
while True:
    with open("beat.new", "w") as file:
        print(time.clock_gettime(time.CLOCK_BOOTTIME), file=file)
    os.replace("beat.new", "beat")
    time.sleep(0.05)
"""
    (shell.folder / "work.py").write_text(script)
    run = shell.start("run", "job", "--ttl", "8", "--grace", "4", "--", sys.executable, "work.py")
    wait_for(lambda: (shell.folder / "ready").exists(), 60, "the command")
    store = sqlite3.connect(shell.folder / "locks.db", isolation_level=None, timeout=60)
    try:
        store.execute("BEGIN EXCLUSIVE")
        busy, locked = Busy(), time.clock_gettime(time.CLOCK_BOOTTIME)
        code, _, err = end(run)
    finally:
        store.close()
    told = float((shell.folder / "told").read_text())
    last = float((shell.folder / "beat").read_text())
    assert code == 76
    assert "not renewed in time" in err
    # No renewal after the store was locked, so the lease cannot have reached further than one ttl from then.
    # Only a kill that got no processor comes later than that.
    assert last < locked + 8 + busy()
    assert told < last


def test_readers_share_and_exclude_the_one_who_does_not(shell: Shell) -> None:
    readers = [shell.run(f"echo $$ > reader{number}; exec sleep 600", "--shared") for number in (1, 2)]
    for number in (1, 2):
        shell.pid_in(f"reader{number}")
    assert shell("run", "job", "--no-wait", "--", "true").returncode == 75
    assert shell("run", "job", "--shared", "--no-wait", "--", "true").returncode == 0
    for reader in readers:
        reader.terminate()
        assert end(reader)[0] == 143
    assert shell("run", "job", "--no-wait", "--", "true").returncode == 0


def test_a_run_inside_its_own_lock_is_told_that_it_may_wait_for_itself(shell: Shell) -> None:
    inner = f"{shell.program()} run job --timeout 3 -- true"
    done = shell("run", "job", "--", "sh", "-c", inner)
    assert done.returncode == 75
    assert "may wait for itself" in done.stderr
    assert "itself" not in shell("run", "other", "--", "sh", "-c", inner).stderr


def test_a_limit_lets_in_that_many(shell: Shell) -> None:
    for number in (1, 2):
        shell.run(f"echo $$ > permit{number}; exec sleep 600", "--limit", "2")
    for number in (1, 2):
        shell.pid_in(f"permit{number}")
    assert shell("run", "job", "--limit", "2", "--no-wait", "--", "true").returncode == 75
    assert len(shell.json("show", "job")["holders"]) == 2
