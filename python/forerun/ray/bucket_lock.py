"""Which requests a shard serves now, and the end of those that it no longer serves.

    enter ──owns all buckets?──> counted ──> the table ──> leave
                └ no ──> Moved

    freeze   requests of the frozen buckets are refused from now on; waits for those that entered before
    moved    a client's write is refused for good; waits until no attempt of the client is inside

A request is counted in the generation in which it entered. `freeze` begins a generation and waits
for the former one, so it does not wait for requests of other buckets that come meanwhile.

A shard that gained buckets refuses clients with an older map. Such a map may name it as their owner
from a time before another shard had them, and the new map may be that of a move that was cancelled.
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
NO_KEYS = np.empty(0, np.uint64)


class BucketLock:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._serves = np.zeros(BUCKETS, np.bool_)
        self._since = 0
        self._generation = 0
        self._inside: Counter[int] = Counter()
        self._writers: Counter[bytes] = Counter()
        self._refused: OrderedDict[bytes, int] = OrderedDict()

    def set(self, serves: NDArray[np.bool_], since: int = 0) -> None:
        """Serves these buckets from now on, to clients whose map has at least the version
        `since`."""
        with self._changed:
            self._serves, self._since = serves.copy(), since
            self._generation += 1

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the requests that entered before the last `set`. Returns whether they have
        left."""
        with self._changed:
            former = self._generation - 1
            have_left = self._changed.wait_for(
                lambda: not any(n for g, n in self._inside.items() if g <= former), timeout_s
            )
            for generation in [g for g, n in self._inside.items() if g <= former and n == 0]:
                del self._inside[generation]
            return have_left

    def enter(
        self,
        buckets: NDArray[np.uint16],
        client: bytes = b"",
        sequence: int = 0,
        map_version: int | None = None,
    ) -> int | None:
        """Lets a request of these buckets in, until `leave` is called with the returned generation.
        `None` if it may not be served."""
        with self._changed:
            if map_version is not None and map_version < self._since:
                return None
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
    """The keys that were written since a copy began, for the buckets that are copied.

    note ──> noted ──sort, once a round──> round ──take──> in flight ──> copied
                ^                                              └ another one takes: noted again
    """

    # 1 GiB of keys. A copy that meets so many has no end.
    KEYS_MAX = 1 << 27
    # Repeated keys are removed when there are as many again as there were after the last time.
    COMPACT_KEYS = 1 << 22

    def __init__(self, buckets: NDArray[np.bool_]) -> None:
        self.buckets = buckets
        self._lock = threading.Lock()
        self._noted: list[NDArray[np.uint64]] = []
        self._count = 0
        self._compact_at = self.COMPACT_KEYS
        # Held by the one who sorts, so that the other threads can note keys meanwhile.
        self._sorting = threading.Lock()
        self._round = NO_KEYS
        # What was taken last, and by whom.
        self._in_flight = NO_KEYS
        self._taker: object = None
        self.has_overflowed = False

    @property
    def left(self) -> int:
        """How many keys are not taken. A key may count several times."""
        with self._lock:
            return self._count + len(self._round)

    def is_more_than(self, keys: int) -> bool:
        """Whether more keys are left. One that was written several times is one."""
        if self.left <= keys:
            return False
        with self._sorting:
            self._compact()
        return self.left > keys

    def note(self, keys: NDArray[np.uint64], buckets: NDArray[np.uint16]) -> None:
        """Notes keys after they were written, whether or not that succeeded."""
        moving = keys[self.buckets[buckets]]
        if len(moving) == 0:
            return
        self._add(moving)
        if self._count > self._compact_at and self._sorting.acquire(blocking=False):
            try:
                self._compact()
            finally:
                self._sorting.release()

    def _add(self, keys: NDArray[np.uint64]) -> None:
        with self._lock:
            if self._count + len(keys) > self.KEYS_MAX:
                self.has_overflowed = True
                return
            self._noted.append(keys)
            self._count += len(keys)

    def _compact(self) -> None:
        distinct, count = self._sorted()
        with self._lock:
            self._noted.append(distinct)
            self._count += len(distinct) - count
        self._compact_at = 2 * max(len(distinct), self.COMPACT_KEYS)

    def _sorted(self) -> tuple[NDArray[np.uint64], int]:
        """What was noted, each key once, and how many that were. The caller counts them."""
        with self._lock:
            noted, self._noted = self._noted, []
        if not noted:
            return NO_KEYS, 0
        return np.unique(np.concatenate(noted)), sum(map(len, noted))

    def take(self, count: int, taker: object) -> tuple[NDArray[np.uint64], int, int]:
        """Up to this many keys; how many of the round are left; and how many were noted since it
        began. What another taker has taken last may never have arrived, and is noted again."""
        with self._sorting:
            if taker is not self._taker and len(self._in_flight):
                self._add(self._in_flight)
            if len(self._round) == 0:
                distinct, noted = self._sorted()
                with self._lock:
                    self._round = distinct
                    self._count -= noted
            taken, self._round = self._round[:count], self._round[count:]
            self._in_flight, self._taker = taken, taker
            return taken, len(self._round), self._count
