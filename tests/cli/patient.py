"""`lockline` with a library that asks a store for ten minutes where it asks for seconds.

A command that gives up a store without such a try ends soon, and one that waits for the end of a try takes ten minutes: the two cannot be
mixed up, however busy the machine is.
"""

from __future__ import annotations

from lockline.cli import main as lockline_main
from lockline.cli import under
from lockline.core import engine
from lockline.kit.once_per import OncePer

PATIENT = f"{__name__}:main"
TEN_MINUTES = 600.0


def main() -> None:
    for module in (engine, under):
        assert vars(module)["A_TRY"] < TEN_MINUTES
        vars(module)["A_TRY"] = TEN_MINUTES
    for asks in (engine.Engine.ask, OncePer.look):
        assert asks.__defaults__ == (engine.PATIENCE,)
        asks.__defaults__ = (TEN_MINUTES,)
    lockline_main()
