"""Every failure of the laboratory, in the order of the matrix."""

from __future__ import annotations

from .clocks import ALL as CLOCKS
from .crashes import ALL as CRASHES
from .crowds import ALL as CROWDS
from .face import Failure
from .messages import ALL as MESSAGES
from .servers import ALL as SERVERS
from .sharing import ALL as SHARING


def catalogue() -> dict[str, Failure]:
    """Every failure by its id."""
    restart, failover, one_of_five, minority, majority = SERVERS
    order = [*CRASHES, *CLOCKS, restart, failover, one_of_five, *MESSAGES, minority, majority, *CROWDS, *SHARING]
    return {failure.id: failure for failure in order}
