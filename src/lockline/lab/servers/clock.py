"""A wall clock for one server alone: a few lines of C, loaded before libc.

`STEPPED_CLOCK` names a file with an offset that is added. With `STEADY_CLOCK`, an offset from CLOCK_BOOTTIME, nobody else steps it.

Not libfaketime: it and the jemalloc that Redis is built with call each other without end.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

from .process import NotInstalled

SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset; /* microseconds */
static int64_t steady;           /* nanoseconds from CLOCK_BOOTTIME to the wall clock */

__attribute__((constructor)) static void begin(void) {
  char *name = getenv("STEPPED_CLOCK"), *given = getenv("STEADY_CLOCK");
  if (given) steady = strtoll(given, 0, 10);
  int file = name ? open(name, O_RDONLY) : -1;
  void *found = file < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
  if (found != MAP_FAILED) offset = found;
  if (file >= 0) close(file);
}

/* The kernel itself is asked: whoever allocates memory in here may be asking for the time. */
int clock_gettime(clockid_t clock, struct timespec *ts) {
  int wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
  int done = syscall(SYS_clock_gettime, wall && steady ? CLOCK_BOOTTIME : clock, ts);
  if (!done && wall && (steady || offset)) {
    int64_t now = ts->tv_sec * 1000000000LL + ts->tv_nsec + steady + (offset ? *offset * 1000 : 0);
    ts->tv_sec = now / 1000000000;
    ts->tv_nsec = now % 1000000000;
  }
  return done;
}

int gettimeofday(struct timeval *tv, void *tz) {
  struct timespec ts;
  int done = clock_gettime(CLOCK_REALTIME, &ts);
  tv->tv_sec = ts.tv_sec;
  tv->tv_usec = ts.tv_nsec / 1000;
  return done;
}

time_t time(time_t *out) {
  struct timespec ts;
  clock_gettime(CLOCK_REALTIME, &ts);
  if (out) *out = ts.tv_sec;
  return ts.tv_sec;
}
"""


def library(folder: Path) -> Path | None:
    """The library, built here; None where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    source, built = folder / "clock.c", folder / "clock.so"
    source.write_text(SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(built), str(source)], check=True)
    return built


def needed_library(folder: Path) -> Path:
    """The library; NotInstalled where there is no C compiler."""
    built = folder / "clock.so"
    found = built if built.exists() else library(folder)
    if found is None:
        raise NotInstalled("a C compiler, to step a server's clock,", "apt-get install gcc libc6-dev")
    return found


class Clock:
    """One server's wall clock."""

    def __init__(self, built: Path, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(struct.pack("<q", 0))
        self.env = {"LD_PRELOAD": str(built), "STEPPED_CLOCK": str(file)}
        with open(file, "r+b") as opened:
            self._memory = mmap.mmap(opened.fileno(), 8)

    def step(self, seconds: float) -> None:
        """Be so far off from now on."""
        self._memory[:] = struct.pack("<q", int(seconds * 1e6))
