"""Runs the cells that docs/lab.md tells of and draws each into docs/images/lab/.

python scripts/draw_lab.py [LOCK/FAILURE ...]
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from lockline.lab.draw.svg import svg
from lockline.lab.runner import Laboratory

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images" / "lab"


def named_in_the_page() -> list[str]:
    """`![...](images/lab/LOCK--FAILURE.svg)`"""
    text = (ROOT / "docs" / "lab.md").read_text()
    return [name.replace("--", "/") for name in re.findall(r"images/lab/([\w-]+--[\w-]+)\.svg", text)]


def main() -> int:
    cells = [tuple(cell.split("/")) for cell in sys.argv[1:] or named_in_the_page()]
    IMAGES.mkdir(parents=True, exist_ok=True)
    lab = Laboratory()
    try:
        for outcome in lab.matrix([(lock, failure) for lock, failure in cells]):
            if not outcome.as_expected or not outcome.events:
                print(f"{outcome.lock}/{outcome.failure}: {outcome.verdict.value}, {outcome.reason}", file=sys.stderr)
                return 1
            (IMAGES / f"{outcome.lock}--{outcome.failure}.svg").write_text(svg(outcome) + "\n")
    finally:
        lab.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
