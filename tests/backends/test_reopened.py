"""`client.url` opened again is the same place, under every scheme: database, prefix and options included, secrets excepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis
import redis.sentinel
from kazoo.client import KazooClient

import lockline

PLACES = [
    ("memory:room", "memory:room"),
    ("local:///tmp/a%20b%25/x.db", "local:///tmp/a%20b%25/x.db"),
    ("redis://", "redis://localhost:6379"),
    ("redis://:7", "redis://localhost:7"),
    ("redis://me:secret@[::1]:7/3?prefix=app&wait_replicas=1&timeout=0.5", "redis://me@[::1]:7/3?prefix=app&wait_replicas=1&timeout=0.5"),
    ("redis://h?db=3&socket_timeout=1&client_name=n", "redis://h:6379/3?timeout=1&client_name=n"),
    ("redis://h?tls=yes", "redis://h:6379?tls=yes"),
    ("rediss://h?ca=/ca&cert=/c&key=/k&key_password=secret", "rediss://h:6379?ca=/ca&cert=/c&key=/k"),
    ("rediss://h?ssl_ca_certs=/ca", "rediss://h:6379?ssl_ca_certs=/ca"),
    ("unix:///run/a%20b.sock?db=2&prefix=app", "unix:///run/a%20b.sock?db=2&prefix=app"),
    ("redis+sentinel://me:secret@a,b:1/lines/3?ssl=true&sentinel_password=secret&sentinel_ssl=true",
     "redis+sentinel://me@a:26379,b:1/lines/3?tls=yes&sentinel_ssl=true"),
    ("redis+cluster://a,b:2/0?max_connections=2&ca=/ca", "redis+cluster://a:6379,b:2?max_connections=2&ca=/ca"),
    ("etcd://me:secret@h1,h2:1/team/locks", "etcd://me@h1:2379,h2:1/team/locks"),
    ("etcd://h?prefix=team/locks&tls=yes", "etcd://h:2379/team/locks?tls=yes"),
    ("zk://me:secret@a,[::1]:7/app/x%20y?root=locks&session=4", "zk://me@a:2181,[::1]:7/app/x%20y?prefix=locks&session=4"),
    ("zk://a?ca=/ca&cert=/c&key=/k&key_password=secret", "zk://a:2181?ca=/ca&cert=/c&key=/k"),
    ("postgresql://", "postgresql://localhost:5432"),
    ("mysql://", "mysql://localhost:3306"),
    ("mariadb://me:secret@a,[::1]:7/app?prefix=x&timeout=1&verify=no", "mariadb://me@a:3306,[::1]:7/app?prefix=x&timeout=1&verify=no"),
    ("postgresql://me:secret@a,[::1]:7/app?schema=locks&prefix=x&timeout=1&sslmode=require", "postgresql://me@a:5432,[::1]:7/app?schema=locks&prefix=x&timeout=1&sslmode=require"),
    ("postgres://h/app?listen=postgresql://me:secret@d/app", "postgres://h:5432/app?listen=postgresql%3A//me%40d%3A5432/app"),
    ("redlock://a,b:1,[::1]/3?prefix=app/&node_timeout=0.5&drift=0.1", "redlock://a:6379,b:1,[::1]:6379/3?prefix=app/&timeout=0.5&drift=0.1"),
    ("redlock://me:secret@a,:secret@b,c?tls=yes&ca=/ca", "redlock://me@a:6379,b:6379,c:6379?tls=yes&ca=/ca"),
]  # fmt: skip


@pytest.mark.parametrize("connect", [lockline.connect, lockline.aio.connect])
@pytest.mark.parametrize(("url", "shown"), PLACES)
def test_a_url(url: str, shown: str, connect: Any) -> None:
    client = connect(url)
    assert client.url == shown
    secret: dict[str, Any] = {"password": "secret"} if "me@" in shown else {}
    assert connect(client.url, **secret).url == client.url


@pytest.mark.parametrize(
    ("url", "options", "shown"),
    [
        ("redis://h/3", {"prefix": "app", "timeout": 3, "username": "me", "password": "secret"}, "redis://me@h:6379/3?prefix=app&timeout=3"),
        ("redis://h", {"db": 2, "tls": True, "ca": "/ca"}, "redis://h:6379/2?tls=yes&ca=/ca"),
        ("etcd://h", {"prefix": "team", "user": "me", "password": "secret"}, "etcd://me@h:2379/team"),
    ],
)  # fmt: skip
def test_what_the_program_gives_besides(url: str, options: dict[str, Any], shown: str) -> None:
    client = lockline.connect(url, **options)
    assert client.url == shown
    secret: dict[str, Any] = {"password": "secret"} if "me@" in shown else {}
    assert lockline.connect(client.url, **secret).url == shown


@pytest.mark.parametrize(
    ("own", "options", "shown"),
    [
        (redis.Redis(host="h", db=3, username="me", password="secret"), {"prefix": "app"}, "redis://me@h:6379/3?prefix=app"),
        (redis.Redis(host="::1", port=7, ssl=True, ssl_ca_certs="/ca"), {}, "rediss://[::1]:7?ca=/ca"),
        (redis.Redis(unix_socket_path="/run/a b.sock", db=1), {}, "unix:///run/a%20b.sock?db=1"),
        (redis.sentinel.Sentinel([("a", 1)], db=2, ssl=True), {"service": "lines"}, "redis+sentinel://a:1/lines/2?tls=yes"),  # type: ignore[no-untyped-call]
        ([redis.Redis(host=host, db=2) for host in "abc"], {"prefix": "app/"}, "redlock://a:6379,b:6379,c:6379/2?prefix=app/"),
        (KazooClient(hosts="a:2181,[::1]:7/app"), {}, "zk://a:2181,[::1]:7/app"),
    ],
)  # fmt: skip
def test_a_client_of_the_users_own(own: Any, options: dict[str, Any], shown: str) -> None:
    assert lockline.connect(own, **options).url == shown
    secret: dict[str, Any] = {"password": "secret"} if "me@" in shown else {}
    assert lockline.connect(shown, **secret).url == shown


def test_the_default_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "100% état?"))
    with lockline.connect("local:") as client:
        assert client.url.endswith("/100%25%20%C3%A9tat%3F/lockline/local.db")
        with client.lock("x"), lockline.connect(client.url) as again:
            assert again.list() == ["x"]
