"""Rows of a table in the workers of a PyTorch DataLoader, with any start method.

    pip install './python[torch]'                # this example needs PyTorch
    python python/examples/workers.py --start fork|forkserver|spawn

A table belongs to the process that opened it, and while one process writes to a store no other can
open it. There are two ways to use one with workers:

1. The workers produce the keys, and the main process looks up the rows of each batch. One lookup of
   many keys is what a table does best, and it sees every row that was written. Prefer this unless
   the workers need the rows.
2. The workers read one checkpoint, which any number of processes can open with `read_only=True`. A
   checkpoint shares its files with the store, so it is made at once and takes almost no space.
   Only its path is pickled or inherited by a fork; a worker opens the table on first use.
"""

import argparse
import tempfile
from pathlib import Path

import forerun
import numpy as np
from numpy.typing import NDArray

try:
    import torch
    from torch.utils.data import DataLoader, Dataset
except ModuleNotFoundError as missing:
    raise SystemExit(f"this example needs PyTorch ({missing}): pip install torch") from None

DIM = 16


class Keys(Dataset[int]):
    """Keys that a worker produces. It does not touch the table."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, position: int) -> int:
        return position * 7 % self.rows


class Rows(Dataset[tuple[int, NDArray[np.float32]]]):
    """Rows that a worker looks up in a checkpoint."""

    def __init__(self, rows: int, checkpoint: Path) -> None:
        self.rows = rows
        self.checkpoint = checkpoint
        self._table: forerun.Table | None = None

    def __len__(self) -> int:
        return self.rows

    def __getitems__(self, positions: list[int]) -> list[tuple[int, NDArray[np.float32]]]:
        """A whole batch at a time, so that it is one lookup."""
        if self._table is None:
            self._table = forerun.Table(DIM, path=self.checkpoint, read_only=True)
        keys = np.array(positions) * 7 % self.rows
        return list(zip(keys.tolist(), self._table.find(keys)[0]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--start", default="fork", choices=["fork", "forkserver", "spawn"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=10_000)
    options = parser.parse_args()
    loading = {
        "batch_size": 256,
        "num_workers": options.workers,
        "multiprocessing_context": options.start,
    }
    with tempfile.TemporaryDirectory() as directory:
        with forerun.Table(DIM, path=Path(directory, "table"), host_capacity=1000) as table:
            everything = np.arange(options.rows)
            table.insert(everything, np.repeat(everything, DIM).reshape(-1, DIM).astype(np.float32))

            seen = 0
            for keys in DataLoader(Keys(options.rows), **loading):
                rows, found = table.find(keys)
                assert found.all() and (rows[:, 0] == keys.numpy()).all()
                seen += len(keys)
            print(f"{seen} rows looked up by the main process")

            checkpoint = Path(directory, "checkpoint")
            table.checkpoint(checkpoint)
            seen = 0
            for keys, rows in DataLoader(Rows(options.rows, checkpoint), **loading):
                assert torch.equal(rows[:, 0], keys.to(rows.dtype))
                seen += len(keys)
            print(f"{seen} rows looked up by the workers")


if __name__ == "__main__":
    main()
