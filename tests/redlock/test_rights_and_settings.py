"""What a server's settings and a user's rights take away: noticed, told, and never believed to be there."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lockline
from lockline.backends.redlock import cluster
from tests.servers.process import wait_for
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer
from tests.tier import sample

from .operating import LONGEST, a_token, nodes_of
from .servers import Servers, servers
from .test_late_requests import both, client_of

pytestmark = pytest.mark.server


def deaf_url(three: Servers) -> str:
    """Every server with a user who may do everything but hear and be heard."""
    for node in three.nodes:
        node.command("ACL", "SETUSER", "deaf", "on", ">secret", "~*", "+@all", "resetchannels")
    return "redlock://" + ",".join(f"deaf:secret@127.0.0.1:{node.port}" for node in three.nodes)


@pytest.fixture(scope="module")
def three() -> Iterator[Servers]:
    with servers(3) as made:
        yield made


@both
def test_a_user_without_channel_rights_locks_and_releases_and_waits(three: Servers, flavour: str) -> None:
    with client_of(flavour, deaf_url(three)) as deaf, lockline.connect(three.url) as other:
        lease = deaf.do(lambda: deaf.client.lock("x").acquire(timeout=60))
        deaf.do(lambda: lease.release())
        held = other.lock("x", ttl=1.0, renew=False).acquire()
        # Nothing is heard, so only the end of the lease itself and the look now and then wake it.
        lease = deaf.do(lambda: deaf.client.lock("x").acquire(timeout=60))
        assert lease.token > held.token
        assert deaf.do(lambda: deaf.client.evict("x")) == 1
    assert not any(three.left_over("lockline:redlock:lease:*"))


@both
def test_doctor_tells_of_missing_channel_rights(three: Servers, flavour: str) -> None:
    with client_of(flavour, deaf_url(three)) as deaf:
        found = deaf.do(lambda: deaf.client.examine())
        told = [finding for finding in found if "publish" in finding.text]
        assert len(told) == 3
        assert all(finding.level == "warning" and "&lockline:redlock:*" in finding.cure for finding in told)
    with client_of(flavour, three.url) as whole:
        assert not [finding for finding in whole.do(lambda: whole.client.examine()) if "publish" in finding.text]


# -- what is on the disk ---------------------------------------------------------------------------


def state_of(three: Servers, number: int) -> cluster.NodeStatus:
    (one,) = cluster.status([nodes_of(three.url)[number]])
    return one


def restart_from(node: RedisServer, copy: Path) -> None:
    """Killed, and back with the log as it was when the copy was made."""
    node.kill()
    (log,) = node.folder.glob("appendonly*")
    if log.is_dir():
        shutil.rmtree(log)
        shutil.copytree(copy / log.name, log)
    else:
        shutil.copy(copy / log.name, log)
    node.start()


def copy_of(node: RedisServer) -> Path:
    made = node.folder / "copy"
    shutil.copytree(node.folder, made, ignore=shutil.ignore_patterns("copy"))
    return made


def test_appendfsync_always_counts_for_nothing_where_a_rewrite_suspends_it() -> None:
    with servers(3, "--no-appendfsync-on-rewrite", "yes", keeps_data=True, longest=LONGEST) as three:
        assert not state_of(three, 0).durable
        with lockline.connect(three.url) as client:
            client.lock("x", ttl=LONGEST).acquire().release()
            said = [finding for finding in client.examine() if "rewritten" in finding.text]
            assert len(said) == 3
            assert all(
                finding.level == "warning" and "no-appendfsync-on-rewrite no" in finding.cure for finding in said
            )
        three[0].kill()
        three[0].start()
        assert state_of(three, 0).state == "refusing"


@pytest.mark.parametrize(
    ("flavour", "setting"),
    sample(
        [("sync", ("appendfsync", "everysec")), ("asyncio", ("no-appendfsync-on-rewrite", "yes"))],
        [
            (flavour, setting)
            for flavour in ("sync", "asyncio")
            for setting in (("appendfsync", "everysec"), ("no-appendfsync-on-rewrite", "yes"))
        ],
    ),
)
def test_a_setting_that_was_changed_at_run_time_is_noticed_by_a_client_that_stays(
    flavour: str, setting: tuple[str, str]
) -> None:
    with servers(3, keeps_data=True, longest=LONGEST) as three, client_of(flavour, three.url) as user:

        def lock() -> Any:
            lease = user.do(lambda: user.client.lock("x", ttl=LONGEST).acquire(timeout=60))
            # A short one may be over by now on a busy machine.
            with contextlib.suppress(lockline.LeaseLost):
                user.do(lambda: lease.release())
            return lease.token

        lock()
        three[0].command("CONFIG", "SET", *setting)

        def noticed() -> bool:
            lock()
            return bool(three[0].command("HGET", "lockline:redlock:node", "durable") == "0")

        wait_for(noticed, 60, "the record to say so")
        three[0].kill()
        # Its own file of settings still says "always": only the record knows better.
        three[0].start()
        assert state_of(three, 0).state == "refusing"


def test_what_was_granted_between_a_changed_setting_and_its_discovery_is_below_the_next_token() -> None:
    """The one moment in which a server can forget and be believed: its numbers go up all the same."""
    with servers(3, keeps_data=True, longest=LONGEST) as three:
        with lockline.connect(three.url) as client:
            client._engine.backend.channel.wall = lambda: time.time_ns() // 1000 + 10**10  # type: ignore[attr-defined]
            three[1].kill()
            copy = copy_of(three[0])
            lost = client.lock("x", ttl=LONGEST).acquire(timeout=60)
            with contextlib.suppress(lockline.LeaseLost):
                lost.release()
        three[2].kill()
        restart_from(three[0], copy)
        assert state_of(three, 0).state == "serving"
        three[1].start()
        assert a_token(three.url) > lost.token


def test_a_record_of_durability_that_is_old_is_not_believed() -> None:
    with servers(3, keeps_data=True, longest=LONGEST) as three:
        assert state_of(three, 0).durable
        vouched = int(three[0].command("HGET", "lockline:redlock:node", "vouched"))
        assert abs(vouched - time.time() * 1000) < 60_000
        three[0].command("HSET", "lockline:redlock:node", "vouched", vouched - 3600 * 1000)
        three[0].kill()
        three[0].start()
        assert state_of(three, 0).state == "refusing"


def test_a_log_whose_first_rewrite_is_still_to_come_is_not_on_the_disk() -> None:
    """Switched on at run time, the log has nothing of the past until it was rewritten once."""
    with servers(3, longest=LONGEST) as three:
        node = three[0]
        node.command("CONFIG", "SET", "rdb-key-save-delay", "200000")
        for number in range(50):
            node.command("SET", f"other-{number}", "x")
        node.command("CONFIG", "SET", "appendfsync", "always")
        node.command("CONFIG", "SET", "appendonly", "yes")
        assert node.command("INFO", "persistence")["aof_rewrite_in_progress"] == 1
        state_of(three, 0)
        assert node.command("HGET", "lockline:redlock:node", "durable") == "0"
        # It would wait for its child at its end.
        node.kill()


@both
def test_doctor_waits_a_moment_for_a_server_that_is_slow_to_connect(three: Servers, flavour: str) -> None:
    """A majority is enough to talk; but one that comes a little later is not called away."""
    with Proxy(("127.0.0.1", three.nodes[2].port)) as proxy:
        proxy.delay(0.03)
        ports = [three.nodes[0].port, three.nodes[1].port, proxy.port]
        url = "redlock://" + ",".join(f"127.0.0.1:{port}" for port in ports)
        with client_of(flavour, url) as client:
            found = client.do(lambda: client.client.examine())
            assert not [finding for finding in found if finding.level == "error"]
