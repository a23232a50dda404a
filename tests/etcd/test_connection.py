"""The way to the cluster: cut, silent, refused, compacted, locked with a password, closed with certificates."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import lockline
from lockline.backends.etcd.doctor import revokes_living_leases, serves_old_reads
from lockline.backends.etcd.target import parse
from lockline.errors import BackendUnavailable, ConfigError

from ..servers.etcd import EtcdCluster, newer_binary
from ..servers.process import free_port, missing, wait_for
from ..servers.proxy import Proxy
from .conftest import backend_of, post, text

Clients = Callable[..., lockline.Client]
server = pytest.mark.server


@pytest.fixture
def proxy(single: EtcdCluster) -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", single.members[0].port)) as proxy:
        yield proxy


def _waiting(client: lockline.Client, name: str, **lock: Any) -> tuple[threading.Thread, list[lockline.Lease]]:
    granted: list[lockline.Lease] = []
    thread = threading.Thread(target=lambda: granted.append(client.lock(name, **lock).acquire(timeout=60)), daemon=True)
    thread.start()
    return thread, granted


@server
@pytest.mark.usefixtures("no_net")
def test_a_release_while_the_watch_was_cut_is_not_missed(single: EtcdCluster, proxy: Proxy, client_of: Clients) -> None:
    holder = client_of(f"{single.url}/cut")
    waiter = client_of(f"etcd://127.0.0.1:{proxy.port}/cut")
    lease = holder.lock("x", ttl=600).acquire()
    thread, granted = _waiting(waiter, "x", ttl=600)
    wait_for(lambda: backend_of(waiter)._watches._by_claim, 60, "the watch")
    proxy.refuse()
    proxy.cut()
    lease.release()
    assert not granted
    proxy.heal()
    thread.join(60)
    granted[0].release()


@server
def test_a_silent_connection_is_left_for_one_that_answers(
    single: EtcdCluster, proxy: Proxy, client_of: Clients
) -> None:
    """Packets vanish and nobody is told: the next request notices, and goes to the next endpoint."""
    client = client_of(f"etcd://127.0.0.1:{proxy.port},{single.hosts}/silent")
    backend_of(client)._channel._at = 0
    client.lock("x").acquire().release()
    proxy.black_hole()
    client.lock("x").acquire(timeout=60).release()


@server
def test_a_lost_answer_to_an_acquire_is_found_again(single: EtcdCluster, proxy: Proxy, client_of: Clients) -> None:
    client = client_of(f"etcd://127.0.0.1:{proxy.port}/lost")
    client.lock("warm").acquire().release()
    proxy.drop_reply(b"/claims/x/")
    with client.lock("x").acquire(timeout=60) as lease:
        (held,) = client.inspect("x").claims
        assert held.token == lease.token
        assert proxy.lost == 1
    assert not client.inspect("x").claims


@server
def test_a_lost_answer_to_a_release_is_no_loss(single: EtcdCluster, proxy: Proxy, client_of: Clients) -> None:
    client = client_of(f"etcd://127.0.0.1:{proxy.port}/lost")
    lease = client.lock("y").acquire()
    proxy.drop_reply(b"/claims/y/")
    lease.release()
    assert proxy.lost == 1
    assert not client.inspect("y").claims


@server
@pytest.mark.usefixtures("no_net")
def test_a_compacted_watch_is_taken_up_again(single: EtcdCluster, client_of: Clients) -> None:
    holder, waiter = client_of(f"{single.url}/compacted"), client_of(f"{single.url}/compacted")
    lease = holder.lock("x", ttl=600).acquire()
    backend = backend_of(waiter)
    watch = backend._watches.watch
    compacted: list[int] = []
    watched: list[int] = []

    def too_late(claim_id: str, keys: list[tuple[bytes, bool]], revision: int) -> bool:
        # Between the look and the watch, etcd forgets the past.
        if not compacted:
            for number in range(3):
                post(single, "kv/put", key=text("other"), value=text(str(number)))
            compacted.append(int(post(single, "kv/range", key=text("other"))["header"]["revision"]))
            post(single, "kv/compaction", revision=compacted[0])
        watched.append(revision)
        return watch(claim_id, keys, revision)

    backend._watches.watch = too_late  # type: ignore[method-assign, assignment]
    thread, granted = _waiting(waiter, "x", ttl=600)
    wait_for(lambda: len(watched) > 1, 60, "another watch")
    lease.release()
    thread.join(60)
    granted[0].release()


@server
def test_one_connection_serves_many_waiters(single: EtcdCluster, proxy: Proxy, client_of: Clients) -> None:
    client = client_of(f"etcd://127.0.0.1:{proxy.port}/many")
    leases = [client.lock(f"x{number}", ttl=60).acquire() for number in range(10)]
    waiting = [_waiting(client, f"x{number}", ttl=60) for number in range(10)]
    wait_for(lambda: all(client.inspect(f"x{number}").waiters for number in range(10)))
    for lease in leases:
        lease.release()
    for thread, granted in waiting:
        thread.join(60)
        granted[0].release()
    assert proxy.accepted == 1


def test_servers_that_are_all_gone_are_an_answer_by_the_callers_deadline(client_of: Clients) -> None:
    client = client_of(f"etcd://127.0.0.1:{free_port()},127.0.0.1:{free_port()}")
    with pytest.raises(BackendUnavailable):
        client.lock("x", ttl=3600).acquire(timeout=0.5)  # a client that tried until the ttl is over would hang here


@server
def test_tokens_and_holders_survive_a_kill_of_the_server(tmp_path: Path, client_of: Clients) -> None:
    cluster = EtcdCluster(tmp_path / "own").start()
    member = cluster.members[0].server
    assert member is not None
    try:
        client = client_of(cluster.url)
        lease = client.lock("x", ttl=60).acquire()
        member.kill()
        member.start()
        lease.extend(60)
        assert client.inspect("x").holders[0].token == lease.token
        lease.release()
        with client.lock("x") as later:
            assert later.token > lease.token
        client.close()
    finally:
        cluster.stop()


@server
def test_a_user_and_a_password_open_the_door_also_after_a_restart(guarded: EtcdCluster, client_of: Clients) -> None:
    member = guarded.members[0].server
    assert member is not None
    client = client_of(f"etcd://app:app%3Ap%40ss@{guarded.hosts}")
    assert "p@ss" not in client.url
    assert "p%40ss" not in client.url
    with client.lock("x"):
        pass
    # The server forgets the tokens that it gave out.
    member.kill()
    member.start()
    with client.lock("x").acquire(timeout=60):
        pass
    with pytest.raises(ConfigError, match="does not let"):
        client_of(f"etcd://app:wrong@{guarded.hosts}").lock("x").acquire(timeout=3600)
    # Waiting opens no door: a client that asked again until its deadline would hang here.
    with pytest.raises(BackendUnavailable, match="user name is empty"):
        client_of(f"etcd://{guarded.hosts}").lock("x").acquire(timeout=3600)
    with pytest.raises(BackendUnavailable, match="permission denied"):
        client_of(f"etcd://app:app%3Ap%40ss@{guarded.hosts}/elsewhere").lock("x").acquire(timeout=3600)


@server
@pytest.mark.usefixtures("no_net")
def test_a_waiter_outlives_the_credentials_that_its_watch_was_opened_with(tmp_path: Path, client_of: Clients) -> None:
    binary = newer_binary()
    if binary is None:
        missing("no etcd 3.5, which can be told how long its credentials last")
    cluster = EtcdCluster(tmp_path / "short", binary=binary, options=("--auth-token-ttl=1", "--bcrypt-cost=4")).start()
    try:
        post(cluster, "auth/user/add", name="root", password="secret")
        post(cluster, "auth/role/add", name="root")
        post(cluster, "auth/user/grant", user="root", role="root")
        post(cluster, "auth/enable")
        url = f"etcd://root:secret@{cluster.hosts}"
        holder, waiter = client_of(url), client_of(url)
        for _ in range(2):
            lease = holder.lock("x", ttl=600).acquire()
            thread, granted = _waiting(waiter, "x", ttl=600)
            wait_for(lambda: holder.inspect("x").waiters)
            time.sleep(1.5)
            lease.release()
            thread.join(60)
            granted[0].release()
        # A stream with old credentials refuses every watch: to ask it again and again would be a busy loop.
        assert next(backend_of(waiter)._watches._numbers) < 30
        holder.close()
        waiter.close()
    finally:
        cluster.stop()


@server
def test_requests_at_the_same_time_all_outlive_their_credentials(guarded: EtcdCluster, client_of: Clients) -> None:
    with Proxy(("127.0.0.1", guarded.members[0].port)) as proxy:
        url = f"etcd://root:secret@127.0.0.1:{proxy.port}/old"
        client = client_of(url)
        client.lock("warm", ttl=60).acquire().release()
        # As after its time: a token that the server does not know (any more). All requests are under way with it at once.
        backend_of(client)._channel.token = "forgotten.1"
        proxy.delay(0.05)
        with ThreadPoolExecutor(6) as threads:
            for lease in threads.map(lambda n: client.lock(f"x{n}", ttl=60).acquire(timeout=60), range(6)):
                lease.release()

        async def in_tasks() -> None:
            async with lockline.aio.connect(url) as client:
                await (await client.lock("warm", ttl=60).acquire()).release()
                client._engine.backend._channel.token = "forgotten.1"  # type: ignore[attr-defined]
                asks = (client.lock(f"y{n}", ttl=60).acquire(timeout=60) for n in range(6))
                for lease in await asyncio.gather(*asks):
                    await lease.release()

        asyncio.run(in_tasks())
        client.close()


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


async def _once(url: str) -> int:
    async with lockline.aio.connect(url) as client:
        return await client.once("report", lambda: asyncio.sleep(0, 3), fresh=60)


@server
def test_tls_and_a_clients_certificate(tmp_path: Path, client_of: Clients) -> None:
    _openssl(tmp_path, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "ca.key", "-out", "ca.pem",
             "-subj", "/CN=authority", "-days", "2", "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # fmt: skip
    # Python 3.13 wants a certificate to name its authority's key.
    (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
    for who in ("server", "client"):
        _openssl(tmp_path, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{who}.key", "-out", f"{who}.csr",
                 "-subj", f"/CN={who}")  # fmt: skip
        _openssl(tmp_path, "x509", "-req", "-in", f"{who}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                 "-out", f"{who}.pem", "-days", "2", "-extfile", "names")  # fmt: skip
    cluster = EtcdCluster(
        tmp_path / "tls",
        options=(f"--cert-file={tmp_path}/server.pem", f"--key-file={tmp_path}/server.key", "--client-cert-auth",
                 f"--trusted-ca-file={tmp_path}/ca.pem"),
    ).start()  # fmt: skip
    try:
        good = f"{cluster.url}?ca={tmp_path}/ca.pem&cert={tmp_path}/client.pem&key={tmp_path}/client.key"
        holder, waiter = client_of(good), client_of(good)
        lease = holder.lock("x").acquire()
        thread, granted = _waiting(waiter, "x")
        wait_for(lambda: holder.inspect("x").waiters)
        lease.release()
        thread.join(60)
        granted[0].release()
        # The time, which these need, is asked for on connections of their own.
        assert holder.once("report", lambda: 1, fresh=60) == waiter.once("report", lambda: 2, fresh=60) == 1
        assert asyncio.run(_once(good)) == 1
        with pytest.raises(BackendUnavailable):
            client_of(f"{cluster.url}?ca={tmp_path}/ca.pem").lock("x").acquire(timeout=1)
        stranger = client_of(f"{cluster.url}?tls=yes")

        def is_named() -> bool:
            with pytest.raises(BackendUnavailable) as told:
                stranger.lock("x").acquire(timeout=1)
            return "certificate" in str(told.value)

        # On a busy machine a handshake may take longer than that.
        wait_for(is_named, 60, "the reason")
        holder.close()
        waiter.close()
    finally:
        cluster.stop()


def test_an_address_says_where_and_hides_the_password() -> None:
    target = parse("etcd://me:s%2Fecret@h1,h2:1234,[::1]:99/team/locks")
    assert [str(endpoint) for endpoint in target.endpoints] == ["h1:2379", "h2:1234", "[::1]:99"]
    assert (target.user, target.password, target.prefix) == ("me", "s/ecret", "team/locks")
    assert target.url == "etcd://me@h1:2379,h2:1234,[::1]:99/team/locks"
    assert "ecret" not in repr(target)
    assert parse("etcd://").url == "etcd://localhost:2379"


@pytest.mark.parametrize(
    "url",
    [
        "etcd://h1:port", "etcd://h1?tsl=yes", "etcd://h1?tls=perhaps", "etcd://h1?key=k", "etcd://h1?ca=/no/such/file",
        "etcd://me@h1", "etcd://h1#x", "etcd://h1?tls=no&ca=x", "etcd://:99",
        "etcd://h1/team/claims", "etcd://h1/team/clients/ours", "etcd://h1/team%2Fclaims",
        "etcd://h1/%ff", "etcd://h1/\ud800", "etcd://me:\ud800@h1", "etcd://h1?ca=%00",
    ],
)  # fmt: skip
def test_a_wrong_address_is_found_before_any_io(url: str) -> None:
    with pytest.raises(ConfigError):
        lockline.connect(url)


@pytest.mark.parametrize("login", [{"user": 5, "password": "x"}, {"user": "me", "password": 5}])
def test_a_wrong_login_is_found_before_any_io(login: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        lockline.connect("etcd://h1", **login)


@server
def test_the_doctor_knows_the_cluster(single: EtcdCluster, client_of: Clients) -> None:
    found = client_of(f"etcd://{single.hosts},127.0.0.1:{free_port()}/doctor").examine()
    told = "\n".join(finding.text for finding in found)
    for word in (
        "quorum confirmed",
        "a write took",
        "shortest lease",
        "one member",
        "runs etcd",
        "does not answer",
        "alarm",
    ):
        assert word in told
    assert [finding.level for finding in found].count("error") == 1


@pytest.mark.parametrize(
    ("version", "affected"),
    [("3.4.23", True), ("3.4.31", False), ("3.5.1", True), ("3.5.13", False), ("3.6.0", False), ("3.6.0-rc.1", False), ("?", False)],
)  # fmt: skip
def test_the_doctor_knows_which_releases_end_leases_before_their_time(version: str, affected: bool) -> None:
    assert revokes_living_leases(version) is affected


@pytest.mark.parametrize(
    ("version", "affected"),
    [("3.4.23", True), ("3.4.41", True), ("3.4.42", False), ("3.5.27", True), ("3.5.28", False), ("3.6.8", True), ("3.6.9", False), ("3.7.0", False)],
)  # fmt: skip
def test_the_doctor_knows_which_releases_may_read_from_an_old_state(version: str, affected: bool) -> None:
    assert serves_old_reads(version) is affected


@server
def test_the_doctor_warns_of_a_release_that_may_read_from_an_old_state(single: EtcdCluster, client_of: Clients) -> None:
    found = client_of(f"{single.url}/doctor").examine()
    told = [finding for finding in found if "old state" in finding.text]
    assert len(told) == serves_old_reads(single.members[0].version())
    assert all(finding.level == "warning" and finding.cure for finding in told)


@pytest.mark.parametrize(
    "url",
    ["etcd://http://h1", "etcd://https://h1:2379", "etcd://h1,http://h2", "etcd://me:secret@https://h1/locks"],
)
def test_a_scheme_within_the_url_is_named_with_its_cure(url: str) -> None:
    with pytest.raises(ConfigError, match=r"http://.*tls=yes") as told:
        parse(url)
    assert "secret" not in str(told.value)


def _stranger(says: bytes) -> socket.socket:
    """Somebody who answers whatever comes with these words, as a Redis would."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                end, _ = listener.accept()
            except OSError:
                return
            with end:
                end.recv(4096)
                end.sendall(says)

    threading.Thread(target=serve, daemon=True).start()
    return listener


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
@pytest.mark.parametrize(
    ("says", "told"),
    [
        (b"-ERR unknown command 'PRI', with args beginning with: \r\n", "no etcd.*unknown command"),
        (b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\r\n", "no etcd.*HTTP/1.1 400"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "TLS.*tls=yes"),
        (b"", "before its first word"),
    ],
)
def test_a_port_where_no_etcd_is_says_so_at_once(client_of: Clients, says: bytes, told: str, flavour: str) -> None:
    with _stranger(says) as listener:
        url = f"etcd://127.0.0.1:{listener.getsockname()[1]}"

        async def scene() -> None:
            async with lockline.aio.connect(url) as client:
                await client.lock("x").try_acquire()

        with pytest.raises(BackendUnavailable, match=told):
            asyncio.run(scene()) if flavour == "asyncio" else client_of(url).lock("x").try_acquire()
        if says:
            # Waiting does not make it an etcd: a client that asked again until its deadline would hang here.
            with pytest.raises(BackendUnavailable, match=told):
                client_of(url).lock("x").acquire(timeout=3600)
