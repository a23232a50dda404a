"""Who may touch what: digest logins, ACLs, TLS, and the user's own client."""

from __future__ import annotations

import gc
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import make_acl

import lockline
from lockline import BackendUnavailable
from lockline.core.claim import Unanswered
from lockline.runtime.blocking import run
from lockline.runtime.clock import now

from ..servers.process import free_port, program, wait_for
from ..servers.zookeeper import ZooKeeper, facts
from .conftest import chroot

pytestmark = pytest.mark.server
Clients = Callable[..., lockline.Client]


def close_for_good(client: lockline.Client) -> None:
    """Close it and wait until kazoo's thread has ended, and collect what it left behind."""
    client.close()
    connection = client._engine.backend._channel.client._connection  # type: ignore[attr-defined]
    assert connection.connection_stopped.wait(60)
    wait_for(lambda: connection._connection_routine is None or not connection._connection_routine.is_alive())
    gc.collect()


def test_what_a_client_with_a_login_makes_is_its_own(client_of: Clients, url: str, kazoo: KazooClient) -> None:
    signed = url.replace("zk://", "zk://me:secret@")
    client = client_of(signed)
    lease = client.lock("x").acquire()
    with pytest.raises(NoAuthError):
        kazoo.get_children(f"{chroot(url)}/x")
    with pytest.raises(BackendUnavailable, match="credentials do not fit"):
        client_of(url).lock("x").acquire(timeout=60)
    with pytest.raises(BackendUnavailable, match="credentials do not fit"):
        client_of(url.replace("zk://", "zk://you:other@")).inspect("x")
    assert client_of(signed).lock("x").try_acquire() is None
    lease.release()
    client_of(signed).lock("x").acquire(timeout=60).release()


def test_an_open_acl_can_be_asked_for(client_of: Clients, url: str) -> None:
    lease = client_of(url.replace("zk://", "zk://me:secret@") + "?acl=open").lock("x").acquire()
    assert client_of(url).lock("x").try_acquire() is None
    lease.release()


READS_AND_REMOVES = [make_acl("world", "anyone", read=True, create=True, delete=True)]


def test_a_change_that_the_acl_forbids_is_refused_at_once_and_the_lease_stays_good(
    client_of: Clients, url: str, server: ZooKeeper
) -> None:
    client = client_of(url, acl=READS_AND_REMOVES)
    beside = client.lock("y", ttl=20).acquire()
    lease = client.rwlock("x", ttl=20).write().acquire()
    before = int(facts(server.port)["zk_packets_received"])
    with pytest.raises(BackendUnavailable, match="credentials do not fit"):
        lease.extend(30)
    assert int(facts(server.port)["zk_packets_received"]) - before < 30
    claims = [lease._live.claim._replace(weight=1, kind="read"), beside._live.claim]
    refused, renewed = run(client._engine.backend.renew(claims, now() + 20))
    assert isinstance(refused, Unanswered)
    assert "credentials do not fit" in str(refused.problem)
    assert renewed is None
    assert lease.valid
    lease.release()
    beside.release()


def test_a_chroot_that_may_not_be_made_is_an_error_at_once(client_of: Clients, url: str, kazoo: KazooClient) -> None:
    closed = "/" + url.rpartition("/")[2]
    kazoo.create(closed, acl=[make_acl("world", "anyone", read=True, admin=True)])
    client = client_of(f"{url}/deeper")
    with pytest.raises(BackendUnavailable, match="credentials do not fit"):
        client.lock("x").acquire(timeout=3600)  # an acquire that asked again until its deadline would hang here


def test_a_waiter_that_may_no_longer_read_the_line_is_told_at_once(
    client_of: Clients, url: str, kazoo: KazooClient
) -> None:
    client, other = client_of(url), client_of(url)
    held = other.lock("x").acquire()
    told: list[str] = []

    def wait() -> None:
        try:
            client.lock("x").acquire(timeout=3600)
        except lockline.LocklineError as problem:
            told.append(str(problem))

    waiter = threading.Thread(target=wait)
    waiter.start()
    wait_for(lambda: len(other.inspect("x").waiters) == 1)
    kazoo.set_acls(f"{chroot(url)}/x", [make_acl("world", "anyone", create=True, delete=True)])
    # With its connection it loses its watches, and has to look.
    client._engine.backend._channel.client._connection._socket.shutdown(2)  # type: ignore[attr-defined]
    wait_for(lambda: told, 60, "the refusal")
    waiter.join(60)
    assert len(told) == 1
    assert "credentials do not fit" in told[0]
    held.release()


