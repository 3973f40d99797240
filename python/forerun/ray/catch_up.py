"""When the copy of a move has caught up with the writes that go on meanwhile.

    a round    the keys that were noted when it began
    rounds of  100,000 ──> 9,000 ──> 700 keys             few enough: the buckets can be frozen
               100,000 ──> 98,000 ──> 101,000 ──> ...     writes come as fast as they are copied
"""

from __future__ import annotations

import time
from collections.abc import Callable

from forerun.errors import Error

# Little is left if it takes so long at the speed of the fastest round.
LAST_COPY_S = 0.1
# So few keys are no reason for another round.
FEW_KEYS = 512
# What is left must shrink by a tenth within so many rounds and seconds, and not double meanwhile.
SHRINKS_TO = 0.9
STALLED_ROUNDS = 5
STALLED_S = 5.0


def keys_within(seconds: float, keys_per_s: float) -> int:
    """How many keys may be left for a copy of so many seconds."""
    return max(FEW_KEYS, int(keys_per_s * seconds))


class CatchUp:
    """Takes note of each answer of the source."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._taken, self._began = 0, clock()
        self._keys_per_s = 0.0
        self._best: int | None = None
        self._best_at, self._rounds = self._began, 0

    @property
    def keys_per_s(self) -> float:
        """The speed of the fastest round."""
        return self._keys_per_s

    @property
    def _few(self) -> int:
        return keys_within(LAST_COPY_S, self._keys_per_s)

    def note(self, taken: int, left: int, noted: int) -> bool:
        """Whether few enough keys are left. `taken` keys were copied, `left` of the round are not
        yet, and `noted` keys were written since it began. Raises an error if there is no end."""
        now = self._clock()
        if self._best is None:
            self._best, self._best_at = taken + left, now
        self._taken += taken
        if left == 0:
            speed = self._taken / max(now - self._began, 1e-6)
            self._keys_per_s = max(self._keys_per_s, speed)
            self._taken, self._began, self._rounds = 0, now, self._rounds + 1
            if noted <= self._few:
                return True
            if noted <= SHRINKS_TO * self._best:
                self._best, self._best_at, self._rounds = noted, now, 0
        is_stalled = self._rounds >= STALLED_ROUNDS or noted > 2 * self._best
        if is_stalled and noted > self._few and now - self._best_at >= STALLED_S:
            raise Error(
                f"keys are written as fast as they are copied: {noted} are left, of which "
                f"{self._few} could be copied in a moment"
            )
        return False
