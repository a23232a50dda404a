"""`client.url` is the way to the same place: for people, for logs, and for whoever opens it again."""

from __future__ import annotations

from .parties import connect
from .scene import Scene


def test_the_url_of_a_client_opens_the_same_place(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    with alice.lock("x").acquire() as lease:
        again = bob.do(lambda: connect(world.flavour, alice.client.url))
        assert [claim.token for claim in bob.do(lambda: again.real.inspect("x")).holders] == [lease.token]
        assert bob.do(lambda: again.real.list()) == ["x"]
        assert again.real.url == alice.client.url
        bob.do(lambda: again.real.close())
