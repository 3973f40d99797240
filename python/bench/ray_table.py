"""Batches over a table in shards: `forerun.ray.ShardedTable` beside what users have.

Starts a local Ray cluster, loads the same rows into every engine, and asks for the same batches in
alternating rounds, from one thread:

    sharded    find(keys, out=, found=) over the shards' data ports
    sockets    as many plain sockets to processes with a bare table: keys that are already split
               go out, rows come back in shard order. No shard map, no scatter, no checks: a lower
               bound
    actors     the same table with transport="actor": frames as arguments and results of Ray calls
    redis      one server, MGET of all keys, the values joined into an array

    pip install redis; apt-get install redis-server
    python python/bench/ray_table.py                              # 4,096 keys over 4 shards
    python python/bench/ray_table.py --shards 2 --batch 256,4096 --json
"""

import argparse
import contextlib
import importlib
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forerun
import numpy as np
from rounds import Case, Progress, count, measure, print_table, ratio, short

IN_TURN = 16  # batches between two readings of the clock
LOADED_AT_ONCE = 1 << 14
PATIENCE_S = 60
HEAD = struct.Struct("<I")


def receive(connection: socket.socket, into: memoryview) -> bool:
    got = 0
    while got < len(into):
        taken = connection.recv_into(into[got:])
        if taken == 0:
            return False
        got += taken
    return True


