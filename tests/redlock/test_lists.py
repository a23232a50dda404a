"""A list of servers is the cluster's own, whole and each named once, or it is refused before anything is done with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

import lockline
from lockline import ConfigError, LeaseLost, QuorumNotReached
from lockline.backends.redlock import cluster
from lockline.backends.redlock.cluster import OperatorError
from lockline.backends.redlock.target import understand
from tests.servers.process import wait_for

from .operating import FAR, a_token, far_servers, gates, more_servers, nodes_of, run
from .proxy import proxies
from .servers import Servers, servers, url_of

pytestmark = pytest.mark.server


def twice(first: int, second: int) -> str:
    """A list of three that are two servers."""
    return f"redlock://127.0.0.1:{first},localhost:{first},127.0.0.1:{second}"


@pytest.fixture(scope="module")
def three() -> Iterator[Servers]:
    with servers(3) as started:
        yield started


def test_a_client_does_not_count_one_server_twice(three: Servers) -> None:
    bad = twice(three[0].port, three[1].port)
    with lockline.connect(bad, node_timeout=5.0) as client:
        for _ in range(2):
            with pytest.raises(QuorumNotReached, match="names one server twice"):
                client.lock("x").try_acquire()

    async def the_same() -> None:
        async with lockline.aio.connect(bad, node_timeout=5.0) as client:
            for _ in range(2):
                with pytest.raises(QuorumNotReached, match="names one server twice"):
                    await client.lock("x").try_acquire()

    asyncio.run(the_same())


def test_a_server_that_turns_out_later_to_be_named_twice_ends_it(three: Servers) -> None:
    with proxies([three[0].port]) as (twin,):
        twin.refuse()
        bad = f"redlock://127.0.0.1:{three[0].port},127.0.0.1:{twin.port},127.0.0.1:{three[1].port}"
        with lockline.connect(bad) as client:
            # Two different servers of three answer, and that is a majority.
            client.lock("x").acquire(timeout=60).release()
            twin.heal()

            def refused() -> bool:
                try:
                    client.lock("x").acquire(timeout=2).release()
                except QuorumNotReached as error:
                    return "names one server twice" in str(error)
                return False

            wait_for(refused, 60, "the twin")


def test_replace_wants_the_whole_cluster() -> None:
    """A majority of a part may be servers that have heard of nothing."""
    with far_servers(5, 0.8) as five, proxies([node.port for node in five.nodes]) as paths:
        a_token(five.url, ttl=0.8)
        with lockline.connect("redlock://" + ",".join(f"127.0.0.1:{path.port}" for path in paths)) as client:
            for path in paths[1:3]:
                path.refuse()
            for _ in range(10):
                lease = client.lock("x", ttl=0.8).acquire(timeout=60)
                # A short one may be over by now on a busy machine; its number is what counts.
                with contextlib.suppress(LeaseLost):
                    lease.release()
        five[0].command("FLUSHALL")
        label = f"127.0.0.1:{five[0].port}"
        with pytest.raises(OperatorError, match="name exactly its own"):
            cluster.replace(nodes_of(url_of(five.nodes[:3])), label)
        cluster.replace(nodes_of(url_of(list(reversed(five.nodes)))), label).act()
        (now,) = cluster.status(nodes_of(five.url)[:1])
        assert now.said is not None
        assert now.said.size == 5
        assert now.said.highest >= FAR + 11


def test_resize_wants_the_whole_old_cluster() -> None:
    """A majority of a part leaves a majority of the whole in service."""
    with servers(5, longest=0.2) as five, more_servers(3) as more:
        before = gates(five.nodes)
        with pytest.raises(OperatorError, match="name exactly its own"):
            cluster.resize(nodes_of(url_of(five.nodes[:3])), nodes_of(url_of(more)))
        assert gates(five.nodes) == before


def test_resize_looks_at_the_new_servers_before_it_retires_the_old_ones(three: Servers) -> None:
    with servers(3) as others, more_servers(2) as more:
        before = gates(three.nodes)
        with pytest.raises(OperatorError, match="another cluster"):
            cluster.resize(nodes_of(three.url), nodes_of(url_of([*more, others[0]])))
        with pytest.raises(OperatorError, match="same server"):
            cluster.resize(nodes_of(three.url), nodes_of(twice(more[0].port, more[1].port)))
        more[1].kill()
        with pytest.raises(OperatorError, match="has to be there"):
            cluster.resize(nodes_of(three.url), nodes_of(url_of([*more, three[0]])))
        assert gates(three.nodes) == before


def test_the_same_servers_in_another_order_are_the_same_cluster(three: Servers) -> None:
    assert run("init", url_of(list(reversed(three.nodes))))["plan"][0].startswith("nothing to do")


def test_a_secret_is_not_shown_and_settings_arrive_as_they_were_meant() -> None:
    url = "redlock://:pw@a,b,c?tls=yes&ssl_password=SECRET&ssl_ca_certs=/etc/a%2Bb%26c.pem&prefix=app/"
    with lockline.connect(url) as client:
        assert client.url == "redlock://a:6379,b:6379,c:6379?tls=yes&prefix=app/&ssl_ca_certs=/etc/a%2Bb%26c.pem"
    for node in understand(url, "blocking").nodes:
        assert node.server.options["ssl_ca_certs"] == "/etc/a+b&c.pem"
        assert node.server.options["ssl_password"] == "SECRET"


def test_port_zero_is_no_port() -> None:
    with pytest.raises(ConfigError, match="host:port"):
        lockline.connect("redlock://a:0,b,c")
