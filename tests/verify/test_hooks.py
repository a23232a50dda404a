"""Commands of the user's own, as faults: whatever they do, the run knows of it and comes to its end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lockline.lab.verify.hooks import Hooks
from lockline.lab.verify.ledger import Ledger
from tests.servers.process import wait_for


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # A child whose parent has ended is init's, who may take its time.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_one_that_hangs_is_a_fault_all_the_time_and_is_ended_with_its_children(tmp_path: Path) -> None:
    ledger, written = Ledger(), tmp_path / "child"
    hooks = Hooks([f"sleep 600 & echo $! > {written}; wait"], 0.01, ledger)
    wait_for(lambda: written.exists() and written.read_text().strip(), 60, "the command's child")
    child = int(written.read_text())
    (fault,) = ledger.faults
    assert fault.over == float("inf")
    assert ledger.doing == "your fault"
    hooks.stop()  # comes back, although the command would go on for ten minutes
    wait_for(lambda: gone(child), 60, "the child's end")
    wait_for(lambda: ledger.doing == "", 60, "the end of the fault")
    (fault,) = ledger.faults
    assert fault.over < float("inf")
    assert "had not come to its end" in hooks.failed[0]


def test_one_that_will_not_go_is_killed(tmp_path: Path) -> None:
    ledger, written = Ledger(), tmp_path / "stubborn"
    hooks = Hooks([f"trap '' TERM; echo $$ > {written}; while :; do sleep 0.1; done"], 0.01, ledger)
    wait_for(lambda: written.exists() and written.read_text().strip(), 60, "the command")
    hooks.stop()
    wait_for(lambda: gone(int(written.read_text())), 60, "its end")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("yes much | head -c 3000000 >&2; echo the last word >&2; exit 3", "ended with 3: the last word"),
        ("/there/is/no/such/program", "ended with 127"),
        ("kill -9 $$", "ended with -9"),
    ],
)
def test_one_that_fails_is_told_with_its_last_word_however_much_it_said(command: str, said: str) -> None:
    hooks = Hooks([command], 0.01, Ledger())
    wait_for(lambda: bool(hooks.failed), 60, "its failure")
    hooks.stop()
    assert said in hooks.failed[0]
    assert len(hooks.failed[0]) < 500


def test_what_one_leaves_running_in_good_order_is_left_alone(tmp_path: Path) -> None:
    """It may be the server that it has restarted, which keeps the command's output open."""
    ledger, written = Ledger(), tmp_path / "server"
    # So much time is before the first one, and before the second, which is not waited for.
    hooks = Hooks([f"sleep 600 & echo $! > {written}"], 3.0, ledger)
    wait_for(lambda: bool(ledger.faults) and ledger.doing == "" and written.exists(), 60, "the command's end")
    hooks.stop()
    left = int(written.read_text())
    assert not gone(left)
    os.kill(left, 9)
    assert hooks.failed == []
