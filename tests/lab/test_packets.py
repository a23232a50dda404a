"""An arrow has the word that a reader of the protocol would give it."""

from __future__ import annotations

import struct

import pytest

from lockline.lab.packets import named


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