def test_an_eviction_that_the_acl_forbids_is_an_error(client_of: Clients, url: str) -> None:
    acl = [make_acl("auth", "", all=True), make_acl("world", "anyone", read=True)]
    lease = client_of(url.replace("zk://", "zk://me:secret@"), acl=acl).lock("x").acquire()
    with pytest.raises(BackendUnavailable, match="credentials do not fit"):
        client_of(url).evict("x")
    assert lease.valid
    lease.release()


@pytest.fixture
def own(server: ZooKeeper, url: str, kazoo: KazooClient) -> Iterator[KazooClient]:
    """A user's own client, connected at the place of this test."""
    name = url.rpartition("/")[2]
    kazoo.ensure_path(f"/{name}")
    client = KazooClient(hosts=f"127.0.0.1:{server.port}/{name}", timeout=5)
    client.start(timeout=60)
    yield client
    client.stop()
    client.close()


def test_two_clients_share_the_users_own_and_leave_it_as_it_was(own: KazooClient, client_of: Clients) -> None:
    own.state_listeners.clear()
    before = dict(vars(own._connection))
    first, second = client_of(own), client_of(own)
    held = first.lock("x").acquire(timeout=60)
    with second.lock("y").acquire(timeout=60):
        assert second.lock("x").try_acquire() is None
        assert own.exists("/lockline/x") is not None
    first.close()
    second.lock("x").acquire(timeout=60).release()
    assert not held.valid
    # It hears of a new connection still.
    own._connection._socket.shutdown(2)
    second.lock("x").acquire(timeout=60).release()
    second.close()
    assert own.exists("/lockline") is not None
    assert not own.state_listeners
    assert not {"_connect", "_send_ping", "_send_request"} & (set(vars(own._connection)) - set(before))


def test_a_wait_in_a_callback_of_the_users_client_is_refused_at_once(own: KazooClient, client_of: Clients) -> None:
    client = client_of(own)
    client.lock("x").acquire(timeout=60).release()
    told: list[object] = []

    def wait(_: object) -> None:
        if not told or isinstance(told[-1], lockline.WouldDeadlock):
            try:
                client.lock("x").acquire(timeout=3600)
            except lockline.LocklineError as problem:
                told.append(problem)

    own.ensure_path("/watched")
    own.get("/watched", watch=wait)
    own.set("/watched", b"changed")
    wait_for(lambda: len(told) == 1)
    own.add_listener(lambda state: wait(state) if state == "CONNECTED" else None)
    own._connection._socket.shutdown(2)
    wait_for(lambda: len(told) == 2)
    assert [type(problem) for problem in told] == [lockline.WouldDeadlock] * 2
    # A try does not wait, so a watch may make one.
    tried: list[lockline.Lease | None] = []
    own.get("/watched", watch=lambda _: tried.append(client.lock("x").try_acquire()))
    own.set("/watched", b"again")
    wait_for(lambda: tried)
    assert tried[0] is not None
    tried[0].release()


@pytest.mark.parametrize("started", [False, True])
def test_the_users_own_client_carries_the_claims_and_is_left_as_it_was(
    server: ZooKeeper, client_of: Clients, url: str, kazoo: KazooClient, started: bool
) -> None:
    name = url.rpartition("/")[2]
    kazoo.ensure_path(f"/{name}")
    own = KazooClient(hosts=f"127.0.0.1:{server.port}/{name}", timeout=5)
    states: list[str] = []
    own.add_listener(states.append)
    if started:
        own.start()
    client = lockline.connect(own)
    lease = client.lock("x").acquire(timeout=60)
    (node,) = own.get_children("/lockline/x")
    assert own.get(f"/lockline/x/{node}")[1].ephemeralOwner == own.client_id[0]
    assert client._engine.backend._channel.session.timeout == pytest.approx(5)  # type: ignore[attr-defined]
    assert client_of(url).lock("x").try_acquire() is None
    lease.release()
    held = client.lock("x").try_acquire()
    assert held is not None
    client.close()
    assert own.connected
    assert own.exists("/lockline/x") is not None
    client_of(url).lock("x").acquire(timeout=60).release()
    own.stop()
    own.close()


def test_a_users_client_that_was_stopped_is_an_error_and_no_wait(server: ZooKeeper, url: str) -> None:
    own = KazooClient(hosts=f"127.0.0.1:{server.port}")
    client = lockline.connect(own)
    client.lock("x").acquire(timeout=60).release()
    own.stop()
    with pytest.raises(BackendUnavailable, match="has been stopped"):
        client.lock("x").acquire(timeout=3600)
    client.close()
    own.close()


