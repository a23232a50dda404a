"""`lockline redlock`: each step shows what it will do, can be repeated, and keeps the tokens rising."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

import lockline
from lockline import ConfigError, QuorumNotReached
from lockline.backends.redlock import cluster
from lockline.backends.redlock.cluster import OperatorError
from lockline.backends.redlock.target import understand
from tests.servers.process import wait_for
from tests.servers.redis import RedisServer, a_folder
from tests.tier import sample

from .operating import FAR, LONGEST, a_token, end_refusal, far_servers, nodes_of, refuses_until, run
from .servers import Servers, servers, shared_nodes, url_of

pytestmark = pytest.mark.server

LATER = 600.0
"""A longest ttl that no test waits for: a server that refuses for so long is met while it does."""


@pytest.fixture
def bare() -> Iterator[Servers]:
    """Three servers that nobody has set up."""
    with shared_nodes(3) as nodes:
        yield Servers.of(nodes)


def test_servers_that_were_never_set_up_say_what_to_do(bare: Servers) -> None:
    with lockline.connect(bare.url) as client, pytest.raises(QuorumNotReached, match="lockline redlock init") as caught:
        client.lock("x").try_acquire()
    assert len(caught.value.nodes) == 3
    assert all("empty" in what for what in caught.value.nodes.values())


def test_init_makes_a_cluster_and_again_changes_nothing(bare: Servers) -> None:
    shown = run("init", bare.url, "--dry-run")
    assert shown["done"] is False
    assert len(shown["plan"]) == 4
    assert run("status", bare.url, code=1)["serving"] is False
    made = run("init", bare.url, "--max-ttl", "5s")
    assert made["done"]
    first = a_token(bare.url)
    again = run("init", bare.url)
    assert again["cluster"] == made["cluster"]
    assert again["plan"][0].startswith("nothing to do")
    assert a_token(bare.url) > first
    told = run("status", bare.url)
    assert told["serving"]
    assert {node["state"] for node in told["nodes"]} == {"serving"}
    assert {node["max_ttl"] for node in told["nodes"]} == {5.0}


def test_a_ttl_beyond_the_clusters_longest_is_refused(bare: Servers) -> None:
    run("init", bare.url, "--max-ttl", "5s")
    with lockline.connect(bare.url) as client, pytest.raises(lockline.ConfigError, match="max-ttl"):
        client.lock("x", ttl=6).acquire()
    assert bare.left_over() == [[], [], []]


def test_the_longest_ttl_of_a_cluster_stays(bare: Servers) -> None:
    with pytest.raises(ConfigError, match="millisecond"):
        cluster.init(nodes_of(bare.url), longest=0.0004)
    run("init", bare.url, "--max-ttl", "5s")
    assert run("init", bare.url, "--max-ttl", "5s")["plan"][0].startswith("nothing to do")
    assert "up to 5 s" in run("init", bare.url, "--max-ttl", "5m", code=69)


def test_init_does_not_take_a_wiped_server_for_a_new_one(bare: Servers) -> None:
    run("init", bare.url, "--max-ttl", "1s")
    a_token(bare.url)
    bare[0].command("FLUSHALL")
    told = run("init", bare.url, code=69)
    assert "replace" in told


def test_an_init_that_was_interrupted_can_be_repeated(bare: Servers) -> None:
    nodes = understand(bare.url, "blocking").nodes
    bare[2].freeze()
    with pytest.raises(OperatorError):
        cluster.init(nodes)
    bare[2].thaw()
    plan = cluster.init(nodes)
    bare[2].kill()
    with pytest.raises(OperatorError, match="repeat the step"):
        plan.act()
    # Two servers have their records, and no gate is open, so nothing can have been granted.
    with lockline.connect(bare.url) as client, pytest.raises(QuorumNotReached):
        client.lock("x").try_acquire()
    bare[2].start()
    run("init", bare.url)
    a_token(bare.url)


def test_one_server_named_twice_is_found_out(bare: Servers) -> None:
    twice = f"redlock://127.0.0.1:{bare[0].port},localhost:{bare[0].port},127.0.0.1:{bare[1].port}"
    assert "same server" in run("init", twice, code=69)


def test_a_client_with_another_list_is_refused_loudly() -> None:
    with servers(5) as five, lockline.connect(url_of(five.nodes[:3])) as client:
        with pytest.raises(QuorumNotReached, match="not the cluster's own") as caught:
            client.lock("x").try_acquire()
        assert any("set of 5" in what for what in caught.value.nodes.values())


# A server that was wiped and one that was flushed look the same to all others: both are empty.
@pytest.mark.parametrize("how", sample(["wipe"], ["FLUSHALL", "wipe"]))
def test_a_wiped_server_stays_out_until_it_is_replaced(how: str) -> None:
    with servers(3, longest=LONGEST) as three:
        before = a_token(three.url)
        if how == "wipe":
            three[0].kill()
            three[0].start()
        else:
            three[0].command("FLUSHALL")
        # The other two go on; the empty one gives nothing.
        middle = a_token(three.url)
        assert middle > before
        assert three[0].command("KEYS", "*") == []
        label = f"127.0.0.1:{three[0].port}"
        shown = run("replace", label, three.url, "--dry-run")
        assert len(shown["plan"]) == 3
        began = time.monotonic()
        assert run("replace", label, three.url)["done"]
        assert time.monotonic() - began > LONGEST
        assert run("replace", label, three.url)["plan"][0].startswith("nothing to do")
        # Now it counts, together with one other alone.
        three[1].kill()
        assert a_token(three.url) > middle


def test_replace_reads_the_numbers_after_it_has_waited_and_not_before() -> None:
    with far_servers(3, LONGEST) as three:
        three[0].command("FLUSHALL")
        granted: list[Any] = []
        plan = cluster.replace(
            nodes_of(three.url),
            f"127.0.0.1:{three[0].port}",
            sleep=lambda seconds: granted.extend(a_token(three.url) for _ in range(3)),
        )
        plan.act()
        (now,) = cluster.status(nodes_of(three.url)[:1])
        assert now.state == "serving"
        assert now.said is not None
        assert now.said.highest >= max(granted) > FAR


def test_replace_needs_a_majority_of_the_others_when_it_reads() -> None:
    with servers(3, longest=LONGEST) as three:
        three[0].command("FLUSHALL")
        label = f"127.0.0.1:{three[0].port}"
        plan = cluster.replace(nodes_of(three.url), label, sleep=lambda seconds: three[1].kill())
        with pytest.raises(OperatorError, match="nothing was changed"):
            plan.act()
        assert three[0].command("KEYS", "*") == []


def test_a_server_that_restarts_while_it_is_kept_out_begins_anew() -> None:
    with servers(3, longest=LONGEST) as three:
        three[0].command("FLUSHALL")

        def restart(seconds: float) -> None:
            three[0].kill()
            three[0].start()

        plan = cluster.replace(nodes_of(three.url), f"127.0.0.1:{three[0].port}", sleep=restart)
        with pytest.raises(OperatorError, match="restarted; repeat the step"):
            plan.act()
        assert three[0].command("KEYS", "*") == []


def test_a_server_may_close_the_idle_connection_while_it_is_kept_out() -> None:
    with servers(3, longest=LONGEST) as three:
        three[0].command("FLUSHALL")
        plan = cluster.replace(
            nodes_of(three.url),
            f"127.0.0.1:{three[0].port}",
            sleep=lambda seconds: three[0].command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"),
        )
        plan.act()
        assert run("status", three.url)["nodes"][0]["state"] == "serving"


def test_a_majority_that_was_wiped_needs_a_floor_from_the_operator() -> None:
    with servers(3, longest=LONGEST) as three:
        before = a_token(three.url)
        for node in three.nodes[:2]:
            node.command("FLUSHALL")
        with lockline.connect(three.url) as client, pytest.raises(QuorumNotReached, match="floor"):
            client.lock("x", ttl=LONGEST).acquire()
        assert "floor" in run("replace", f"127.0.0.1:{three[0].port}", three.url, code=69)
        assert "above" in run("init", three.url, "--floor", str(before), code=69)
        floor = before + 10**12
        run("init", three.url, "--floor", str(floor))
        assert a_token(three.url) > floor


def test_a_restart_that_may_have_lost_something_jumps_and_refuses_for_a_while() -> None:
    with servers(3, "--appendonly", "yes", "--appendfsync", "everysec", longest=LATER) as three:
        before = a_token(three.url)
        three[0].kill()
        began = time.time()
        three[0].start()
        three[1].kill()
        with lockline.connect(three.url, node_timeout=5.0) as client:
            (now,) = cluster.status(nodes_of(three.url)[:1])
            assert now.state == "refusing"
            assert refuses_until(three[0]) > began + LATER
            with pytest.raises(QuorumNotReached) as caught:
                client.lock("x", ttl=LONGEST).try_acquire()
            assert any("not ready" in what for what in caught.value.nodes.values())
            assert any("unreachable" in what for what in caught.value.nodes.values())
            end_refusal(three[0])
            wait_for(lambda: _try(client), 60, "the end of the refusal")
        assert a_token(three.url) > before + 2**32


def test_whoever_only_looks_sees_that_the_refusal_is_over() -> None:
    with servers(3, "--appendonly", "yes", "--appendfsync", "everysec", longest=LATER) as three:
        for node in three.nodes:
            node.kill()
        for node in three.nodes:
            node.start()

        def states() -> set[str]:
            return {one.state for one in cluster.status(nodes_of(three.url))}

        assert states() == {"refusing"}
        # Nobody has lost all of its memory: a floor from the operator would be the wrong cure.
        with pytest.raises(QuorumNotReached, match="repeat the step"):
            cluster.replace(nodes_of(three.url), f"127.0.0.1:{three[0].port}")
        for node in three.nodes:
            end_refusal(node)
        assert states() == {"serving"}
        assert run("status", three.url)["serving"]


def test_doctor_knows_snapshots_and_shut_gates() -> None:
    with servers(3, "--save", "1 1", longest=LATER) as three:

        def said() -> list[str]:
            with lockline.connect(three.url, node_timeout=5.0) as client:
                return [f"{found.level} {found.text}" for found in client.examine()]

        assert sum("keeps snapshots at most" in text for text in said()) == 3
        three[0].command("SAVE")
        three[0].kill()
        three[0].start()
        assert any(text.startswith("warning") and "refuses for another" in text for text in said())
        end_refusal(three[0])
        assert not any("refuses for another" in text for text in said())
        three[0].command("FLUSHALL")
        assert any(text.startswith("error") and "empty" in text for text in said())


def _try(client: Any) -> bool:
    try:
        lease = client.lock("x", ttl=LONGEST).try_acquire()
    except QuorumNotReached:
        return False
    if lease is not None:
        # A short one may be over by now on a busy machine; that it was granted is what counts.
        with contextlib.suppress(lockline.LeaseLost):
            lease.release()
    return lease is not None


def test_a_restart_of_a_server_that_forgets_nothing_changes_nothing() -> None:
    with servers(3, keeps_data=True, longest=60.0) as three, lockline.connect(three.url) as client:
        lease = client.lock("x", ttl=60).acquire()
        for node in three.nodes:
            node.kill()
        for node in three.nodes:
            node.start()
        lease.extend(60)
        assert lease.valid
        other = client.lock("y").acquire(timeout=60)
        assert other.token > lease.token
        other.release()
        lease.release()


def test_a_rollback_to_an_older_copy_keeps_tokens_rising() -> None:
    import shutil

    with servers(3, "--appendonly", "yes", "--appendfsync", "everysec", longest=LONGEST) as three:
        first = a_token(three.url)
        old = three[0].folder / "copy"
        shutil.copytree(three[0].folder, old, ignore=shutil.ignore_patterns("copy"))
        tokens = [a_token(three.url) for _ in range(5)]
        three[0].kill()
        # A folder of files since Redis 7, one file before.
        (log,) = three[0].folder.glob("appendonly*")
        if log.is_dir():
            shutil.rmtree(log)
            shutil.copytree(old / log.name, log)
        else:
            shutil.copy(old / log.name, log)
        three[0].start()
        three[1].kill()
        tokens.append(a_token(three.url))
        assert [first, *tokens] == sorted({first, *tokens})


def test_a_replica_that_was_promoted_is_not_taken_for_its_primary() -> None:
    with servers(3, keeps_data=True, longest=LONGEST) as three, a_folder("redlock-replica") as folder:
        a_token(three.url)
        replica = RedisServer(folder, "--replicaof", "127.0.0.1", str(three[0].port), keeps_data=True)
        three[0].command("CONFIG", "SET", "repl-diskless-sync-delay", "0")
        replica.start()
        try:
            wait_for(lambda: replica.command("ROLE")[3] == "connected", 60, "replication")
            wait_for(lambda: len(replica.command("KEYS", "*")) == 3, 60, "the copy")
            three[0].kill()
            replica.command("REPLICAOF", "NO", "ONE")
            (promoted,) = cluster.status([understand(url_of([replica, *three.nodes[1:]]), "blocking").nodes[0]])
            assert promoted.durable
            assert promoted.state == "refusing"
        finally:
            # To end it gently takes ten seconds: it writes its log anew.
            replica.kill()
