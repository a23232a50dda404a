"""What a loop reads for a connection reaches it whole, or the connection hears that it did not."""

from __future__ import annotations

import pytest

from lockline.backends.whole_stream import WholeStream


class Heard(WholeStream):
    """Notes what came."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = b""
        self.strikes = 0
        self.raising: type[BaseException] | None = None

    def received(self, data: bytearray) -> None:
        if self.raising is not None:
            raise self.raising
        self.heard += data

    def struck(self) -> None:
        self.strikes += 1

    def come(self, data: bytes) -> None:
        self.get_buffer(-1)[: len(data)] = data


def test_what_comes_is_handed_on_in_order() -> None:
    stream = Heard()
    for data in (b"+OK\r\n", b"$3\r\nabc\r\n", b"\n"):
        stream.come(data)
        stream.buffer_updated(len(data))
    assert stream.heard == b"+OK\r\n$3\r\nabc\r\n\n"
    assert not stream.strikes


@pytest.mark.parametrize("lost", [b"\n", b"+OK\r\n", b"x" * 65536])
def test_what_the_loop_read_and_told_nobody_is_noticed_before_the_next_read(lost: bytes) -> None:
    stream = Heard()
    stream.come(lost)
    stream.get_buffer(-1)
    assert stream.strikes == 1


def test_a_read_that_brought_nothing_is_nothing_lost() -> None:
    stream = Heard()
    stream.come(b"abc")
    stream.buffer_updated(3)
    stream.get_buffer(-1)
    stream.come(b"def")
    stream.buffer_updated(3)
    assert stream.heard == b"abcdef"
    assert not stream.strikes


@pytest.mark.parametrize("blow", [KeyboardInterrupt, ValueError])
def test_whoever_is_struck_while_it_takes_them_hears_of_it_and_so_does_the_loop(blow: type[BaseException]) -> None:
    """For Ctrl-C asyncio itself closes nothing."""
    stream = Heard()
    stream.come(b"+OK\r\n")
    stream.raising = blow
    with pytest.raises(blow):
        stream.buffer_updated(5)
    assert stream.strikes == 1
