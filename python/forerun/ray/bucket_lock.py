"""Which requests a shard serves now, and the end of those that it no longer serves.

    enter ──owns all buckets?──> counted ──> the table ──> leave
                └ no ──> Moved

    freeze   requests of the frozen buckets are refused from now on; waits for those that entered before
    moved    a client's write is refused for good; waits until no attempt of the client is inside

A request is counted in the generation in which it entered. `freeze` begins a generation and waits
for the former one, so it does not wait for requests of other buckets that come meanwhile.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict

import numpy as np
from numpy.typing import NDArray

from forerun.ray.shard_map import BUCKETS

# Clients whose refused writes are remembered. A client has one write at a time, and an attempt that
# is late is late by seconds.
CLIENTS_MAX = 65_536
SEQUENCE_MAX = (1 << 64) - 1


class BucketLock:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._serves = np.zeros(BUCKETS, np.bool_)
        self._generation = 0
        self._inside: Counter[int] = Counter()
        self._writers: Counter[bytes] = Counter()
        self._refused: OrderedDict[bytes, int] = OrderedDict()

    def set(self, serves: NDArray[np.bool_]) -> None:
        """Serves these buckets from now on, and waits for the requests that entered before."""
        with self._changed:
            self._serves = serves.copy()
            former, self._generation = self._generation, self._generation + 1
            self._changed.wait_for(lambda: not any(self._inside[g] for g in range(former + 1)))
            for generation in [g for g in self._inside if g <= former]:
                del self._inside[generation]

    def enter(
        self, buckets: NDArray[np.uint16], client: bytes = b"", sequence: int = 0
    ) -> int | None:
        """Lets a request of these buckets in, until `leave` is called with the returned generation.
        `None` if it may not be served."""
        with self._changed:
            if client and self._refused.get(client, 0) >= sequence:
                return None
            if not self._serves[buckets].all():
                return None
            self._inside[self._generation] += 1
            if client:
                self._writers[client] += 1
            return self._generation

    def leave(self, generation: int, client: bytes = b"") -> None:
        with self._changed:
            self._inside[generation] -= 1
            if client:
                self._writers[client] -= 1
                if self._writers[client] == 0:
                    del self._writers[client]
            self._changed.notify_all()

    def refuse(self, client: bytes, sequence: int) -> None:
        """Refuses a client's write for good, and waits for attempts that are inside.

        A late attempt of a write that the client was sent elsewhere with must not be applied
        here, even if its buckets come back.
        """
        with self._changed:
            self._refused[client] = max(sequence, self._refused.pop(client, 0))
            while len(self._refused) > CLIENTS_MAX:
                self._refused.popitem(last=False)
            self._changed.wait_for(lambda: self._writers[client] == 0)
            # `Counter` does not store the zero that it returns.

    def end(self, client: bytes) -> None:
        """Refuses all writes of a client that has ended. One that is late is not known to have been
        applied once its record is removed."""
        self.refuse(client, SEQUENCE_MAX)


class Changes:
    """The keys that were written since a copy began, for the buckets that are copied."""

    # 1 GiB of keys. A copy that meets so many has no end.
    KEYS_MAX = 1 << 27

    def __init__(self, buckets: NDArray[np.bool_]) -> None:
        self.buckets = buckets
        self._lock = threading.Lock()
        self._keys: list[NDArray[np.uint64]] = []
        self._count = 0
        self.has_overflowed = False

    def note(self, keys: NDArray[np.uint64], buckets: NDArray[np.uint16]) -> None:
        """Notes keys after they were written, whether or not that succeeded."""
        moving = keys[self.buckets[buckets]]
        if len(moving) == 0:
            return
        with self._lock:
            if self._count + len(moving) > self.KEYS_MAX:
                self.has_overflowed = True
                return
            self._keys.append(moving)
            self._count += len(moving)

    def take(self, count: int) -> tuple[NDArray[np.uint64], int]:
        """Up to this many keys, each once, and how many are left."""
        with self._lock:
            if not self._keys:
                return np.empty(0, np.uint64), 0
            keys = np.unique(np.concatenate(self._keys))
            taken, rest = keys[:count], keys[count:]
            self._keys, self._count = ([rest] if len(rest) else []), len(rest)
            return taken, len(rest)
