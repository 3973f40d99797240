"""Hot pools in NumPy: the reference of the tests, and what the bench compares with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class NumpyHotPool:
    """One table, one position after the other: each is searched among the slots."""

    def __init__(self, slots: int, eviction: str = "lru") -> None:
        self.eviction = eviction
        self.keys = np.full(slots, -1, np.int64)
        # LRU: the slots, the least recently used first. CLOCK: when each was used, and the hand.
        self.order = np.arange(slots)
        self.used = np.zeros(slots, np.int64)
        self.hand = self.time = self.hits = self.misses = self.absent = 0

    def resolve(
        self,
        positions: NDArray[np.int32],
        host_rows: NDArray[np.int64],
        host: NDArray[np.uint8],
        rows: NDArray[np.uint8],
    ) -> NDArray[np.int32]:
        """The slot of each position, whose row is fetched if it is in none."""
        slots = np.full(len(positions), -1, np.int32)
        self.time += 1
        hits, missing = [], []
        for position in dict.fromkeys(positions.tolist()):
            found = np.flatnonzero(self.keys == position) if position >= 0 else []
            if len(found):
                hits.append(int(found[0]))
                self.used[found[0]] = self.time
            elif 0 <= position < len(host_rows) and 0 <= host_rows[position] < len(host):
                missing.append(position)
        take = self._oldest if self.eviction == "lru" else self._passed
        for position, slot in zip(missing, take(hits, len(missing))):
            self.keys[slot] = position
            rows[slot] = host[host_rows[position]]
        for i, position in enumerate(positions):
            found = np.flatnonzero(self.keys == position) if position >= 0 else []
            if len(found):
                slots[i] = found[0]
            else:
                self.absent += position != -1
        self.hits += len(hits)
        self.misses += len(missing)
        return slots

    def _oldest(self, hits: list[int], wanted: int) -> NDArray[np.int64]:
        is_hit = np.isin(self.order, hits)
        others, hit = self.order[~is_hit], self.order[is_hit]
        self.order = np.concatenate([others[wanted:], others[:wanted], hit])
        return others[:wanted]

    def _passed(self, hits: list[int], wanted: int) -> list[int]:
        taken: list[int] = []
        while len(taken) < wanted:
            if self.used[self.hand] == 0:
                taken.append(self.hand)
                self.used[self.hand] = self.time
            elif self.used[self.hand] < self.time:
                self.used[self.hand] = 0
            self.hand = (self.hand + 1) % len(self.keys)
        return taken


class VectorHotPool(NumpyHotPool):
    """The same for distinct present positions and LRU, by operations on whole arrays."""

    def resolve(
        self,
        positions: NDArray[np.int32],
        host_rows: NDArray[np.int64],
        host: NDArray[np.uint8],
        rows: NDArray[np.uint8],
    ) -> NDArray[np.int32]:
        by_key = np.argsort(self.keys)
        at = np.searchsorted(self.keys, positions, sorter=by_key).clip(max=len(by_key) - 1)
        slots = by_key[at]
        is_hit = self.keys[slots] == positions
        missing = positions[~is_hit]
        taken = self._oldest_of(slots[is_hit], len(missing))
        slots[~is_hit] = taken
        self.keys[taken] = missing
        rows[taken] = host[host_rows[missing]]
        self.hits += int(is_hit.sum())
        self.misses += len(missing)
        return slots.astype(np.int32)

    def _oldest_of(self, hits: NDArray[np.int64], wanted: int) -> NDArray[np.int64]:
        is_hit = np.zeros(len(self.keys), bool)
        is_hit[hits] = True
        is_hit = is_hit[self.order]
        others, hit = self.order[~is_hit], self.order[is_hit]
        self.order = np.concatenate([others[wanted:], others[:wanted], hit])
        return others[:wanted]
