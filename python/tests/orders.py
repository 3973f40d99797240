"""Keyspaces whose keys are not in the order of their bytes. The package opens them, but only a
program in Rust creates them, so these tests change the manifest of a store."""

import struct
from pathlib import Path

BYTEWISE = b"forerun.bytewise"
REVERSE = b"forerun.reverse-bytewise"
# Of the manifest, as in docs/internals/format.md: magic, version, checksum; then the length.
HEADER_BYTES = 16
LENGTH_BYTES = 4


def reverse_the_order(store, keyspace):
    """Gives a keyspace without entries the reverse order. The store is closed."""
    path = Path(store) / "MANIFEST"
    manifest = path.read_bytes()
    before, after = (_text(keyspace.encode()) + _text(order) for order in (BYTEWISE, REVERSE))
    assert manifest.count(before) == 1
    content = manifest[HEADER_BYTES + LENGTH_BYTES : -4].replace(before, after)
    covered = struct.pack("<I", len(content)) + content
    checksum = struct.pack("<I", crc32c(covered))
    path.write_bytes(manifest[:HEADER_BYTES] + covered + checksum)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _text(text):
    return struct.pack("<I", len(text)) + text
