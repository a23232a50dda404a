"""Which store `lockline` talks to: who may say it, who may refuse it, and what the command inside is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lockline
import lockline.aio
from tests.servers.redis import RedisServer, SentinelTrio, a_folder, a_redis

from .conftest import LOCKLINE, OnScreen, Shell

SECRET = "s3cret-word"


@pytest.fixture
def bare(shell: Shell) -> Shell:
    """As cron starts it: nothing says where the locks are."""
    del shell.env["LOCKLINE_URL"]
    return shell


def url_inside(shell: Shell, *options: str, **env: str) -> str:
    """The store that a command runs under."""
    done = shell("run", "job", *options, "--", "sh", "-c", 'echo "$LOCKLINE_URL"', **env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_file_names_the_store_and_whoever_is_nearer_overrules_it(bare: Shell) -> None:
    def named(file: str) -> str:
        return f"local://{bare.folder}/{file}.db"

    assert url_inside(bare) == f"local://{bare.folder}/state/lockline/local.db"
    (bare.folder / "lockline.toml").write_text(f'url = "{named("user")}"\n')
    (bare.folder / "mine.toml").write_text(f'url = "{named("mine")}"\nrequire = "local"\n')
    assert url_inside(bare) == named("user")
    assert url_inside(bare, LOCKLINE_URL=named("environment")) == named("environment")
    assert url_inside(bare, "--config", "mine.toml", LOCKLINE_URL=named("environment")) == named("mine")
    assert url_inside(bare, "--config", "mine.toml", "--url", named("said")) == named("said")
    for words in (("ls",), ("show", "job"), ("doctor",)):
        assert bare(*words, "--config", "mine.toml").returncode == 0


def test_the_machines_file_is_read_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lockline.backends import default

    monkeypatch.delenv("LOCKLINE_URL", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(default, "OF_THE_MACHINE", tmp_path / "etc.toml")
    assert default.store() == default.Store("local:", None)
    (tmp_path / "etc.toml").write_text('url = "redis://locks.example"\n')
    assert default.store() == default.Store("redis://locks.example", str(tmp_path / "etc.toml"))
    (tmp_path / "lockline.toml").write_text('url = "etcd://locks.example"\n')
    assert default.store().url == "etcd://locks.example"


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
def test_connect_knows_the_file_and_what_is_required(
    bare: Shell, flavour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOCKLINE_URL", "LOCKLINE_REQUIRE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", bare.env["XDG_CONFIG_HOME"])
    monkeypatch.setenv("XDG_STATE_HOME", bare.env["XDG_STATE_HOME"])

    def connect(**env: str) -> str:
        """What it says against it."""
        with monkeypatch.context() as set_for_once:
            for name, value in env.items():
                set_for_once.setenv(name, value)
            try:
                if flavour == "sync":
                    lockline.connect().close()
                else:
                    asyncio.run(closed(lockline.aio.connect))
            except lockline.ConfigError as no:
                return str(no)
        return ""

    async def closed(opened: Callable[[], lockline.aio.Client]) -> None:
        await opened().close()

    assert connect() == ""
    assert "LOCKLINE_REQUIRE=server" in connect(LOCKLINE_REQUIRE="server")
    (bare.folder / "lockline.toml").write_text('url = "redis://127.0.0.1:1"\n')
    assert connect(LOCKLINE_REQUIRE="server") == ""
    assert "redis" in connect(LOCKLINE_REQUIRE="etcd")


@pytest.mark.parametrize(
    ("options", "env"),
    [
        ((), {"LOCKLINE_REQUIRE": "server"}),
        ((), {"LOCKLINE_REQUIRE": "redis"}),
        (("--require", "server"), {}),
        (("--require", "redis"), {"LOCKLINE_URL": "local:"}),
        (("--require", "server", "--url", "local:"), {}),
        (("--require", "nonsense"), {}),
        ((), {"LOCKLINE_REQUIRE": "nonsense"}),
        (("--config", "require.toml"), {}),
        (("--config", "missing.toml"), {}),
        (("--config", "empty.toml"), {}),
        (("--config", "unknown.toml"), {}),
        (("--config", "broken.toml"), {}),
        (("--config", "key.toml"), {}),
        (("--config", "number.toml"), {}),
        (("--config", "."), {}),
    ],
)
def test_a_job_that_needs_a_server_never_runs_on_this_machine_alone(
    bare: Shell, options: tuple[str, ...], env: dict[str, str]
) -> None:
    (bare.folder / "require.toml").write_text('url = "local:"\nrequire = "server"\n')
    (bare.folder / "empty.toml").write_text("")
    (bare.folder / "unknown.toml").write_text(f'ulr = "redis://:{SECRET}@h"\n')
    (bare.folder / "broken.toml").write_text(f"url = redis://:{SECRET}@h\n")
    (bare.folder / "key.toml").write_text(f'"redis://:{SECRET}@h" = 1\n')
    (bare.folder / "number.toml").write_text("url = 6379\n")
    done = bare("run", "job", *options, "--", "touch", "ran", **env)
    assert done.returncode == 64
    assert "Traceback" not in done.stderr
    assert SECRET not in done.stderr
    assert done.stderr.startswith(("lockline: ", "Usage: "))
    assert not (bare.folder / "ran").exists()


def test_what_is_required_and_there_is_used(shell: Shell) -> None:
    assert shell("run", "job", "--require", "local", "--", "true").returncode == 0
    # What was said outright on the command line is only refused there.
    assert shell("run", "job", "--url", shell.url, "--", "true", LOCKLINE_REQUIRE="server").returncode == 0
    done = shell("run", "job", "--", "true", LOCKLINE_REQUIRE="server")
    assert (done.returncode, "LOCKLINE_URL" in done.stderr) == (64, True)


@pytest.mark.parametrize(
    "url",
    [
        f"reddis://:{SECRET}@h",
        f"redlock://u:{SECRET}@a,b",
        f"redis://:{SECRET}@[h",
        f"unix://u:{SECRET}@",
        f"reddis:u/{SECRET}@h",
        f"reddis://h?password={SECRET}",
        f"local://u:{SECRET}@h/x.db",
    ],
)
def test_no_message_about_a_url_shows_its_password(shell: Shell, capsys: pytest.CaptureFixture[str], url: str) -> None:
    from lockline.cli.app import run

    for words in (["ls", "--url", url], ["show", "job", "--url", url], ["doctor", url], ["redlock", "status", url]):
        assert run(words) == 64
        said = capsys.readouterr()
        assert said.err
        assert SECRET not in said.err + said.out
    done = shell("run", "job", "--url", url, "--", "true")
    assert done.returncode == 64
    assert SECRET not in done.stderr


# -- what the command inside is told ---------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with a_redis("--requirepass", SECRET) as server:
        yield server


@pytest.mark.server
@pytest.mark.parametrize("said_by", ["--url", "--config", "LOCKLINE_URL"])
def test_a_lockline_inside_may_talk_to_a_store_with_a_password(shell: Shell, server: RedisServer, said_by: str) -> None:
    url = f"redis://:{SECRET}@127.0.0.1:{server.port}/2"
    options: tuple[str, ...] = ()
    if said_by == "LOCKLINE_URL":
        shell.env["LOCKLINE_URL"] = url
    elif said_by == "--url":
        options = ("--url", url)
    else:
        (shell.folder / "mine.toml").write_text(f'url = "{url}"\n')
        options = ("--config", "mine.toml")
    inner = shell.program()
    done = shell("run", "job", *options, "--", "sh", "-c", f"{inner} ls; {inner} run job --no-wait -- true; echo $?")
    _, held, code = done.stdout.splitlines()
    assert held.startswith("job ")
    assert code == "75"
    assert SECRET not in done.stdout + done.stderr


@pytest.mark.server
@pytest.mark.slow
def test_a_lockline_inside_talks_to_the_same_database_behind_sentinels(shell: Shell) -> None:
    with a_folder("sentinels") as folder:
        trio = SentinelTrio(folder, 0)
        trio.start()
        try:
            url = trio.url + "/3"
            script = f"{shell.program()} run job --no-wait -- echo never; echo $?"
            done = shell("run", "job", "--url", url, "--", "sh", "-c", script)
        finally:
            trio.stop()
    assert done.stdout == "75\n"


@pytest.mark.server
def test_the_url_of_a_client_behind_sentinels_names_its_database() -> None:
    with lockline.connect("redis+sentinel://:word@a,b:1/lines/3") as client:
        assert client.url == "redis+sentinel://a:26379,b:1/lines/3"


# -- what a person sees ----------------------------------------------------------------------------


def test_a_person_is_told_which_store_it_is(shell: Shell, on_screen: OnScreen) -> None:
    del shell.env["LOCKLINE_URL"]
    screen = on_screen(*LOCKLINE, "run", "job", "--", "true")
    assert screen.code() == 0
    assert "this machine only" in screen.text
    screen = on_screen(*LOCKLINE, "run", "job", "--url", shell.url, "--", "true")
    assert screen.code() == 0
    assert f"job on {shell.url}" in screen.text
    screen = on_screen(*LOCKLINE, "run", "job", "--quiet", "--", "echo", "alone")
    assert screen.code() == 0
    assert screen.text == "alone\r\n"
    done = shell("run", "job", "--", "true")
    assert done.stderr == ""
