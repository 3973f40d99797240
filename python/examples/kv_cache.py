"""A key-value cache of a language model, most of it offloaded to host memory.

Each decoding step attends to the tokens that an index finds most relevant: many of the last ones,
and some from far back. Their rows must be in a small pool. Rows that are in the pool stay there.
Missing rows are copied from host memory in one call, into the slots of the least recently used
rows. The pool here is memory too; `gather` also accepts a tensor on a GPU, which has not yet been
run.

    pip install './python[examples]'
    python python/examples/kv_cache.py           # writes kv_cache.png
"""

import argparse
import time
from pathlib import Path

import forerun
import matplotlib
import numpy as np
from numpy.typing import NDArray

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROW_BYTES = 656  # 512 bytes of values in eight bits, 16 of scales, 128 of position


class Pool:
    """Rows of some tokens, and the tokens that they belong to."""

    def __init__(self, host: NDArray[np.uint8], slots: int) -> None:
        self.host = host
        self.rows = np.empty((slots, ROW_BYTES), np.uint8)
        self.slot_of = np.full(len(host), -1)  # by token
        self.token_in = np.full(slots, -1)  # by slot
        self.used = np.zeros(slots, np.int64)  # the step in which a slot was last used
        self.step = 0

    def fetch(self, tokens: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
        """Brings the rows of distinct `tokens` into the pool.

        Returns their slots, and how many were copied.
        """
        self.step += 1
        slots = self.slot_of[tokens]
        self.used[slots[slots >= 0]] = self.step
        absent = tokens[slots < 0]
        # As many slots as there are absent tokens: the least recently used ones.
        free = np.argpartition(self.used, len(absent))[: len(absent)]
        evicted = self.token_in[free]
        self.slot_of[evicted[evicted >= 0]] = -1
        self.slot_of[absent], self.token_in[free], self.used[free] = free, absent, self.step
        forerun.gather(self.host, self.rows, (absent, free))
        return self.slot_of[tokens], len(absent)


def relevant(rng: np.random.Generator, length: int, count: int) -> NDArray[np.int64]:
    """`count` different tokens of the first `length`, most of them recent."""
    ages = rng.pareto(0.6, 4 * count)
    tokens = np.unique(length - 1 - np.minimum(ages * 200, length - 1).astype(np.int64))
    return rng.choice(tokens, min(count, len(tokens)), replace=False)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=300_000, help="rows in host memory")
    parser.add_argument("--slots", type=int, default=16_384, help="rows in the pool")
    parser.add_argument("--rows", type=int, default=2048, help="rows that a step needs")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument(
        "--plot", type=Path, default=Path("kv_cache.png"), help="where the plot goes"
    )
    arguments = parser.parse_args()
    if not arguments.rows <= arguments.slots <= arguments.tokens:
        parser.error("the rows of a step must fit in the pool, and the pool in host memory")

    rng = np.random.default_rng(1)
    host = rng.integers(0, 256, (arguments.tokens, ROW_BYTES), np.uint8)
    pool = Pool(host, arguments.slots)
    hit_rates: list[float] = []
    seconds, asked, copied = 0.0, 0, 0
    for step in range(arguments.steps):
        tokens = relevant(rng, arguments.tokens - arguments.steps + step, arguments.rows)
        begin = time.perf_counter()
        slots, misses = pool.fetch(tokens)
        seconds += time.perf_counter() - begin
        assert (pool.rows[slots[:8]] == host[tokens[:8]]).all()
        asked, copied = asked + len(tokens), copied + misses
        hit_rates.append(1 - misses / len(tokens))

    print(
        f"{asked:,} rows requested: {1 - copied / asked:.1%} found in the pool, "
        f"{copied / asked:.1%} copied from host memory"
    )
    print(
        f"{asked / seconds:,.0f} rows/s, {copied * ROW_BYTES / seconds / 2**30:.2f} GiB/s copied, "
        "map included"
    )

    plt.figure(figsize=(6, 4))
    plt.plot(np.array(hit_rates) * 100)
    plt.xlabel("step")
    plt.ylabel("rows found in the pool, %")
    plt.ylim(0, 100)
    plt.title(f"a pool of {arguments.slots / arguments.tokens:.0%} of {arguments.tokens:,} rows")
    plt.tight_layout()
    plt.savefig(arguments.plot, dpi=120)
    print(f"plot: {arguments.plot}")


if __name__ == "__main__":
    main()
