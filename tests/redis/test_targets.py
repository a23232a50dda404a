"""What `connect` understands: URLs, and the clients that users of redis-py already have."""

from __future__ import annotations

import asyncio
import gc
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.cluster
import redis.sentinel
from redis.backoff import NoBackoff
from redis.retry import Retry

import lockline
from lockline import BackendUnavailable, ConfigError
from lockline.backends.redis.commands import key_of, name_of, pattern
from lockline.backends.redis.target import understand
from lockline.backends.resp.target import PATIENCE
from tests.servers.process import free_port, listens, missing, program
from tests.servers.redis import (
    RedisCluster,
    RedisServer,
    SentinelTrio,
    a_redis,
    chosen_program,
    knows_tls,
)

Connect = Callable[..., lockline.Client]


@pytest.mark.parametrize(
    ("url", "kind", "addresses", "options"),
    [
        ("redis://", "one", (("localhost", 6379),), {}),
        ("redis://h:1/3", "one", (("h", 1),), {"db": 3}),
        ("redis://u:p%40@h", "one", (("h", 6379),), {"username": "u", "password": "p@"}),
        ("redis://h?db=2&socket_timeout=0.5&protocol=3", "one", (("h", 6379),), {"db": 2, "socket_timeout": 0.5, "protocol": 3}),
        ("rediss://h:7?ssl_ca_certs=/ca.pem", "one", (("h", 7),), {"ssl_ca_certs": "/ca.pem"}),
        ("unix:///run/redis.sock?db=1", "one", (("/run/redis.sock", 0),), {"db": 1}),
        ("redis+sentinel://a,b:2,[::1]:3/svc", "sentinel", (("a", 26379), ("b", 2), ("::1", 3)), {}),
        ("redis+sentinel://u:p@a/svc/4?socket_timeout=1", "sentinel", (("a", 26379),), {"username": "u", "password": "p", "db": 4, "socket_timeout": 1.0}),
        ("redis+cluster://a,b:2", "cluster", (("a", 6379), ("b", 2)), {}),
        ("redis+cluster://:p@a?ssl=true", "cluster", (("a", 6379),), {"password": "p"}),
    ],
)  # fmt: skip
def test_a_url_is_understood(url: str, kind: str, addresses: Any, options: dict[str, Any]) -> None:
    target = understand(url, "blocking", {})
    assert (target.kind, target.addresses, target.options) == (kind, addresses, options)
    assert target.tls == ("rediss" in url or "ssl=true" in url)
    assert "p@" not in target.url
    assert ":p" not in target.url


@pytest.mark.parametrize(
    "url",
    [
        "unix://",
        "redis+sentinel://a,b",
        "redis+sentinel://,/svc",
        "redis+cluster://a/3",
        "redis://h?no_such_option=1",
        "redis://h?wait_replicas=two",
        "redis://h?prefix={x}",
        "redis://h?socket_timeout=soon",
        "redis://h?socket_timeout=0",
        "redis://h?socket_timeout=-1",
        "redis+cluster://a?db=3",
        "redis+sentinel://a/svc?sentinel_socket_timeout=soon",
        "redis+sentinel://a/svc?sentinel_no_such_option=1",
    ],
)
@pytest.mark.parametrize("connect", [lockline.connect, lockline.aio.connect])
def test_a_wrong_url_is_found_before_any_request(url: str, connect: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError):
        connect(url)


