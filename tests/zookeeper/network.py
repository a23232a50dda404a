"""A small network of namespaces on this machine, in which a link can be taken down: a real partition, and nobody is told."""

from __future__ import annotations

import itertools
import os
import subprocess

_numbers = itertools.count()


class NoNetwork(Exception):
    """Why there can be no namespaces on this machine."""


class Network:
    """One namespace per member on one bridge; the tests themselves sit at the bridge."""

    def __init__(self, members: int) -> None:
        mark = os.getpid() % 10000
        # A number of its own each time: the kernel takes a removed namespace apart later, and its links' names with it.
        label = f"llz{mark}x{next(_numbers) % 100}"
        self._bridge = label
        subnet = f"10.{100 + mark // 100 % 100}.{mark % 100}"
        self.names = [f"{label}n{number}" for number in range(members)]
        self.addresses = [f"{subnet}.{number + 1}" for number in range(members)]
        if os.geteuid() != 0:
            raise NoNetwork("network namespaces need root")
        try:
            _ip("link", "add", self._bridge, "type", "bridge")
        except (OSError, subprocess.CalledProcessError) as problem:
            raise NoNetwork(f"this machine has no network namespaces: {problem}") from problem
        try:
            self._connect(subnet)
        except BaseException:
            self.close()
            raise

    def _connect(self, subnet: str) -> None:
        _ip("addr", "add", f"{subnet}.254/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for name, address in zip(self.names, self.addresses, strict=True):
            _ip("netns", "add", name)
            _ip("link", "add", f"{name}h", "type", "veth", "peer", "name", f"{name}g", "netns", name)
            _ip("link", "set", f"{name}h", "master", self._bridge, "up")
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", f"{name}g")
            _ip("-n", name, "link", "set", f"{name}g", "up")
            _ip("-n", name, "link", "set", "lo", "up")

    def inside(self, member: int) -> tuple[str, ...]:
        """What to put before a command so that it runs in there."""
        return ("ip", "netns", "exec", self.names[member])

    def cut(self, member: int) -> None:
        """Take its link down."""
        _ip("link", "set", f"{self.names[member]}h", "down")

    def heal(self, member: int) -> None:
        """Take its link up again."""
        _ip("link", "set", f"{self.names[member]}h", "up")

    def close(self) -> None:
        """Remove what was made, and only that."""
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", self._bridge], check=False, capture_output=True)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, ["ip", *words, done.stderr.strip()])
