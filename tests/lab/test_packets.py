"""An arrow has the word that a reader of the protocol would give it, and what only looks after a connection is taken for no word."""

from __future__ import annotations

import struct

import pytest

from lockline.lab.packets import is_upkeep, named


@pytest.mark.parametrize(
    ("packet", "word"),
    [
        (b"*3\r\n$5\r\nSETNX\r\n$1\r\nx\r\n$4\r\ntrue\r\n", "SETNX"),
        (b"*1\r\n$5\r\nMULTI\r\n*3\r\n$5\r\nsetnx\r\n$1\r\nx\r\n$1\r\n1\r\n", "MULTI+SETNX"),
        (b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n", "hello"),
        (b"*2\r\n$6\r\nCONFIG\r\n$3\r\nGET\r\n*2\r\n$7\r\nEVALSHA\r\n$1\r\nx\r\n", "EVALSHA"),
        (b"PUT /v1/session/create HTTP/1.1\r\nHost: x\r\n\r\n", "PUT session"),
        (struct.pack(">iiii", 12, 7, 1, 0), "create"),
        (struct.pack(">iii", 8, -2, 11), "ping"),
        (b"P\x00\x00\x00\x20\x00INSERT INTO locks VALUES ($1)\x00", "INSERT"),
        (b"\x10\x00\x00\x00\x03select 1", "SELECT"),
        (b"\x00\x01\x02", ""),
        (b"*", ""),
        (b"*\r\n$", ""),
        (b"", ""),
    ],
)
def test_a_packet_in_a_word(packet: bytes, word: str) -> None:
    assert named(packet) == word


def frame(kind: int, stream: int = 0, body: bytes = b"") -> bytes:
    """One of HTTP/2."""
    return struct.pack(">I", len(body))[1:] + bytes([kind, 0]) + struct.pack(">I", stream) + body


SETTINGS, ACKNOWLEDGED = frame(4, body=bytes(12)), frame(4)
WINDOW, STREAMS_WINDOW, PING = frame(8, body=bytes(4)), frame(8, 7, bytes(4)), frame(6, body=bytes(8))
HEADERS, DATA = frame(1, 7, b"\x88"), frame(0, 7, b"an answer")


@pytest.mark.parametrize(
    "packet", [SETTINGS, ACKNOWLEDGED, WINDOW, STREAMS_WINDOW, PING, SETTINGS + ACKNOWLEDGED, WINDOW + PING]
)
def test_what_keeps_a_connection_going_is_neither_a_request_nor_an_answer(packet: bytes) -> None:
    assert is_upkeep(packet)


@pytest.mark.parametrize(
    "packet",
    [
        HEADERS,
        DATA,
        WINDOW + PING + HEADERS + DATA,
        ACKNOWLEDGED + HEADERS,
        frame(3, 7, bytes(4)),  # the end of a stream
        frame(7, body=bytes(8)),  # the end of all of them
        frame(6, 7, bytes(8)),  # no ping belongs to a stream
        WINDOW[:-1],
        PING + b"\x00",
        b"",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS,
        b"+OK\r\n",
        b":1\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        struct.pack(">iiqi", 16, 7, 1, 0),
        struct.pack(">iiqi", 264, 7, 1, 0) + bytes(248),
        b"\x07\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00",
        b"Z\x00\x00\x00\x05I",
    ],
)
def test_whatever_says_more_is_one(packet: bytes) -> None:
    assert not is_upkeep(packet)
