"""A small network of the tests' own: one namespace per member on a bridge, cut where the test says."""

from __future__ import annotations

import os
import subprocess
from types import TracebackType

import pytest


def _ip(*words: str, check: bool = True) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Network:
    """Members at 10.x.y.11, .12, .13 in namespaces of their own; this side of the bridge is 10.x.y.1."""

    def __init__(self, members: int = 3) -> None:
        self._tag = f"ll{os.getpid() % 100000}"
        self._net = f"10.{100 + os.getpid() % 100}.{os.getpid() // 100 % 250}"
        self.homes = [(f"{self._tag}m{number}", f"{self._net}.{11 + number}") for number in range(members)]

    def __enter__(self) -> Network:
        if os.geteuid() != 0:
            pytest.skip("network namespaces need root")
        try:
            _ip("link", "add", self._tag, "type", "bridge")
            _ip("addr", "add", f"{self._net}.1/24", "dev", self._tag)
            _ip("link", "set", self._tag, "up")
            for number, (namespace, target) in enumerate(self.homes):
                outer, inner = f"{self._tag}o{number}", f"{self._tag}i{number}"
                _ip("netns", "add", namespace)
                _ip("link", "add", outer, "type", "veth", "peer", "name", inner)
                _ip("link", "set", inner, "netns", namespace)
                _ip("link", "set", outer, "master", self._tag, "up")
                _ip("-n", namespace, "addr", "add", f"{target}/24", "dev", inner)
                _ip("-n", namespace, "link", "set", inner, "up")
                _ip("-n", namespace, "link", "set", "lo", "up")
        except (OSError, RuntimeError) as problem:
            self.close()
            pytest.skip(f"network namespaces cannot be made here: {problem}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take it down."""
        for number, (namespace, _) in enumerate(self.homes):
            # The outer end goes at once, and the inner one with it; a namespace may linger with its last process.
            _ip("link", "del", f"{self._tag}o{number}", check=False)
            _ip("netns", "del", namespace, check=False)
        _ip("link", "del", self._tag, check=False)

    def cut_from_peers(self, number: int) -> None:
        """This member's packets to the other members vanish; its clients still reach it."""
        namespace, own = self.homes[number]
        for _, target in self.homes:
            if target != own:
                _ip("-n", namespace, "route", "add", "blackhole", f"{target}/32")

    def heal(self, number: int) -> None:
        """All is well again."""
        namespace, own = self.homes[number]
        for _, target in self.homes:
            if target != own:
                _ip("-n", namespace, "route", "del", "blackhole", f"{target}/32", check=False)

    def cut_off(self, number: int) -> None:
        """Nothing reaches this member, and nothing comes from it."""
        _ip("link", "set", f"{self._tag}o{number}", "down")

    def connect(self, number: int) -> None:
        """It is back."""
        _ip("link", "set", f"{self._tag}o{number}", "up")
