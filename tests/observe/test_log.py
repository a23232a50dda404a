"""The log: a loss is a warning with its cause, by default; no secrets; one record is one line."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

import lockline
from lockline.core import events
from lockline.fence import Mark, Offer
from lockline.fence.rule import passed
from lockline.observe import Asked, Event, FenceRefused, Granted, Lost, Released, StoreSilent
from lockline.observe.logging import TEMPLATES, log_event

from ..contract.faults import Faults
from ..contract.scene import A_MINUTE, Scene
from ..servers.process import free_port, wait_for

NASTY = "orders\n2026-01-01 ERROR \x1b[31mforged\r\u202e"


def told(caplog: pytest.LogCaptureFixture, what: str) -> list[logging.LogRecord]:
    return [record for record in list(caplog.records) if getattr(record, "lockline_event", "") == what]


def test_a_loss_is_a_warning_with_its_cause_though_nobody_configured_anything(world: Scene, caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    alice = world.party()
    lease = alice.lock("x", ttl=world.ttl(0.6)).acquire()
    Faults(alice).fail("renew", times=None)
    assert lease.lost.wait(A_MINUTE)
    wait_for(lambda: told(caplog, "lost"), A_MINUTE, "the record")
    (record,) = told(caplog, "lost")
    assert (record.name, record.levelno) == ("lockline", logging.WARNING)
    assert "has not confirmed it since" in record.message
    assert vars(record)["lockline_cause"] == "silent"
    assert vars(record)["lockline_token"] == lease.token
    (silent,) = told(caplog, "store silent")
    assert silent.levelno == logging.WARNING
    assert not told(caplog, "granted"), "what goes well is not told of where nobody asked for it"


def test_the_cure_is_in_it_when_a_thread_has_ended(world: Scene, caplog: pytest.LogCaptureFixture) -> None:
    alice = world.party()
    other = world.sibling(alice)
    lease = other.lock("x", ttl=world.ttl(0.3)).acquire().given_to(alice)
    other.end()
    assert lease.lost.wait(A_MINUTE)
    wait_for(lambda: told(caplog, "lost"), A_MINUTE, "the record")
    assert "adopt()" in told(caplog, "lost")[0].message


def test_whoever_was_evicted_by_its_token_hears_by_whom(world: Scene, caplog: pytest.LogCaptureFixture) -> None:
    alice = world.party()
    lease = alice.lock("x").acquire()
    with lockline.connect(world.place, owner="ada\x1b[31m:1", **world.world.options()) as operator:
        assert operator.evict("x", token=lease.token + 1) == 0
        assert operator.evict("x", token=lease.token) == 1
        assert lease.lost.wait(A_MINUTE)
        wait_for(lambda: told(caplog, "lost"), A_MINUTE, "the record")
        assert "it was evicted by ada\\x1b[31m:1;" in told(caplog, "lost")[0].message
        again = alice.lock("x").acquire()
        assert operator.evict("x") == 1
        assert again.lost.wait(A_MINUTE)
        wait_for(lambda: len(told(caplog, "lost")) == 2, A_MINUTE, "the record")
        assert "an operator evicted it, or" in told(caplog, "lost")[1].message


def test_what_a_program_asked_for_itself_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lockline")
    with lockline.connect("memory:quiet") as client:
        lease = client.lock("x").acquire()
    assert not lease.valid
    wait_for(lambda: told(caplog, "lost"), A_MINUTE, "the record")
    assert [record.levelno for record in told(caplog, "lost")] == [logging.INFO]


def test_at_debug_the_whole_story_is_told(world: Scene, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "lockline")
    alice = world.party()
    alice.lock(NASTY).acquire().release()
    wait_for(lambda: told(caplog, "released"), A_MINUTE, "the end")
    ours = [record for record in caplog.records if hasattr(record, "lockline_event")]
    assert [vars(record)["lockline_event"] for record in ours] == ["asked", "granted", "released"]
    for record in ours:
        assert record.message.isprintable(), "one record is one line, and nothing speaks to the terminal"
        assert record.levelno == logging.DEBUG
        assert all(value.isprintable() for key, value in vars(record).items() if key.startswith("lockline_") and isinstance(value, str))  # fmt: skip


def test_a_refusal_at_a_fence_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(lockline.StaleToken):
        passed(NASTY, Mark(9, "new"), Offer(NASTY, 7, "old"), writes=True, exact=False)
    wait_for(lambda: told(caplog, "fence refused"), A_MINUTE, "the record")
    (record,) = told(caplog, "fence refused")
    assert record.levelno == logging.WARNING
    assert "token 7" in record.message
    assert record.message.isprintable()


def test_every_event_has_its_words() -> None:
    made = {value for value in vars(events).values() if isinstance(value, type) and "what" in vars(value)} - {Event}
    assert made == set(TEMPLATES)


def test_no_password_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "lockline")
    heard: list[Event] = []
    client = lockline.connect(f"redis://me:hunter2secret@127.0.0.1:{free_port()}", on_event=heard.append)
    with pytest.raises(lockline.BackendUnavailable):
        client.lock("x", ttl=0.3).acquire(timeout=0.2)
    client.close()
    wait_for(lambda: any(isinstance(event, StoreSilent) for event in heard), A_MINUTE, "the silence")
    assert "hunter2secret" not in repr(heard)
    assert "hunter2secret" not in " ".join(f"{record.message} {vars(record)}" for record in caplog.records)


def test_a_program_without_logging_sees_its_loss_on_stderr() -> None:
    program = """
import lockline
holder, operator = lockline.connect("memory:a"), lockline.connect("memory:a")
lease = holder.lock("nightly").acquire()
operator.evict("nightly")
lease.lost.wait(60)
holder.close()
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.startswith("'nightly': the lease was lost")
    assert ran.stderr.count("\n") == 1


def test_words_are_made_only_for_those_who_read_them(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "lockline")
    log_event(FenceRefused(at=0.0, resource="r", lock="l", offered=1, highest=2))
    assert not caplog.records
    for kind in (Asked, Granted, Released, Lost):
        assert kind in TEMPLATES
