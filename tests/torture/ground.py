"""One place to torture: a store, what can be done to its servers, and what its page says may break by that."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lockline.lab.verify.verdict import EXCLUSION, PERMITS, READERS
from tests.servers.process import ServerProcess

Deed = Callable[[random.Random], None]
SHARING = frozenset({EXCLUSION, READERS, PERMITS})
"""What a store breaks that forgets who holds, or whose clock is set. Its tokens still rise, so that a fence holds."""


@dataclass(frozen=True)
class Ground:
    """A store under torture."""

    name: str
    url: str
    deeds: dict[str, Deed]
    """By kind; each comes to its end by itself."""
    forgiven: frozenset[str] = field(default=frozenset())
    """Promises that it does not make under these deeds."""
    why: str = ""
    """Where that is said."""
    strikes: bool = True
    well: Callable[[], bool] = lambda: True
    """Whether its servers have come to terms again: what they still settle among themselves belongs to the deed before it."""
    stays_well: float = 0.0
    """So long all has to be well before a deed is over: a failover that a freeze caused may begin after the thaw."""


def frozen(servers: Sequence[ServerProcess], shortest: float = 0.2, longest: float = 2.6) -> Deed:
    """One of them stands still for a while."""

    def deed(dice: random.Random) -> None:
        server = dice.choice([one for one in servers if one.running])
        server.freeze()
        time.sleep(dice.uniform(shortest, longest))
        server.thaw()

    return deed


def killed(servers: Sequence[ServerProcess]) -> Deed:
    """One of them is killed, and comes back with what it had written down."""
    return _ended(servers, lambda server: server.kill())


def restarted(servers: Sequence[ServerProcess]) -> Deed:
    """One of them is stopped in good order, and started again."""
    return _ended(servers, lambda server: server.stop())


def _ended(servers: Sequence[ServerProcess], end: Callable[[ServerProcess], None]) -> Deed:
    def deed(dice: random.Random) -> None:
        server = dice.choice(servers)
        end(server)
        time.sleep(dice.uniform(0.0, 1.0))
        server.start()

    return deed


@contextmanager
def a_small_disk(folder: Path, megabytes: int) -> Iterator[Deed | None]:
    """The folder is a disk of that size; the deed fills it. None where nobody may mount one."""
    folder.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "lockline-torture", str(folder)], capture_output=True
    )
    if mounted.returncode:
        yield None
        return

    def fill(dice: random.Random) -> None:
        ballast = folder / "ballast"
        try:
            with open(ballast, "wb") as file:
                while True:
                    file.write(bytes(65536))
                    file.flush()
        except OSError:
            pass
        time.sleep(dice.uniform(0.5, 2.0))
        ballast.unlink()

    try:
        yield fill
    finally:
        subprocess.run(["umount", "-l", str(folder)], capture_output=True)


SLOW_DISK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static void wait_for_the_disk(void) {
  char text[16] = {0};
  int file = open(getenv("SLOW_DISK"), O_RDONLY);
  if (file < 0) return;
  if (read(file, text, sizeof text - 1) > 0) usleep(1000 * atoi(text));
  close(file);
}

int fsync(int fd) {
  static int (*real)(int);
  if (!real) real = dlsym(RTLD_NEXT, "fsync");
  wait_for_the_disk();
  return real(fd);
}

int fdatasync(int fd) {
  static int (*real)(int);
  if (!real) real = dlsym(RTLD_NEXT, "fdatasync");
  wait_for_the_disk();
  return real(fd);
}
"""
"""A few lines of C, loaded before libc: each flush takes so many milliseconds longer as stand in a file."""


def slow_disk(folder: Path) -> tuple[dict[str, str], Deed] | None:
    """What a server's environment needs, and the deed; None where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    source, built, wait = folder / "disk.c", folder / "disk.so", folder / "milliseconds"
    source.write_text(SLOW_DISK)
    wait.write_text("0")
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(built), str(source), "-ldl"], check=True)

    def deed(dice: random.Random) -> None:
        wait.write_text(str(dice.randrange(20, 300)))
        time.sleep(dice.uniform(1.0, 3.0))
        wait.write_text("0")

    return {"LD_PRELOAD": str(built), "SLOW_DISK": str(wait)}, deed
