"""`lockline redlock resize`: whole, interrupted at every point, and repeated."""

from __future__ import annotations

import signal
import subprocess
from functools import partial
from typing import Any

import pytest

import lockline
from lockline import LeaseLost, QuorumNotReached
from lockline.backends.redlock import cluster
from lockline.backends.redlock.cluster import GreetedServer, OperatorError
from tests.servers.process import wait_for
from tests.tier import sample

from .operating import COMMAND, LONGEST, a_token, far_servers, gates, more_servers, nodes_of, run
from .servers import servers, url_of

pytestmark = pytest.mark.server

SHORT = 0.2


@pytest.mark.slow
def test_resize_moves_to_other_servers_and_tokens_go_on_rising() -> None:
    """Four calls of the command, two of which wait for one longest ttl."""
    with servers(3, longest=LONGEST) as three, more_servers(2) as more:
        client = lockline.connect(three.url)
        held = client.lock("held", ttl=LONGEST).acquire()
        before = a_token(three.url)
        new = url_of([*three.nodes, *more])
        assert len(run("resize", new, three.url, "--dry-run")["plan"]) == 4
        made = run("resize", new, three.url)
        assert made["done"]
        assert a_token(new) > before
        # Whoever still has the old list hears of it, and what it held is lost.
        with pytest.raises(QuorumNotReached):
            client.lock("x", ttl=LONGEST).acquire()
        with pytest.raises(LeaseLost):
            held.check()
        client.close()
        assert run("resize", new, three.url)["plan"][0].startswith("nothing to do")
        smaller = url_of([three[0], *more])
        token = a_token(new)
        run("resize", smaller, new)
        assert a_token(smaller) > token
        with lockline.connect(new) as old, pytest.raises(QuorumNotReached):
            old.lock("x", ttl=LONGEST).acquire()


def test_the_new_servers_count_from_the_highest_number_of_the_old_ones() -> None:
    with far_servers(3, SHORT) as three, more_servers(3) as more:
        before = a_token(three.url, ttl=SHORT)
        seen = []

        def look(seconds: float) -> None:
            assert seconds > SHORT
            seen.extend([*gates(three.nodes), *gates(more)])

        cluster.resize(nodes_of(three.url), nodes_of(url_of(more)), sleep=look).act()
        # It waits when the old set serves no longer and the new one does not yet.
        assert [str(gate).partition(" ")[0] for gate in seen] == ["retired"] * 3 + ["None"] * 3
        assert a_token(url_of(more), ttl=SHORT) > before


def test_nothing_is_set_up_unless_a_majority_of_the_old_servers_is_retired() -> None:
    with servers(3, longest=SHORT) as three, more_servers(3) as more:
        plan = cluster.resize(nodes_of(three.url), nodes_of(url_of(more)))
        for node in three.nodes[1:]:
            node.kill()
        with pytest.raises(OperatorError, match="only 1 of the old servers"):
            plan.act()
        assert gates(more) == [None] * 3


def interrupt(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """A Ctrl-C after so many records and opened gates."""
    done = 0

    def counted(real: Any, *args: Any, **options: Any) -> Any:
        nonlocal done
        if done == after:
            raise KeyboardInterrupt
        done += 1
        return real(*args, **options)

    install, ask = GreetedServer.install, GreetedServer.ask

    def counted_ask(self: GreetedServer, request: Any, cluster: str) -> Any:
        return counted(ask, self, request, cluster) if request.op == "open" else ask(self, request, cluster)

    monkeypatch.setattr(GreetedServer, "ask", counted_ask)
    monkeypatch.setattr(GreetedServer, "install", lambda *args, **options: counted(install, *args, **options))


@pytest.mark.parametrize(
    ("to", "after"),
    sample(
        [("more", 0), ("more", 3), ("more", 6), ("more", 10), ("others", 2), ("others", 3), ("the same", 1), ("the same", 4)],
        [("more", after) for after in (0, 2, 3, 5, 6, 7, 10)]
        + [("others", after) for after in (0, 2, 3, 4)]
        + [("the same", after) for after in (1, 2, 3, 4)],
    ),
)  # fmt: skip
def test_a_resize_that_was_interrupted_goes_on_when_it_is_repeated(to: str, after: int) -> None:
    with far_servers(3, SHORT) as three, more_servers(3) as more:
        before = a_token(three.url, ttl=SHORT)
        new = url_of({"more": [*three.nodes, *more], "others": more, "the same": three.nodes}[to])
        count = len(nodes_of(new))
        first = cluster.resize(nodes_of(three.url), nodes_of(new))
        with pytest.MonkeyPatch.context() as patched:
            interrupt(patched, after)
            with pytest.raises(KeyboardInterrupt):
                first.act()
        if after <= count:
            # No gate is open before every server has its record.
            with lockline.connect(new) as client, pytest.raises(QuorumNotReached):
                client.lock("x", ttl=SHORT).try_acquire()
        again = cluster.resize(nodes_of(three.url), nodes_of(new))
        assert again.result == first.result
        again.act()
        assert [one.state for one in cluster.status(nodes_of(new))] == ["serving"] * count
        assert a_token(new, ttl=SHORT) > before


def test_a_server_that_forgot_after_the_move_is_not_taken_for_a_new_one() -> None:
    with far_servers(3, SHORT) as three, more_servers(2) as more:
        new = url_of([*three.nodes, *more])
        cluster.resize(nodes_of(three.url), nodes_of(new)).act()
        before = a_token(new, ttl=SHORT)
        more[0].command("FLUSHALL")
        with pytest.raises(OperatorError, match="replace"):
            cluster.resize(nodes_of(three.url), nodes_of(new))
        cluster.replace(nodes_of(new), f"127.0.0.1:{more[0].port}").act()
        assert cluster.resize(nodes_of(three.url), nodes_of(new)).sentences[0].startswith("nothing to do")
        assert a_token(new, ttl=SHORT) > before


def test_an_interrupted_step_says_that_it_goes_on_and_one_that_fails_names_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Longer than anybody waits: the step is met while it waits, and where it is not to wait it sleeps in no time.
    with servers(3, longest=600.0) as three, more_servers(3) as more:
        new = url_of(more)
        words = [*COMMAND, "resize", new, three.url]
        step = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            # Whoever runs the tests in the background of a shell may have had it ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        wait_for(lambda: all("retired" in str(gate) for gate in gates(three.nodes)), 120, "the gates")
        step.send_signal(signal.SIGINT)
        _, told = step.communicate(timeout=120)
        assert step.returncode == 128 + signal.SIGINT
        assert "goes on" in told
        assert "nothing was changed" not in told
        assert "retired" in run("init", three.url, code=69)
        monkeypatch.setattr(cluster, "resize", partial(cluster.resize, sleep=lambda seconds: more[1].kill()))
        told = run("resize", new, three.url, code=69)
        assert f"127.0.0.1:{more[1].port}" in told
        assert "repeat the step" in told
        assert "Traceback" not in told
        more[1].start()
        monkeypatch.setattr(cluster, "resize", partial(cluster.resize, sleep=lambda seconds: None))
        assert run("resize", new, three.url)["done"]
        a_token(new)