@pytest.mark.parametrize(
    "option",
    [
        {"wait_replicas": -1},
        {"wait_replicas": True},
        {"max_connections": 0},
        {"socket_timeout": -1},
        {"socket_timeout": "1"},
        {"socket_connect_timeout": 0},
        {"no": 1},
    ],
)
@pytest.mark.parametrize("target", ["redis://localhost", redis.Redis()])
def test_a_wrong_option_is_found_before_any_request(target: Any, option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        lockline.connect(target, **option)


@pytest.mark.parametrize("flavour", ["blocking", "asyncio"])
@pytest.mark.parametrize("target", ["redis://h", redis.Redis(host="h")])
def test_options_of_pools_and_retries_do_no_harm(target: Any, flavour: str) -> None:
    """Lockline repeats by itself, and never waits without end."""
    options = {"socket_timeout": None, "retry": Retry(NoBackoff(), 1), "decode_responses": True, "max_connections": 3}
    understood = understand(target, flavour, options)
    assert understood.patience == PATIENCE
    assert "retry" not in understood.options


@pytest.mark.parametrize(
    ("query", "tls"),
    [
        ("sentinel_ssl=true", True),
        ("sentinel_ssl_ca_certs=/ca.pem", True),
        ("sentinel_ssl=false&sentinel_ssl_ca_certs=/ca.pem", False),
        ("sentinel_socket_timeout=1&ssl=true", False),
    ],
)
def test_sentinels_have_options_of_their_own(query: str, tls: bool) -> None:
    target = understand(f"redis+sentinel://a/svc?{query}", "blocking", {})
    made = target.server(("a", 1), sentinel=True).connection()
    assert isinstance(made, redis.SSLConnection) == tls
    assert isinstance(target.server(("a", 1)).connection(), redis.SSLConnection) == ("&ssl=true" in query)
    assert made.socket_timeout == (1.0 if "timeout" in query else PATIENCE)


@pytest.mark.parametrize(
    "name", ["a", "{", "}", "{}", "a{b}c", "%7B", "a b\tc\n", "*?[x]^\\", "é\u2028中\U0001f512", "x" * 512, "\x00"]
)
def test_any_name_is_one_key_in_one_slot(name: str) -> None:
    key = key_of(name)
    assert name_of(key) == name
    text = key.decode()
    assert text.index("}") == len(text) - 1
    assert not any(character in text for character in " \t\n\x00")
    assert len({key_of(other) for other in (name, name + "x", name.upper() + "y")}) == 3
    assert pattern(name).endswith("*}")


@pytest.mark.server
@pytest.mark.parametrize("name", ["a{b}c d", "*", "a*", "[a]", "é\n%", "\\"])
def test_a_prefix_lists_exactly_the_names_that_begin_so(server: RedisServer, connect: Connect, name: str) -> None:
    client = connect(server.url)
    names = [name, name + "/1", "other", "x" + name]
    leases = [client.lock(each).acquire() for each in names]
    assert client.list(name) == sorted(names[:2])
    assert client.list() == sorted(names)
    for lease in leases:
        lease.release()
    assert client.list() == []


@pytest.mark.server
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("decoded", [False, True])
def test_a_users_own_client_will_do(server: RedisServer, connect: Connect, protocol: int, decoded: bool) -> None:
    with redis.Redis(port=server.port, db=3, protocol=protocol, decode_responses=decoded) as own:
        client = connect(own)
        assert client.url.endswith("/3")
        _contend(client, connect(own))
        assert own.dbsize() == 1, "the lines are in the user's database"


@pytest.mark.server
@pytest.mark.parametrize("protocol", [2, 3])
def test_a_users_own_asyncio_client_will_do(server: RedisServer, protocol: int) -> None:
    async def story() -> None:
        async with (
            redis.asyncio.Redis(port=server.port, protocol=protocol, decode_responses=True) as own,
            lockline.aio.connect(own) as client,
            lockline.aio.connect(own) as other,
        ):
            lease = await client.lock("x").acquire()
            waiting = asyncio.create_task(other.lock("x").acquire())
            await asyncio.sleep(0.1)
            await lease.release()
            await (await waiting).release()

    asyncio.run(story())


@pytest.mark.server
def test_either_flavour_takes_either_client(server: RedisServer, connect: Connect) -> None:
    _contend(connect(redis.asyncio.Redis(port=server.port)), connect(server.url))


def _contend(one: lockline.Client, other: lockline.Client) -> None:
    lease = one.lock("x").acquire()
    got: list[lockline.Lease] = []
    thread = threading.Thread(target=lambda: got.append(other.lock("x").acquire(timeout=60)))
    thread.start()
    lease.release()
    thread.join(60)
    got[0].adopt()
    assert got[0].token > lease.token
    got[0].release()


@pytest.mark.server
def test_a_password_a_user_and_a_unix_socket(connect: Connect, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with a_redis("--unixsocket", str(path)) as server:
        server.command("ACL", "SETUSER", "ann", "on", ">s3cret", "~*", "&*", "+@all")
        _contend(connect(f"unix://{path}"), connect(f"redis://ann:s3cret@127.0.0.1:{server.port}"))
        with pytest.raises(BackendUnavailable, match="WRONGPASS"):
            connect(f"redis://ann:wrong@127.0.0.1:{server.port}").lock("x").acquire()


@pytest.mark.server
def test_a_users_own_connection_is_not_used(server: RedisServer, connect: Connect) -> None:
    pool = redis.ConnectionPool(port=server.port, max_connections=1)
    with redis.Redis(connection_pool=pool) as own:
        busy = pool.get_connection()
        connect(own).lock("x").acquire(timeout=60).release()
        pool.release(busy)
    pool.disconnect()


@pytest.fixture
def old_server() -> Iterator[int]:
    """Something that says it is Redis 5."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                while data := client.recv(65536):
                    text = b"# Server\r\nredis_version:5.0.14\r\n"
                    client.sendall(
                        b"$%d\r\n%s\r\n" % (len(text), text) if b"INFO" in data else b"+OK\r\n" * data.count(b"*")
                    )

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield int(listener.getsockname()[1])
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(60)


def test_an_old_server_gets_a_clear_error(old_server: int, connect: Connect) -> None:
    client = connect(f"redis://127.0.0.1:{old_server}?protocol=2")
    with pytest.raises(BackendUnavailable, match=r"5\.0.*6\.2"):
        client.lock("x").acquire()


def test_something_that_is_no_redis_gets_a_clear_error(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(65536)
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        client = connect(f"redis://127.0.0.1:{listener.getsockname()[1]}?protocol=2")
        with pytest.raises(BackendUnavailable):
            client.lock("x", ttl=0.5).acquire()
        thread.join(60)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            program("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
            "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem"),
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return folder


# redis-py leaves the socket of a handshake that failed to the garbage collector, which the end of the test calls.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.server
def test_tls_by_url_and_by_client(certificates: Path, connect: Connect) -> None:
    if not knows_tls(chosen_program()):
        missing("this redis-server was built without TLS")
    port = free_port()
    key, cert = certificates / "key.pem", certificates / "cert.pem"
    with a_redis(
        "--tls-port", str(port), "--tls-cert-file", str(cert), "--tls-key-file", str(key),
        "--tls-ca-cert-file", str(cert), "--tls-auth-clients", "no",
    ):  # fmt: skip
        url = f"rediss://127.0.0.1:{port}?ssl_ca_certs={cert}"
        with redis.Redis.from_url(url) as own:
            _contend(connect(url), connect(own))
        with redis.Redis(port=port, ssl=True, ssl_cert_reqs=None) as trusting:  # type: ignore[arg-type]
            _contend(connect(url), connect(trusting))

        async def story() -> None:
            async with lockline.aio.connect(url) as client, lockline.aio.connect(url) as other:
                lease = await client.lock("x").acquire()
                waiting = asyncio.create_task(other.lock("x").acquire())
                await asyncio.sleep(0.1)
                await lease.release()
                await (await waiting).release()

        asyncio.run(story())
        with pytest.raises(BackendUnavailable, match="certificate"):
            connect(f"rediss://127.0.0.1:{port}").lock("x", ttl=0.5).acquire()
        gc.collect()


@pytest.mark.server
def test_sentinels_behind_tls(certificates: Path, server: RedisServer, connect: Connect, tmp_path: Path) -> None:
    if not knows_tls(chosen_program()):
        missing("this redis-server was built without TLS")
    key, cert = certificates / "key.pem", certificates / "cert.pem"
    sentinel = RedisServer(tmp_path, ready=listens)
    conf = tmp_path / "sentinel.conf"
    conf.write_text(
        f"port 0\ntls-port {sentinel.port}\nbind 127.0.0.1\ndir {tmp_path}\ntls-auth-clients no\n"
        f"tls-cert-file {cert}\ntls-key-file {key}\ntls-ca-cert-file {cert}\n"
        f"sentinel monitor svc 127.0.0.1 {server.port} 1\n"
    )
    sentinel.argv = [sentinel.argv[0], str(conf), "--sentinel"]
    sentinel.start()
    try:
        hosts = f"redis+sentinel://127.0.0.1:{sentinel.port}/svc"
        by_url = connect(f"{hosts}?sentinel_ssl=true&sentinel_ssl_ca_certs={cert}")
        options = {"ssl": True, "ssl_cert_reqs": None}
        own = redis.sentinel.Sentinel([("127.0.0.1", sentinel.port)], sentinel_kwargs=options)  # type: ignore[no-untyped-call]
        _contend(by_url, connect(own, service="svc"))
    finally:
        sentinel.stop()


@pytest.mark.server
@pytest.mark.slow
def test_the_users_sentinel_and_cluster_objects_will_do(
    trio: SentinelTrio, shards: RedisCluster, connect: Connect
) -> None:
    watching: Any = redis.sentinel.Sentinel
    sentinel = watching([("127.0.0.1", each.port) for each in trio.sentinels], socket_timeout=5)
    with pytest.raises(ConfigError, match="service"):
        connect(sentinel)
    _contend(connect(sentinel, service=trio.SERVICE), connect(sentinel.master_for(trio.SERVICE)))
    for watcher in sentinel.sentinels:
        watcher.close()
    with redis.cluster.RedisCluster(host="127.0.0.1", port=shards.nodes[1].port) as own:
        _contend(connect(own), connect(shards.url))

    async def story() -> None:
        async with (
            redis.asyncio.cluster.RedisCluster(host="127.0.0.1", port=shards.nodes[0].port) as own,
            lockline.aio.connect(own) as client,
        ):
            await (await client.lock("x").acquire()).release()

    asyncio.run(story())
