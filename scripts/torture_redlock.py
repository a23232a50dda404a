"""Redlock under live faults: eight client processes, at least 20,000 grants, every fault there is. Takes some minutes.

    python scripts/torture_redlock.py [--grants 20000] [--seed 1]

Exit code 1 if a token came twice or out of order, if a fenced resource lost an update, or if leases overlapped although no
clock was stepped.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.redlock.live import Verdict, directed, trial


def main() -> int:
    """Run until there are enough grants; say what came of it."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--grants", type=int, default=20_000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--minutes", type=float, default=30.0, help="give up after so long")
    chosen = options.parse_args()
    began = time.monotonic()
    steady, stepped = Verdict(), Verdict()
    seed = chosen.seed
    forced = directed(10, seed)
    print(f"directed: {forced}", flush=True)
    while steady.grants + stepped.grants < chosen.grants and time.monotonic() - began < chosen.minutes * 60:
        seed += 1
        step_clocks = seed % 3 == 0
        verdict = trial(60, seed, step_clocks=step_clocks)
        (stepped if step_clocks else steady).add(verdict)
        print(f"seed {seed}{', clocks stepped' if step_clocks else ''}: {verdict}", flush=True)
    print(f"\nin all, clocks steady:  {steady}\nin all, clocks stepped: {stepped}")
    wrong = sum(one.twice + one.out_of_order + one.lost_updates for one in (forced, steady, stepped)) + steady.overlaps
    enough = steady.grants + stepped.grants >= chosen.grants
    print("all tokens right, no overlap without stepped clocks" if not wrong else f"{wrong} VIOLATIONS")
    if not enough:
        print(f"only {steady.grants + stepped.grants} grants in {chosen.minutes} minutes")
    return 1 if wrong or not enough else 0


if __name__ == "__main__":
    sys.exit(main())
