"""The judge of `lockline verify` on a million grants: it has to be done within two minutes, and in time that grows with their number.

python bench/judge.py [grants]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from lockline.lab.verify.history import History, Register, operations
from lockline.lab.verify.judge import judge
from tests.verify.histories import lines

WORKERS, NAMES = 8, 7


def measure(grants: int) -> tuple[float, float]:
    """Seconds to read the histories of so many grants, and seconds to judge them."""
    written = list(lines(grants, WORKERS, NAMES))
    began = time.perf_counter()
    found = list(operations(written, 0))
    read = time.perf_counter()
    verdict = judge(History(found, [], {"n0": Register(grants, grants)}, {}, [], [], 0.0, found[-1].ended))
    done = time.perf_counter()
    assert verdict.grants == grants
    assert verdict.code == 0, verdict
    return read - began, done - read


def main() -> None:
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print(f"{'grants':>12}{'read':>10}{'judge':>10}{'µs each':>10}")
    for grants in (most // 4, most // 2, most):
        read, judged = measure(grants)
        print(f"{grants:>12,}{read:>9.1f}s{judged:>9.1f}s{(read + judged) / grants * 1e6:>10.1f}", flush=True)


if __name__ == "__main__":
    main()
