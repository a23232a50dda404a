"""Who has which servers: shared where nobody disturbs them, new ones or one after the other where somebody does."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from .families import FAMILIES, Servers, a_folder
from .servers.process import NotInstalled
from .servers.watcher import WATCHER

Key = tuple[str, str]


def servers_for(family: str, wants: str, *, disturbs: bool) -> Key | None:
    """Which servers several cells share; None where each has its own, which start in no time or could not be mended."""
    if family in ("redis", "redlock", "local") or (family == "postgresql" and wants == "replica"):
        return None
    # Of three that agree one falls silent or dies, and comes back: after either they are as before.
    kind = "three" if wants == "replica" else wants
    return family, f"{kind}{' disturbed' if disturbs else ''}"


def turn_for(family: str, wants: str, *, disturbs: bool) -> Key | None:
    """What cells wait for one another for: servers that each of them disturbs."""
    return servers_for(family, wants, disturbs=disturbs) if disturbs else None


class World:
    """All servers of one run, in one folder that goes away with it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lockline-lab-"))
        WATCHER.takes_away(self.folder)
        self.folder.chmod(0o755)
        self._mutex = threading.Lock()
        self._ready: dict[Key, Servers | NotInstalled] = {}
        self._turns: dict[Key, threading.Lock] = {}
        self._own: set[Servers] = set()
        self._closed = False

    @contextlib.contextmanager
    def servers(self, family: str, wants: str, *, disturbs: bool) -> Iterator[Servers]:
        """Servers of this family for one cell."""
        key = servers_for(family, wants, disturbs=disturbs)
        if key is None:
            with self._servers_of_own(family, wants) as own:
                yield own
            return
        with self._mutex:
            turn = self._turns.setdefault(key, threading.Lock())
        with turn:
            servers = self._shared(key, family, wants)
            if disturbs:
                try:
                    yield servers
                finally:
                    for clock in servers.clocks:
                        clock.step(0)
                    if not self._closed:
                        servers.settle()
                return
        yield servers

    def _shared(self, key: Key, family: str, wants: str) -> Servers:
        found = self._ready.get(key)
        if found is None:
            try:
                found = self._begin(family, wants)
            except NotInstalled as problem:
                found = problem
            self._ready[key] = found
        if isinstance(found, NotInstalled):
            raise found
        return found

    @contextlib.contextmanager
    def _servers_of_own(self, family: str, wants: str) -> Iterator[Servers]:
        servers = self._begin(family, wants)
        try:
            yield servers
        finally:
            servers.stop()
            self._own.discard(servers)
            shutil.rmtree(servers.folder, ignore_errors=True)

    def _begin(self, family: str, wants: str) -> Servers:
        if self._closed:
            raise RuntimeError("the laboratory is closed")
        servers = FAMILIES[family](a_folder(self.folder, family), wants)
        self._own.add(servers)
        servers.start()
        if self._closed:  # meanwhile
            servers.stop()
            raise RuntimeError("the laboratory is closed")
        return servers

    def close(self) -> None:
        """Stop every server and take the folder away."""
        self._closed = True
        for servers in list(self._own):
            with contextlib.suppress(Exception):
                servers.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
