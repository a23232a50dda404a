"""A wall clock that nobody steps, for the tests and their servers: a few lines of C, loaded before libc.

Redis, PostgreSQL and MariaDB end leases by the wall clock. A virtual machine that was paused steps its wall clock forward by the length
of the pause, and a lease ends before its time: no test is about that, unless it steps a clock itself.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t offset; /* nanoseconds from CLOCK_BOOTTIME to the wall clock, as they were when the test began */

__attribute__((constructor)) static void begin(void) {
  char *given = getenv("STEADY_CLOCK");
  if (given) offset = strtoll(given, 0, 10);
}

int clock_gettime(clockid_t clock, struct timespec *ts) {
  int wall = offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE);
  int done = syscall(SYS_clock_gettime, wall ? CLOCK_BOOTTIME : clock, ts);
  if (!done && wall) {
    int64_t now = ts->tv_sec * 1000000000LL + ts->tv_nsec + offset;
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


def steady_clock(folder: Path) -> dict[str, str]:
    """The environment of a process that has such a clock; nothing where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    source, built = folder / "steady.c", folder / "steady.so"
    source.write_text(SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(built), str(source)], check=True)
    offset = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return {"LD_PRELOAD": str(built), "STEADY_CLOCK": str(offset)}
