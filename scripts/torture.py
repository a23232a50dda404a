"""Every backend and topology under everything that can be done to it: `lockline verify`, with the servers in our own hands.

    python scripts/torture.py [--minutes 60] [--seed 1] [--only redlock,etcd] [--html torture.html] [--json torture.json] [--keep folder]

The time is split over the grounds. Exit code 1 if a promise was broken that the store makes, 2 if too little happened.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
import tempfile
import time
from collections import Counter
from html import escape
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from lockline.lab.servers.process import NotInstalled
from lockline.lab.verify import report
from tests.torture.grounds import GROUNDS
from tests.torture.run import Tortured, torture


def summary(done: list[Tortured]) -> dict[str, object]:
    """The counts of all, for programs."""
    faults: Counter[str] = Counter()
    for one in done:
        faults.update(fault.kind for fault in one.outcome.history.faults)
    return {
        "grants": sum(one.outcome.verdict.grants for one in done),
        "unknown": sum(one.outcome.verdict.unknown for one in done),
        "stale_accesses_refused": sum(one.outcome.verdict.refused for one in done),
        "updates_lost_without_fence": sum(one.outcome.verdict.lost_without_fence for one in done),
        "faults": dict(sorted(faults.items())),
        "violations": sum(finding.broken for one in done for finding in one.wrong),
        "forgiven": {
            one.ground.name: {finding.promise: finding.broken for finding in one.outcome.verdict.broken if finding not in one.wrong}
            for one in done
            if one.ground.forgiven
        },
        "grounds": {one.ground.name: report.as_json(one.outcome) for one in done},
    }  # fmt: skip


def line(one: Tortured) -> str:
    """One ground in a line."""
    verdict, history = one.outcome.verdict, one.outcome.history
    broken = ", ".join(f"{finding.promise} {finding.broken}x" for finding in one.wrong) or "nothing broken"
    forgiven = ", ".join(f"{f.promise} {f.broken}x" for f in verdict.broken if f not in one.wrong)
    return (
        f"{one.ground.name}: {verdict.grants:,} grants, {len(history.faults)} faults, {verdict.refused} stale accesses refused, "
        f"{verdict.lost_without_fence} updates lost without a fence; {broken}"
        + (f"; as its page says: {forgiven}" if forgiven else "")
    )


def page(done: list[Tortured]) -> str:
    """One report for all."""
    rows = "".join(f"<li><a href='#g{number}'>{escape(line(one))}</a></li>" for number, one in enumerate(done))
    counts = {key: value for key, value in summary(done).items() if key != "grounds"}
    parts = [f"<h1>lockline: torture</h1><pre>{escape(json.dumps(counts, indent=2))}</pre><ul>{rows}</ul>"]
    for number, one in enumerate(done):
        parts.append(f"<section id='g{number}'><h2>{escape(one.ground.name)}</h2>{report.body(one.outcome)}</section>")
    return report.document("lockline: torture", "".join(parts))


def main() -> int:
    """Torture all, say what came of it."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minutes", type=float, default=60.0)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--workers", type=int, default=8)
    options.add_argument("--only", default="", help=f"of {', '.join(GROUNDS)}")
    options.add_argument("--html", type=Path)
    options.add_argument("--json", type=Path)
    options.add_argument("--keep", type=Path, help="a folder for the whole history of each ground, to judge it again")
    chosen = options.parse_args()
    names = [name for name in chosen.only.split(",") if name] or list(GROUNDS)
    if unknown := set(names) - set(GROUNDS):
        options.error(f"unknown: {', '.join(sorted(unknown))}")
    seconds = chosen.minutes * 60 / len(names)
    done: list[Tortured] = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="lockline-torture-", ignore_cleanup_errors=True) as folder:
            began = time.monotonic()
            try:
                with GROUNDS[name](Path(folder)) as ground:
                    done.append(torture(ground, seconds, chosen.seed, chosen.workers))
            except NotInstalled as missing:
                print(f"{name}: left out, {missing}", flush=True)
                continue
            print(f"{line(done[-1])} ({time.monotonic() - began:.0f} s)", flush=True)
            for finding in done[-1].wrong:
                print(f"  BROKEN {finding.promise}: {finding.text}", flush=True)
            for note in (*done[-1].outcome.notes, *done[-1].problems):
                print(f"  note: {note}", flush=True)
        if chosen.keep:
            chosen.keep.mkdir(parents=True, exist_ok=True)
            (chosen.keep / f"{name}.pickle").write_bytes(pickle.dumps(done[-1].outcome.history))
        if chosen.html:
            chosen.html.write_text(page(done), encoding="utf-8")
        if chosen.json:
            chosen.json.write_text(json.dumps(summary(done), indent=2))
    told = summary(done)
    print(json.dumps({key: value for key, value in told.items() if key != "grounds"}, indent=2))
    if told["violations"]:
        return 1
    return 2 if any(one.outcome.verdict.inconclusive for one in done) else 0


if __name__ == "__main__":
    sys.exit(main())
