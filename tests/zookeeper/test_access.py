"""Who may touch what: digest logins, ACLs, TLS, and the user's own client."""

from __future__ import annotations

import gc
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

import lockline
from lockline import BackendUnavailable

from ..servers.process import free_port, program, wait_for
from ..servers.zookeeper import ZooKeeper
from .conftest import chroot

pytestmark = pytest.mark.server
Clients = Callable[..., lockline.Client]


def close_for_good(client: lockline.Client) -> None:
    """Close it and wait until kazoo's thread has ended, and collect what it left behind."""
    client.close()
    connection = client._engine.backend._wire.client._connection  # type: ignore[attr-defined]
    assert connection.connection_stopped.wait(15)
    wait_for(lambda: connection._connection_routine is None or not connection._connection_routine.is_alive())
    gc.collect()


def test_what_a_client_with_a_login_makes_is_its_own(client_of: Clients, url: str, kazoo: KazooClient) -> None:
    signed = url.replace("zk://", "zk://me:secret@")
    client = client_of(signed)
    lease = client.lock("x").acquire()
    with pytest.raises(NoAuthError):
        kazoo.get_children(f"{chroot(url)}/x")
    with pytest.raises(BackendUnavailable, match="credentials do not fit"):
        client_of(url).lock("x").acquire(timeout=2)
    with pytest.raises(BackendUnavailable, match="credentials do not fit"):
        client_of(url.replace("zk://", "zk://you:other@")).inspect("x")
    assert client_of(signed).lock("x").try_acquire() is None
    lease.release()
    client_of(signed).lock("x").acquire(timeout=5).release()


def test_an_open_acl_can_be_asked_for(client_of: Clients, url: str) -> None:
    lease = client_of(url.replace("zk://", "zk://me:secret@") + "?acl=open").lock("x").acquire()
    assert client_of(url).lock("x").try_acquire() is None
    lease.release()


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
    lease = client.lock("x").acquire(timeout=10)
    (node,) = own.get_children("/lockline/x")
    assert own.get(f"/lockline/x/{node}")[1].ephemeralOwner == own.client_id[0]
    assert client._engine.backend._wire.session.timeout == pytest.approx(5)  # type: ignore[attr-defined]
    assert client_of(url).lock("x").try_acquire() is None
    lease.release()
    held = client.lock("x").try_acquire()
    assert held is not None
    client.close()
    assert own.connected
    assert own.exists("/lockline/x") is not None
    client_of(url).lock("x").acquire(timeout=1).release()
    own.stop()
    own.close()


