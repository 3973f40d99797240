"""The protocol of a shard's data port. Numbers are little-endian.

    hello, 48 bytes          0        8         12    16
                            ┌────────┬─────────┬─────┬──────────┐
      client -> shard       │ magic  │ version │ 0   │ token    │     magic: "FORESHRD", version: 1
                            │ 8      │ 4       │ 4   │ 32       │
                            └────────┴─────────┴─────┴──────────┘
    welcome, 16 bytes       ┌────────┬─────────┬────────┐
      shard -> client       │ magic  │ version │ status │             status: 0 welcome, 1 refused, 2 full
                            │ 8      │ 4       │ 4      │
                            └────────┴─────────┴────────┘

    request, 56 bytes        0      4    5   8    16            24       40         48      52
                            ┌──────┬────┬───┬────┬─────────────┬────────┬──────────┬───────┬──────────┐
      client -> shard       │ body │ op │ 0 │ id │ map version │ client │ sequence │ count │ argument │
                            │ 4    │ 1  │ 3 │ 8  │ 8           │ 16     │ 8        │ 4     │ 4        │
                            └──────┴────┴───┴────┴─────────────┴────────┴──────────┴───────┴──────────┘
                            then the body: `count` keys of 8 bytes, then `count` rows

    answer, 32 bytes         0      4        5   8    16            24      28
                            ┌──────┬────────┬───┬────┬─────────────┬───────┬─────┐
      shard -> client       │ body │ status │ 0 │ id │ map version │ count │ 0   │
                            │ 4    │ 1      │ 3 │ 8  │ 8           │ 4     │ 4   │
                            └──────┴────────┴───┴────┴─────────────┴───────┴─────┘
                            then the body: `count` flags of 1 byte, then rows, then text. Zeros
                            between flags and rows make their offset a multiple of 8

`body` is the length of the body in bytes. A flag is 0 (no row), 1 (a row) or 2 (the key failed, and
the text says why). A text is the class of an error, ": " and its message, in UTF-8. `Op` and
`Status` describe the bodies.

A client has one write at a time under way to a shard. It repeats a write with the same sequence,
keys and rows on a new connection to the same shard, until that shard has answered. After `MOVED` it
may take the keys elsewhere: the shard refuses that sequence from then on. A shard does not begin a
write whose connection the client has closed.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

__all__ = ["Answer", "FrameError", "Op", "Request", "Status"]

MAGIC = b"FORESHRD"
VERSION = 1
TOKEN_BYTES = 32
CLIENT_BYTES = 16

HELLO = struct.Struct("<8sI4x32s")
WELCOME = struct.Struct("<8sII")
REQUEST = struct.Struct("<IB3xQQ16sQII")
ANSWER = struct.Struct("<IB3xQQI4x")

# `FULL`: the shard has as many connections as it takes.
WELCOMED, REFUSED, FULL = 0, 1, 2

# Keys of a frame, and bytes of its rows: a longer batch takes several frames.
FRAME_KEYS_MAX = 8192
FRAME_ROWS_BYTES_MAX = 4 << 20
# The longest text or description in an answer.
TEXT_BYTES_MAX = 1 << 16


class Op(enum.IntEnum):
    """What a request asks for. Requests without keys have no body, except `EXPORT`."""

    # Keys -> flags, then a row for each key; a text, if keys failed.
    FIND = 1
    # Keys -> flags.
    CONTAINS = 2
    # Keys, then rows -> flags.
    INSERT = 3
    ASSIGN = 4
    ADD_AT = 5
    # Keys -> flags, all 1.
    ERASE = 6
    # Keys -> nothing.
    PREFETCH = 7
    FLUSH = 8
    # -> the number of rows, 8 bytes; the buckets that were counted, 128 bytes.
    COUNT = 9
    # -> JSON.
    STATS = 10
    # -> the sequence of the client's last write, 8 bytes; the keys of all its writes, 8 bytes.
    APPLIED = 11
    # The client will not repeat a write.
    FORGET = 12
    # The argument is the rows of a batch. The buckets wanted, 128 bytes -> those that the shard
    # owns, 128 bytes.
    EXPORT = 13
    # -> keys, then rows; no keys at the end.
    EXPORT_NEXT = 14
    EXPORT_END = 15
    # Of a move -> keys, flags, rows; how many keys are left of the round, and how many were noted
    # since it began, 8 bytes each.
    CHANGES = 16
    # The shard refuses the client's write with this sequence, and those before it, from now on.
    FENCE = 17


WRITES = frozenset({Op.INSERT, Op.ASSIGN, Op.ADD_AT, Op.ERASE})
WITH_ROWS = frozenset({Op.INSERT, Op.ASSIGN, Op.ADD_AT})
WITH_KEYS = WRITES | {Op.FIND, Op.CONTAINS, Op.PREFETCH}


class Status(enum.IntEnum):
    OK = 0
    # The shard does not own all buckets of the frame. The first `count` keys were applied, before
    # they left; the body has their flags.
    MOVED = 1
    # The first `count` keys were applied. The body has their flags, and a text that says why the
    # others were not.
    FAILED = 2


class FrameError(Exception):
    """A peer does not keep to the protocol."""


class Request(NamedTuple):
    """The head of a request."""

    body_bytes: int
    op: int
    id: int
    map_version: int
    client: bytes
    sequence: int
    keys: int
    argument: int

    def pack(self) -> bytes:
        return REQUEST.pack(*self)


class Answer(NamedTuple):
    """The head of an answer."""

    body_bytes: int
    status: int
    id: int
    map_version: int
    keys: int

    def pack(self) -> bytes:
        return ANSWER.pack(*self)


def frame_keys(row_bytes: int) -> int:
    """The maximum number of keys in a frame."""
    return max(1, min(FRAME_KEYS_MAX, FRAME_ROWS_BYTES_MAX // row_bytes))


def padded(flags: int) -> int:
    """The bytes of so many flags before rows, which are aligned."""
    return flags + -flags % 8


def parse_request(head: bytes | bytearray | memoryview, row_bytes: int) -> Request:
    """Checks the head of a request before anything is allocated for it."""
    request = Request(*REQUEST.unpack(head))
    try:
        op = Op(request.op)
    except ValueError:
        raise FrameError(f"there is no operation {request.op}") from None
    needed = 0
    if op in WITH_KEYS:
        if request.keys > frame_keys(row_bytes):
            raise FrameError(f"a frame has at most {frame_keys(row_bytes)} keys")
        needed = request.keys * (8 + (row_bytes if op in WITH_ROWS else 0))
    elif op is Op.EXPORT:
        needed = BITMAP_BYTES
    if request.body_bytes != needed:
        raise FrameError(f"{op.name} needs a body of {needed} bytes, not {request.body_bytes}")
    return request


# One bit for each of 1,024 buckets.
BITMAP_BYTES = 128


def parse_answer(head: bytes | bytearray | memoryview, request: int, row_bytes: int) -> Answer:
    """Checks the head of an answer to a request."""
    answer = Answer(*ANSWER.unpack(head))
    if answer.id != request:
        raise FrameError(f"an answer to request {answer.id}, not {request}")
    limit = frame_keys(row_bytes) * (9 + row_bytes) + TEXT_BYTES_MAX + 16
    if answer.body_bytes > limit or answer.keys > frame_keys(row_bytes):
        raise FrameError(f"an answer of {answer.body_bytes} bytes is above the limit of {limit}")
    return answer
