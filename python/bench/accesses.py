"""Which rows exist, and which are looked up.

    uniform, zipf:S   rows 0..n       drawn; the popular rows are random
    trace:FILE        its numbers     in file order: 4-byte big-endian numbers, plain or in xz
"""

import lzma
from dataclasses import dataclass
from pathlib import Path

import numpy as np

DRAWN = 1 << 22  # accesses drawn before they repeat


@dataclass
class Access:
    """A kind of access, as the command line names it."""

    kind: str
    exponent: float = 0.0
    path: Path | None = None

    @staticmethod
    def parse(text: str) -> "Access":
        kind, _, rest = text.partition(":")
        if kind == "uniform" and not rest:
            return Access("uniform")
        if kind == "zipf":
            exponent = float(rest or 1)
            if 0 <= exponent <= 10:
                return Access("zipf", exponent=exponent)
        if kind == "trace" and rest:
            return Access("trace", path=Path(rest))
        raise ValueError(
            f"{text!r} is not an access: use uniform, zipf:1 with an exponent from 0 to 10, or "
            "trace:FILE"
        )

    def __str__(self) -> str:
        match self.kind:
            case "zipf":
                return f"zipf:{self.exponent:g}"
            case "trace":
                return f"trace:{self.path.name}"
        return self.kind


class Workload:
    """The keys that have rows, in ascending order, and positions among them in access order."""

    def __init__(self, access: Access, rows: int, drawn: int = DRAWN) -> None:
        rng = np.random.default_rng(7)
        if access.kind == "trace":
            opened = (
                lzma.open(access.path) if access.path.suffix == ".xz" else open(access.path, "rb")
            )
            with opened as file:
                reads = np.frombuffer(file.read(), ">u4")
            if len(reads) == 0:
                raise ValueError(f"{access.path} contains no read")
            self.keys, positions = np.unique(reads.astype(np.uint64), return_inverse=True)
        else:
            self.keys = np.arange(rows, dtype=np.uint64)
            if access.kind == "uniform":
                positions = rng.integers(0, rows, drawn)
            else:
                weights = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -access.exponent)
                ranks = np.searchsorted(weights, rng.random(drawn) * weights[-1])
                positions = rng.permutation(rows)[np.minimum(ranks, rows - 1)]
        self.positions = positions.astype(np.int64)
        self._at = 0

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, batch: int, batches: int) -> list[np.ndarray]:
        """The positions of the next batches. At its end the stream starts again."""
        taken = []
        for _ in range(batches):
            if self._at + batch > len(self.positions):
                self._at = 0
            part = self.positions[self._at : self._at + batch]
            self._at += batch
            # A trace shorter than the batch is repeated within it.
            taken.append(
                np.ascontiguousarray(part if len(part) == batch else np.resize(part, batch))
            )
        return taken