JAAS = """
Server {
    org.apache.zookeeper.server.auth.DigestLoginModule required user_me="secret";
};
"""


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ZooKeeper, int, Path]]:
    """A server with all that the shared one has not: a port for TLS, logins by SASL, and sessions of a minute or more."""
    folder = tmp_path_factory.mktemp("tls")
    key, ca, both = folder / "key.pem", folder / "ca.pem", folder / "both.pem"
    subprocess.run(
        [
            program("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
            "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", str(key), "-out", str(ca),
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    both.write_bytes(key.read_bytes() + ca.read_bytes())
    (folder / "jaas.conf").write_text(JAAS)
    port = free_port()
    server = ZooKeeper(
        folder / "server",
        settings={
            "secureClientPort": port, "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
            "minSessionTimeout": 60000, "4lw.commands.whitelist": "srvr",
        },
        properties={
            "zookeeper.ssl.keyStore.location": str(both), "zookeeper.ssl.trustStore.location": str(ca),
            "zookeeper.ssl.clientAuth": "none", "java.security.auth.login.config": str(folder / "jaas.conf"),
        },
    ).start()  # fmt: skip
    yield server, port, ca
    server.stop()


# kazoo leaves the socket of a failed handshake to the garbage; on a busy machine a handshake may take too long and fail.
FAILED_HANDSHAKES = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@FAILED_HANDSHAKES
def test_a_lock_over_tls(secure: tuple[ZooKeeper, int, Path], client_of: Clients) -> None:
    server, port, ca = secure
    client = client_of(f"zk://127.0.0.1:{port}/tls?tls=yes&ca={ca}&check_hostname=yes")
    with client.lock("x").acquire(timeout=60):
        assert client_of(f"{server.url}/tls").lock("x").try_acquire() is None
    assert not client.inspect("x").claims
    levels = {finding.level for finding in client.examine()}
    assert "error" not in levels
    close_for_good(client)


@FAILED_HANDSHAKES
def test_a_certificate_that_nobody_vouches_for_is_refused(
    secure: tuple[ZooKeeper, int, Path], client_of: Clients
) -> None:
    _, port, _ = secure
    client = client_of(f"zk://127.0.0.1:{port}/tls?tls=yes")
    with pytest.raises(BackendUnavailable):
        client.lock("x").acquire(timeout=0.5)
    close_for_good(client)


@FAILED_HANDSHAKES
def test_a_login_by_sasl(secure: tuple[ZooKeeper, int, Path], client_of: Clients) -> None:
    pytest.importorskip("puresasl", reason="SASL needs pure-sasl")
    server, _, _ = secure
    signed = client_of(f"zk://me:secret@127.0.0.1:{server.port}/app?sasl=digest-md5")
    lease = signed.lock("x").acquire(timeout=60)
    with pytest.raises(BackendUnavailable, match="credentials do not fit"):
        client_of(f"{server.url}/app").lock("x").acquire(timeout=60)
    lease.release()
    wrong = client_of(f"zk://me:wrong@127.0.0.1:{server.port}/app?sasl=digest-md5")
    with pytest.raises(BackendUnavailable):
        wrong.lock("x").acquire(timeout=1)
    for client in (signed, wrong):
        close_for_good(client)


def test_the_doctor_sees_a_single_server_and_what_it_gives(client_of: Clients, url: str) -> None:
    client = client_of(url)
    client.lock("x", ttl=8).acquire().release()
    texts = [f"{finding.level}: {finding.text}" for finding in client.examine()]
    assert any("warning: one server and no ensemble" in text for text in texts)
    assert any("ok: a session timeout of 8 s was asked for and 8 s granted" in text for text in texts)
    assert any("gives sessions of 0.4 to 60 s" in text for text in texts)
    assert any("answers in" in text for text in texts)


def test_the_doctor_says_when_a_server_gives_longer_sessions_than_were_asked_for(
    secure: tuple[ZooKeeper, int, Path], client_of: Clients
) -> None:
    client = client_of(f"{secure[0].url}/longer")
    lease = client.lock("x", ttl=20).acquire()
    texts = [f"{finding.level}: {finding.text}" for finding in client.examine()]
    assert any("warning: a session timeout of 20 s was asked for and 60 s granted" in text for text in texts)
    lease.release()


def test_a_server_that_does_not_come_back_is_noticed_by_the_doctor(
    server: ZooKeeper, client_of: Clients, url: str
) -> None:
    dead = free_port()
    client = client_of(f"zk://127.0.0.1:{server.port},127.0.0.1:{dead}/{url.rpartition('/')[2]}")
    client.lock("x").acquire(timeout=60).release()
    wait_for(lambda: any(finding.level == "error" for finding in client.examine()), 60)
