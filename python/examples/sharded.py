"""A table in shards on two local Ray nodes: load, look up, grow, lose a process.

    pip install './python[ray]' pyarrow pandas
    python python/examples/sharded.py

It needs about 1 GB of memory. With two machines, start Ray on both (`ray start`), pass
`bind="node"` and a `path` on each machine's own disk, and leave out the `Cluster`.
"""

import argparse
import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import ray
from forerun.ray import ShardedTable
from ray.cluster_utils import Cluster

DIM = 64


def embed(numbers: np.ndarray) -> np.ndarray:
    """A row for each number, which can be checked."""
    return np.sin(numbers[:, None] * np.arange(1, DIM + 1) * 0.001).astype(np.float32)


def load(table: ShardedTable, rows: int) -> None:
    """Loads a dataset; its tasks write to all shards."""
    begin = time.perf_counter()
    dataset = ray.data.range(rows).map_batches(
        lambda batch: {"word": batch["id"], "vector": embed(batch["id"])}
    )
    loaded = table.load(dataset, key="word", row="vector")
    seconds = time.perf_counter() - begin
    print(f"loaded {loaded:,} rows in {seconds:.1f} s: {loaded / seconds:,.0f} rows/s")


def look_up(table: ShardedTable, rows: int, stop: threading.Event) -> tuple[int, float]:
    """Looks up and checks batches until `stop` is set. Returns their number and the longest."""
    rng, out = np.random.default_rng(1), np.empty((4096, DIM), np.float32)
    batches, longest = 0, 0.0
    while not stop.is_set():
        keys = rng.integers(0, rows, len(out))
        begin = time.perf_counter()
        _, found = table.find(keys, out=out)
        longest = max(longest, time.perf_counter() - begin)
        if not found.all() or not np.array_equal(out, embed(keys)):
            raise SystemExit("a lookup returned other rows")
        batches += 1
    return batches, longest


def meanwhile(table: ShardedTable, rows: int, what: str, call) -> None:
    """Looks up rows while something happens."""
    stop, results = threading.Event(), []
    thread = threading.Thread(target=lambda: results.append(look_up(table, rows, stop)))
    thread.start()
    call()
    time.sleep(0.5)
    stop.set()
    thread.join()
    if not results:
        raise SystemExit(f"lookups failed: {what}")
    batches, longest = results[0]
    print(f"{what}: {batches} batches of 4,096 meanwhile, the longest took {longest * 1e3:.0f} ms")


def kill_a_shard(table: ShardedTable) -> None:
    actor = ray.get_actor(f"{table.name}/shard-0000/0", namespace="forerun")
    os.kill(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200_000, help="rows [default: 200,000]")
    arguments = parser.parse_args()
    node = {"num_cpus": 2, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="WARNING")
        ray.data.DataContext.get_current().enable_progress_bars = False
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "words"
            table = ShardedTable(DIM, name="words", path=path, shards=2, memory="256MiB")
            load(table, arguments.rows)
            meanwhile(table, arguments.rows, "from 2 to 4 shards", lambda: table.reshard(4))
            meanwhile(
                table, arguments.rows, "a shard's process killed", lambda: kill_a_shard(table)
            )
            print(f"{len(table):,} rows in {table.shards} shards")
            table.shutdown()
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
