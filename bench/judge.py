"""The judge of `lockline verify` on a million grants: it has to be done within two minutes, and in time that grows with their number.

python bench/judge.py [grants]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from lockline.lab.verify.history import Fault, History, Operation, RegisterRecord, operations
from lockline.lab.verify.judge import judge
from lockline.lab.verify.verdict import HELD, ORDER, RECOVERY, WAKE_UP
from tests.verify.histories import lines

WORKERS, NAMES = 8, 7
KILLS, FAULTS, SAMPLES = 240, 2000, 72_000
"""What an hour has of them: one worker killed every quarter of a minute, a fault every two seconds, twenty looks a second at how busy the machine is."""


def a_run(found: list[Operation], grants: int) -> History:
    """A run of these operations, each of which was seen waiting, with the faults and kills of an hour spread over it."""
    ended = found[-1].ended
    moments = [ended * (number + 0.5) / KILLS for number in range(KILLS)]
    for operation in found:
        operation.seen = operation.begun + 1e-6
    for number, moment in enumerate(moments):  # each killed while it waited
        found.append(Operation(f"{100 + number}.0.1", f"n{number % NAMES}", "lock", 1, 1, 2.0, moment, 100 + number))
    faults = [Fault("kill", moment, moment, 100 + number) for number, moment in enumerate(moments)]
    faults += [Fault("cut", ended * number / FAULTS, ended * number / FAULTS) for number in range(FAULTS)]
    stalls = [(ended * number / SAMPLES, 0.0) for number in range(SAMPLES)]
    registers = {"n0": RegisterRecord(grants, grants)}
    return History(found, faults, registers, {}, [], stalls, 0.0, ended)


def measure(grants: int) -> tuple[float, float]:
    """Seconds to read the histories of so many grants, and seconds to judge them."""
    written = list(lines(grants, WORKERS, NAMES))
    began = time.perf_counter()
    found = list(operations(written, 0))
    read = time.perf_counter()
    del written
    history = a_run(found, grants)
    begun = time.perf_counter()
    verdict = judge(history)
    done = time.perf_counter()
    assert verdict.grants == grants
    assert verdict.code == 0, verdict
    for promise in (ORDER, WAKE_UP, RECOVERY):
        assert verdict.of(promise).state == HELD, verdict.of(promise)
    return read - began, done - begun


def main() -> None:
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print(f"{'grants':>12}{'read':>10}{'judge':>10}{'µs each':>10}")
    for grants in (most // 4, most // 2, most):
        read, judged = measure(grants)
        print(f"{grants:>12,}{read:>9.1f}s{judged:>9.1f}s{(read + judged) / grants * 1e6:>10.1f}", flush=True)


if __name__ == "__main__":
    main()
