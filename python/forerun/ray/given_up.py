"""Writes that a handle has given up, although a shard may still get to them.

    thread 1   insert(7, v1) ──> the shard hangs; the call fails       the frame waits in a socket
    thread 2   insert(7, v2) ──> fence: the frame is refused for good ──> v2 is written

All sessions of a handle share this. Before a session writes to a shard, it fences there what the
handle has given up. So no frame of a failed call is applied after a later write.
"""

from __future__ import annotations

import threading


class GivenUpWrites:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By shard, the last such write of each client.
        self._writes: dict[int, dict[bytes, int]] = {}

    def add(self, shard: int, client: bytes, sequence: int) -> None:
        with self._lock:
            writes = self._writes.setdefault(shard, {})
            writes[client] = max(sequence, writes.get(client, 0))

    def of(self, shard: int) -> list[tuple[bytes, int]]:
        """The clients and sequences to fence."""
        if shard not in self._writes:
            return []
        with self._lock:
            return list(self._writes.get(shard, {}).items())

    def shards(self) -> list[int]:
        with self._lock:
            return list(self._writes)

    def remove(self, shard: int, client: bytes, sequence: int) -> None:
        """After the shard has fenced it."""
        with self._lock:
            writes = self._writes.get(shard, {})
            if writes.get(client, 0) <= sequence:
                writes.pop(client, None)
            if not writes:
                self._writes.pop(shard, None)
