"""`lockline run --pool`: which one of several things, never twice."""

from __future__ import annotations

from tests.servers.process import wait_for

from .conftest import Shell, end


def test_each_command_gets_an_item_of_its_own_and_the_next_one_waits(shell: Shell) -> None:
    show = 'echo "$LOCKLINE_SLOT $CUDA_VISIBLE_DEVICES $LOCKLINE_NAME"; echo $$ > started-$LOCKLINE_SLOT; '
    first = [
        shell.start(
            "run", "--pool", "gpu=0-1", "--cuda", "--", "sh", "-c", f"{show} while [ ! -e go ]; do sleep 0.1; done"
        )
        for _ in range(2)
    ]
    for item in (0, 1):
        shell.pid_in(f"started-{item}")
    assert shell("run", "--pool", "gpu=0-1", "--no-wait", "--", "true").returncode == 75
    last = shell.start("run", "--pool", "gpu=0-1", "--", "sh", "-c", "echo $LOCKLINE_SLOT ${CUDA_VISIBLE_DEVICES-none}")
    wait_for(lambda: shell.waiters("gpu") == 1, 60, "one who waits")
    (shell.folder / "go").touch()
    assert sorted(end(process)[1] for process in first) == ["0 0 gpu/0\n", "1 1 gpu/1\n"]
    assert end(last)[1] in ("0 none\n", "1 none\n")
    assert shell.json("ls") == []


def test_wrong_use_is_said_before_anything_runs(shell: Shell) -> None:
    for wrong in (
        ("--pool", "gpu"), ("--pool", "=1"), ("--pool", "gpu=1,,2"), ("--pool", "gpu=1,1"), ("--pool", "gpu=0-1", "--limit", "2"),
        ("--pool", "gpu=0-1", "--once-per", "1d"),
    ):  # fmt: skip
        assert shell("run", *wrong, "--", "touch", "ran").returncode == 64, wrong
    assert shell("run", "job", "--cuda", "--", "touch", "ran").returncode == 64
    assert shell("run", "job").returncode == 64
    named = shell("run", "job", "--pool", "gpu=0-1", "--", "touch", "ran")
    assert (named.returncode, "'job'" in named.stderr) == (64, True)
    assert not (shell.folder / "ran").exists()
