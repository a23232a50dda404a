"""`scripts/setup` asks for every server that a machine does not have, and for none that it has."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = ["sh", "dirname", "id", "env", "ls"]
SERVERS = [
    "redis-server",
    "prometheus",
    "redis-sentinel",
    "etcd",
    "zkServer.sh",
    "java",
    "initdb",
    "pgbouncer",
    "mariadbd",
    "ip",
    "chromium",
    "cc",
]


def asked_for(folder: Path, *, there: list[str]) -> list[str]:
    """What setup has apt-get install on a machine that has these programs on its path."""
    programs = folder / "bin"
    programs.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (programs / tool).symlink_to(found)
    asked = folder / "asked"
    for name, text in {"apt-get": f'echo "$@" >> {asked}', **dict.fromkeys(["sudo", *there], "exit 0")}.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    (folder / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "setup", folder / "scripts" / "setup")
    (folder / ".servers").mkdir()
    (folder / ".servers" / "consul").touch()
    ran = subprocess.run(
        ["sh", str(folder / "scripts" / "setup"), "servers"],
        env={"PATH": str(programs)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return asked.read_text().split() if asked.exists() else []


def test_a_machine_without_servers_is_asked_for_all_that_are_found_by_the_path_alone(tmp_path: Path) -> None:
    assert {"redis-server", "redis-sentinel", "etcd-server"} <= set(asked_for(tmp_path, there=[]))


def test_a_machine_that_has_them_is_asked_for_none(tmp_path: Path) -> None:
    assert asked_for(tmp_path, there=[*SERVERS, "consul"]) == []