def test_a_users_client_that_was_stopped_is_an_error_and_no_wait(server: ZooKeeper, url: str) -> None:
    own = KazooClient(hosts=f"127.0.0.1:{server.port}")
    client = lockline.connect(own)
    client.lock("x").acquire(timeout=10).release()
    own.stop()
    with pytest.raises(BackendUnavailable, match="has been stopped"):
        client.lock("x").acquire(timeout=5)
    client.close()
    own.close()


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ZooKeeper, int, Path]]:
    """A server that also listens for TLS, with a certificate of its own."""
    folder = tmp_path_factory.mktemp("tls")
    keytool = program("keytool")
    subprocess.run(
        [
            keytool, "-genkeypair", "-alias", "zk", "-keyalg", "RSA", "-dname", "CN=localhost", "-ext",
            "SAN=IP:127.0.0.1,DNS:localhost", "-keystore", str(folder / "keys.p12"), "-storetype", "PKCS12",
            "-storepass", "password", "-validity", "30",
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    exported = subprocess.run(
        [keytool, "-exportcert", "-rfc", "-alias", "zk", "-keystore", str(folder / "keys.p12"), "-storepass", "password"],
        check=True, capture_output=True,
    )  # fmt: skip
    (folder / "ca.pem").write_bytes(exported.stdout)
    subprocess.run(
        [
            keytool, "-importcert", "-noprompt", "-alias", "zk", "-file", str(folder / "ca.pem"), "-keystore",
            str(folder / "trust.p12"), "-storetype", "PKCS12", "-storepass", "password",
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    port = free_port()
    server = ZooKeeper(
        folder / "server",
        settings={"secureClientPort": port, "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory"},
        properties={
            "zookeeper.ssl.keyStore.location": str(folder / "keys.p12"), "zookeeper.ssl.keyStore.password": "password",
            "zookeeper.ssl.trustStore.location": str(folder / "trust.p12"), "zookeeper.ssl.trustStore.password": "password",
            "zookeeper.ssl.clientAuth": "none",
        },
    ).start()  # fmt: skip
    yield server, port, folder / "ca.pem"
    server.stop()


def test_a_lock_over_tls(secure: tuple[ZooKeeper, int, Path], client_of: Clients) -> None:
    server, port, ca = secure
    client = client_of(f"zk://127.0.0.1:{port}/tls?tls=yes&ca={ca}&check_hostname=yes")
    with client.lock("x").acquire(timeout=10):
        assert client_of(f"{server.url}/tls").lock("x").try_acquire() is None
    assert not client.inspect("x").claims
    levels = {finding.level for finding in client.examine()}
    assert "error" not in levels


# kazoo leaves the socket of a failed handshake to the garbage.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_certificate_that_nobody_vouches_for_is_refused(
    secure: tuple[ZooKeeper, int, Path], client_of: Clients
) -> None:
    _, port, _ = secure
    client = client_of(f"zk://127.0.0.1:{port}/tls?tls=yes")
    with pytest.raises(BackendUnavailable):
        client.lock("x").acquire(timeout=0.5)
    close_for_good(client)


JAAS = """
Server {
    org.apache.zookeeper.server.auth.DigestLoginModule required user_me="secret";
};
"""


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_login_by_sasl(tmp_path: Path, client_of: Clients) -> None:
    pytest.importorskip("puresasl", reason="SASL needs pure-sasl")
    (tmp_path / "jaas.conf").write_text(JAAS)
    server = ZooKeeper(
        tmp_path / "server",
        settings={"authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"},
        properties={"java.security.auth.login.config": str(tmp_path / "jaas.conf")},
    ).start()
    try:
        signed = client_of(f"zk://me:secret@127.0.0.1:{server.port}/app?sasl=digest-md5")
        lease = signed.lock("x").acquire(timeout=10)
        with pytest.raises(BackendUnavailable, match="credentials do not fit"):
            client_of(f"{server.url}/app").lock("x").acquire(timeout=2)
        lease.release()
        wrong = client_of(f"zk://me:wrong@127.0.0.1:{server.port}/app?sasl=digest-md5")
        with pytest.raises(BackendUnavailable):
            wrong.lock("x").acquire(timeout=1)
        for client in (signed, wrong):
            close_for_good(client)
    finally:
        server.stop()


def test_the_doctor_sees_a_single_server_and_what_it_gives(client_of: Clients, url: str) -> None:
    client = client_of(url)
    client.lock("x", ttl=4).acquire().release()
    texts = [f"{finding.level}: {finding.text}" for finding in client.examine()]
    assert any("warning: one server and no ensemble" in text for text in texts)
    assert any("ok: a session timeout of 4 s was asked for and 4 s granted" in text for text in texts)
    assert any("gives sessions of 0.4 to 60 s" in text for text in texts)
    assert any("answers in" in text for text in texts)


def test_the_doctor_says_when_a_server_gives_longer_sessions_than_were_asked_for(
    tmp_path: Path, client_of: Clients
) -> None:
    server = ZooKeeper(tmp_path, settings={"minSessionTimeout": 6000, "4lw.commands.whitelist": "srvr"}).start()
    try:
        client = client_of(server.url)
        lease = client.lock("x", ttl=1).acquire()
        texts = [f"{finding.level}: {finding.text}" for finding in client.examine()]
        assert any("warning: a session timeout of 1 s was asked for and 6 s granted" in text for text in texts)
        lease.release()
        client.close()
    finally:
        server.stop()


def test_a_server_that_does_not_come_back_is_noticed_by_the_doctor(
    server: ZooKeeper, client_of: Clients, url: str
) -> None:
    dead = free_port()
    client = client_of(f"zk://127.0.0.1:{server.port},127.0.0.1:{dead}/{url.rpartition('/')[2]}")
    client.lock("x").acquire(timeout=10).release()
    wait_for(lambda: any(finding.level == "error" for finding in client.examine()), 10)
