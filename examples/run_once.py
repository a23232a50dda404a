"""Efficiency: several workers get the same job, one does it, the others take its result.

python examples/run_once.py
"""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import lockline


def report_of_the_day(client: lockline.Client, folder: Path) -> str:
    """The report, made once however many ask for it at the same time."""
    finished = folder / "report.txt"
    if not finished.exists():
        with client.lock("report/today"):
            # Whoever waited finds it done: look again under the lock.
            if not finished.exists():
                print("one worker does the work")
                finished.write_text("all is well")
    return finished.read_text()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, lockline.connect(f"local://{folder}/local.db") as client:
        threads = [threading.Thread(target=report_of_the_day, args=(client, Path(folder))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(report_of_the_day(client, Path(folder)))


if __name__ == "__main__":
    main()
