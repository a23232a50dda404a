"""What a lock on Redis promises."""

from __future__ import annotations

from typing import Final

from ...guarantees import Guarantees

GUARANTEES: Final = Guarantees(
    exclusion="server",
    fifo=True,
    push=True,
    token_survives=frozenset({"release", "expiry", "restart", "failover", "wipe"}),
    tolerates=(
        "Clients may crash, pause and lose their network. A server that restarts without its data, or fails over to a "
        "replica that had not seen a grant, or whose clock is set forward by more than a lease has left, may let a second "
        "holder in: only a fence covers that. Tokens go on rising "
        "as long as the server's clock steps back by no more than 10 seconds; where the line's memory is lost (wipe, "
        "restart without data, failover), by no more than the outage took."
    ),
)
