from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..servers import redis as redis_servers
from ..servers.process import free_port

ROOT = Path(__file__).parents[2]
TITLED = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```', re.MULTILINE | re.DOTALL)
PATIENCE = 500.0
"""How long a test waits for a program of the frameworks at most; on a busy machine some take many seconds to start."""
DAY = 86400.0


class Recipe:
    """A page's programs in a folder, and the processes that were started there."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "XDG_STATE_HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT / "src")]),
            "PYTHONUNBUFFERED": "1",
            **environment,
        }
        self.started: list[subprocess.Popen[str]] = []

    def lay_out(self, page: str, changes: dict[str, str] | None = None) -> None:
        """Write the titled blocks of a page to where their titles say, with times that suit a busy machine."""
        text = (ROOT / "docs" / "recipes" / f"{page}.md").read_text()
        for ours, theirs in (changes or {}).items():
            assert ours in text
            text = text.replace(ours, theirs)
        files = TITLED.findall(text)
        assert files, page
        for title, text in files:
            path = self.folder / title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            for parent in path.parents:
                if parent == self.folder:
                    break
                (parent / "__init__.py").touch()

    def run(self, *words: str, **environment: str) -> str:
        """What a program printed that has to end well."""
        ran = subprocess.run(
            words,
            cwd=self.folder,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert ran.returncode == 0, f"{words}: {ran.stdout}\n{ran.stderr}"
        return ran.stdout

    def python(self, *words: str, **environment: str) -> str:
        return self.run(sys.executable, *words, **environment)

    def start(self, *words: str, log: str, **environment: str) -> subprocess.Popen[str]:
        """A program that goes on; what it says is in the file `log`."""
        with open(self.folder / log, "w") as output:
            process = subprocess.Popen(
                words,
                cwd=self.folder,
                env={**self.environment, **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self.started.append(process)
        return process

    def read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def wait(self, condition: Callable[[], Any], *logs: str) -> Any:
        """What the condition says once it says yes."""
        deadline = time.monotonic() + PATIENCE
        while not (answer := condition()):
            assert time.monotonic() < deadline, "\n".join(f"== {log}\n{self.read(log)}" for log in logs)
            time.sleep(0.1)
        return answer

    def stop(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.terminate()
        for process in self.started:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = redis_servers.RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server.url
    server.stop()


@pytest.fixture
def recipe(tmp_path: Path, redis_url: str) -> Iterator[Recipe]:
    there = Recipe(tmp_path, {"LOCKLINE_URL": redis_url})
    yield there
    there.stop()


@pytest.fixture
def one_day() -> None:
    """What is done once a day is done in one day of the store: not while noon is near, when the next one begins."""
    while (time.time() + DAY / 2) % DAY > DAY - PATIENCE:
        time.sleep(1)


@pytest.fixture
def port() -> int:
    return free_port()
