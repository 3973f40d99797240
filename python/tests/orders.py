"""Keyspaces whose keys are not in the order of their bytes. The package opens them, but only a
program in Rust creates them, so these tests change the manifest of a store."""

import struct
from pathlib import Path

BYTEWISE = b"forerun.bytewise"
REVERSE = b"forerun.reverse-bytewise"
# As in docs/internals/format.md: magic, version and checksum of the header; then the content and
# its checksum. The content of the manifest begins with its length.
HEADER_BYTES = 16
CHECKSUM_BYTES = 4
LENGTH_BYTES = 4


def reverse_the_order(store, keyspace):
    """Gives a keyspace without entries the reverse order. The store is closed."""
    before, after = (_text(keyspace.encode()) + _text(order) for order in (BYTEWISE, REVERSE))
    _replace(Path(store) / "MANIFEST", before, after, LENGTH_BYTES)
    if not keyspace:
        # The order of the store's own keyspace is also in this file.
        _replace(Path(store) / "FORMAT", _text(BYTEWISE), _text(REVERSE), 0)


def _replace(path, before, after, length_bytes):
    file = path.read_bytes()
    content = file[HEADER_BYTES + length_bytes : -CHECKSUM_BYTES]
    assert content.count(before) == 1
    content = content.replace(before, after)
    length = struct.pack("<I", len(content)) if length_bytes else b""
    covered = length + content
    checksum = struct.pack("<I", crc32c(covered))
    path.write_bytes(file[:HEADER_BYTES] + covered + checksum)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _text(text):
    return struct.pack("<I", len(text)) + text
