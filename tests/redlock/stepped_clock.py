"""Redis servers whose wall clock can be stepped: a few lines of C, loaded before libc, add an offset from a file."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile int64_t *offset; /* microseconds */

__attribute__((constructor)) static void begin(void) {
  int file = open(getenv("STEPPED_CLOCK"), O_RDONLY);
  offset = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
}

int gettimeofday(struct timeval *tv, void *tz) {
  static int (*real)(struct timeval *, void *);
  if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
  int done = real(tv, tz);
  int64_t now = tv->tv_sec * 1000000LL + tv->tv_usec + (offset ? *offset : 0);
  tv->tv_sec = now / 1000000;
  tv->tv_usec = now % 1000000;
  return done;
}

time_t time(time_t *out) {
  struct timeval tv;
  gettimeofday(&tv, 0);
  if (out) *out = tv.tv_sec;
  return tv.tv_sec;
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
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(built), str(source), "-ldl"], check=True)
    return built


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
