"""Tables for people and JSON for programs."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

Row = Mapping[str, object]


def jain(counts: Sequence[float]) -> float:
    """Jain's fairness index: 1 when all got the same, 1/n when one got everything."""
    total, squares = sum(counts), sum(count * count for count in counts)
    return total * total / (len(counts) * squares) if squares else 0.0


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which that share of an ordered list lies."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class Report:
    """One benchmark's figures, all of one run on one machine."""

    def __init__(self, name: str, versions: Mapping[str, str]) -> None:
        self.name = name
        self._began = time.time()
        self._tables: dict[str, Sequence[Row]] = {}
        self._versions = dict(versions)

    def table(self, title: str, rows: Sequence[Row]) -> None:
        """Print a table and keep its rows."""
        self._tables[title] = rows
        columns = list(dict.fromkeys(column for row in rows for column in row))
        cells = [[_shown(row.get(column, "")) for column in columns] for row in rows]
        widths = [max(len(c) for c in [column, *(row[at] for row in cells)]) for at, column in enumerate(columns)]
        print(f"\n{title}")
        print("  " + "  ".join(column.rjust(width) for column, width in zip(columns, widths, strict=True)))
        for row in cells:
            print("  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))

    def write(self) -> None:
        """Write everything to bench/results/<name>.json."""
        folder = Path(__file__).parent / "results"
        folder.mkdir(exist_ok=True)
        machine = {"python": platform.python_version(), "system": platform.system(), "cores": os.cpu_count()}
        record = {"began": self._began, "machine": machine, "versions": self._versions, "tables": self._tables}
        file = folder / f"{self.name}.json"
        file.write_text(json.dumps(record, indent=2) + "\n")
        print(f"\nwritten: bench/results/{file.name}")


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) < 100 else f"{value:,.0f}"
    return str(value)