def serve_bare_table(path: str, rows: int, dim: int) -> None:
    """The other end of a plain socket: a count, keys; then flags and rows."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with forerun.Table(dim, path=path, host_capacity=rows) as table:
        head = memoryview(bytearray(HEAD.size))
        while receive(connection, head):
            (number,) = HEAD.unpack(head)
            if number == 0:
                # Rows to load follow: their number, keys, rows.
                receive(connection, head)
                (number,) = HEAD.unpack(head)
                keys, loaded = np.empty(number, np.uint64), np.empty((number, dim), np.float32)
                receive(connection, keys.data.cast("B"))
                receive(connection, loaded.data.cast("B"))
                table.insert(keys, loaded)
                connection.sendall(head)
                continue
            keys = np.empty(number, np.uint64)
            receive(connection, keys.data.cast("B"))
            answer = np.empty(number * (1 + 4 * dim), np.uint8)
            table.find(keys, answer[number:], answer[:number].view(bool))
            connection.sendall(answer)


@contextlib.contextmanager
def bare_tables(shards: int, rows: int, dim: int, directory: Path) -> Iterator[list[socket.socket]]:
    """Sockets to processes with a table each."""
    processes, sockets = [], []
    try:
        for shard in range(shards):
            command = [sys.executable, __file__, "--serve", str(directory / f"bare-{shard}")]
            command += ["--rows", str(rows), "--dim", str(dim)]
            processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        for process in processes:
            port = int(process.stdout.readline())
            sockets.append(socket.create_connection(("127.0.0.1", port)))
            sockets[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield sockets
    finally:
        for connection in sockets:
            connection.close()
        for process in processes:
            process.wait(PATIENCE_S)


@contextlib.contextmanager
def redis_server(directory: Path) -> Iterator[Any]:
    """A client of a server without persistence."""
    redis = importlib.import_module("redis")
    path = str(directory / "redis.sock")
    command = ["redis-server", "--port", "0", "--unixsocket", path, "--save", ""]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=directory)
    try:
        client = redis.Redis(unix_socket_path=path)
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                client.ping()
                break
            except redis.exceptions.ConnectionError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
        yield client
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def turn_of(look_up: Callable[[int], None]) -> Callable[[float], float]:
    def turn(seconds: float) -> float:
        begin, done = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            for nth in range(IN_TURN):
                look_up(nth)
            done += IN_TURN
        return done / (time.perf_counter() - begin)

    return turn


class Rows:
    """The rows that every engine holds, and the batches that are asked."""

    def __init__(self, rows: int, dim: int) -> None:
        rng = np.random.default_rng(11)
        self.keys = rng.permutation(rows).astype(np.uint64)
        self.rows = rng.random((rows, dim), np.float32)
        self.dim = dim

    def parts(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for at in range(0, len(self.keys), LOADED_AT_ONCE):
            part = slice(at, at + LOADED_AT_ONCE)
            yield self.keys[part], self.rows[part]

    def batches(self, batch: int) -> list[np.ndarray]:
        """Positions of the keys of each batch."""
        rng = np.random.default_rng(5)
        return [rng.choice(len(self.keys), batch, replace=False) for _ in range(IN_TURN)]

    def check(self, engine: str, answer: np.ndarray, positions: np.ndarray) -> None:
        if not np.array_equal(answer.reshape(-1, self.dim), self.rows[positions]):
            raise SystemExit(f"{engine} returned other rows")


def table_case(name: str, table: Any, data: Rows, batch: int) -> Case:
    positions = data.batches(batch)
    asked = [data.keys[some] for some in positions]
    out, found = np.zeros((batch, data.dim), np.float32), np.zeros(batch, bool)

    def look_up(nth: int) -> None:
        table.find(asked[nth], out=out, found=found)

    look_up(0)
    data.check(name, out, positions[0])
    return Case(name, turn_of(look_up))


def sockets_case(sockets: list[socket.socket], data: Rows, batch: int) -> Case:
    """Keys are split before the clock starts."""
    shards, positions = len(sockets), data.batches(batch)
    split = [
        [np.ascontiguousarray(some[data.keys[some] % shards == shard]) for shard in range(shards)]
        for some in positions
    ]
    asked = [
        [HEAD.pack(len(part)) + data.keys[part].tobytes() for part in parts] for parts in split
    ]
    answers = [np.empty(batch * (1 + 4 * data.dim), np.uint8) for _ in sockets]

    def look_up(nth: int) -> None:
        for connection, request in zip(sockets, asked[nth]):
            connection.sendall(request)
        for connection, part, answer in zip(sockets, split[nth], answers):
            receive(connection, answer[: len(part) * (1 + 4 * data.dim)].data)

    look_up(0)
    for part, answer in zip(split[0], answers):
        rows = answer[len(part) : len(part) * (1 + 4 * data.dim)]
        data.check("sockets", rows.copy().view(np.float32), part)
    return Case("sockets", turn_of(look_up))


def redis_case(client: Any, data: Rows, batch: int) -> Case:
    positions = data.batches(batch)
    asked = [[key.tobytes() for key in data.keys[some]] for some in positions]
    answers: list[np.ndarray] = [np.empty(0)]

    def look_up(nth: int) -> None:
        answers[0] = np.frombuffer(b"".join(client.mget(asked[nth])), np.float32)

    look_up(0)
    data.check("redis", answers[0], positions[0])
    return Case("redis", turn_of(look_up))


def load_sockets(sockets: list[socket.socket], data: Rows) -> None:
    for keys, rows in data.parts():
        for shard, connection in enumerate(sockets):
            mine = keys % len(sockets) == shard
            connection.sendall(HEAD.pack(0) + HEAD.pack(int(mine.sum())))
            connection.sendall(keys[mine].tobytes() + rows[mine].tobytes())
            receive(connection, memoryview(bytearray(HEAD.size)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shards", type=count, default=4, help="shards [default: 4]")
    parser.add_argument("--batch", default="4096", help="keys per batch, a list [default: 4096]")
    parser.add_argument("--rows", type=count, help="rows [default: 200k; with --quick 2000]")
    parser.add_argument("--dim", type=count, default=64, help="floats of a row [default: 64]")
    parser.add_argument("--rounds", type=count, help="rounds [default: 9; with --quick 2]")
    parser.add_argument(
        "--duration-ms",
        type=count,
        help="how long a case is timed in a round [default: 500; with --quick 1]",
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: shows that everything runs, not how fast"
    )
    parser.add_argument(
        "--json", action="store_true", help="prints one JSON object per line instead of a table"
    )
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    rows = arguments.rows or (2000 if arguments.quick else 200_000)
    if arguments.serve:
        serve_bare_table(arguments.serve, rows, arguments.dim)
        return
    batches = [count(text) for text in arguments.batch.split(",")]
    if max(batches) > rows:
        parser.error(f"a batch has at most {rows} keys, as many as there are rows")
    rounds = arguments.rounds or (2 if arguments.quick else 9)
    seconds = (arguments.duration_ms or (1 if arguments.quick else 500)) / 1000

    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    # Ray starts its workers with niceness 15. Beside other load they would not be comparable.
    os.environ.setdefault("RAY_worker_niceness", "0")
    import ray
    from forerun.ray import ShardedTable

    data, progress, lines = Rows(rows, arguments.dim), Progress(), []
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ray.init(
            num_cpus=4,
            object_store_memory=200 << 20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
        stack.callback(ray.shutdown)
        sharded = ShardedTable(
            arguments.dim, name="bench", path=directory, shards=arguments.shards, host_capacity=rows
        )
        stack.callback(sharded.shutdown)
        actors = stack.enter_context(ShardedTable.attach("bench", transport="actor"))
        sockets = stack.enter_context(
            bare_tables(arguments.shards, rows, arguments.dim, directory)
        )
        redis = None
        try:
            if shutil.which("redis-server") is None:
                raise ImportError("redis-server is not installed")
            redis = stack.enter_context(redis_server(directory))
        except ImportError as error:
            print(f"redis is skipped: {error}", file=sys.stderr)
        progress("loading")
        load_sockets(sockets, data)
        for keys, part in data.parts():
            sharded.insert(keys, part)
            if redis is not None:
                redis.mset({key.tobytes(): row.tobytes() for key, row in zip(keys, part)})
        for batch in batches:
            cases = [
                table_case("sharded", sharded, data, batch),
                sockets_case(sockets, data, batch),
                table_case("actors", actors, data, batch),
            ]
            if redis is not None:
                cases.append(redis_case(redis, data, batch))
            measure(cases, rounds, seconds, progress)
            for case in cases:
                line = {
                    "bench": "ray-table",
                    "engine": case.name,
                    "shards": arguments.shards,
                    "rows": rows,
                    "dim": arguments.dim,
                    "batch": batch,
                    "rounds": rounds,
                    "us_per_batch": 1e6 / case.rate,
                    "keys_per_second": case.rate * batch,
                    "sharded_beside_it": ratio(cases[0], case),
                }
                lines.append(line)
                if arguments.json:
                    print(json.dumps(line), flush=True)
    if not arguments.json:
        print(
            f"{rows:,} rows of {arguments.dim} floats, {arguments.shards} shards, "
            f"medians of {rounds} rounds"
        )
        print_table(
            ["batch", "engine", "us/batch", "keys/s", "rate of sharded beside it"],
            [
                [
                    str(line["batch"]),
                    line["engine"],
                    f"{line['us_per_batch']:.1f}",
                    short(line["keys_per_second"]),
                    f"{line['sharded_beside_it']:.2f}x",
                ]
                for line in lines
            ],
        )


if __name__ == "__main__":
    main()
