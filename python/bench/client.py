"""Batches over several memcached servers: `forerun.Client.multi_get` compared with pymemcache.

Starts servers on this machine, stores the same items in all of them through the same ring, and asks
for the same batches in alternating rounds, from one thread. Each client's time is also compared
with its own time for the first number of servers.

    forerun           a list of values
    forerun-rows      the values straight into the rows of an array: multi_get(keys, out=, found=)
    forerun-asyncio   forerun.aio.Client in the event loop of asyncio, one call after the other
    pymemcache        HashClient.multi_get, a dict of values; it asks one server after the other

    pip install pymemcache
    python python/bench/client.py                                # 1 and 4 servers, 100 keys a batch
    python python/bench/client.py --program forerun --servers 4 --batch 1,10,100,1000 --json
"""

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import forerun
import numpy as np
from forerun import aio
from rounds import Case, Progress, count, measure, print_table, ratio, short

IN_TURN = 64  # batches between two readings of the clock
PATIENCE_S = 20

PROGRAMS = {
    "memcached": ["memcached", "-u", "nobody", "-l", "127.0.0.1", "-U", "0", "-t", "1", "-p"],
    "forerun": [os.environ.get("FORERUN_COMMAND", "forerun"), "serve", "--threads", "1", "--port"],
}


@contextlib.contextmanager
def started(program: str, number: int) -> Iterator[list[str]]:
    """The addresses of servers, which end with the block."""
    processes, ports = [], []
    try:
        for _ in range(number):
            with socket.create_server(("127.0.0.1", 0)) as listener:
                ports.append(listener.getsockname()[1])
            command = [*PROGRAMS[program], str(ports[-1])]
            quiet = subprocess.DEVNULL
            processes.append(subprocess.Popen(command, stdout=quiet, stderr=quiet))
        for process, port in zip(processes, ports):
            wait_for(process, port)
        yield [f"127.0.0.1:{port}" for port in ports]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(PATIENCE_S)


def wait_for(process: subprocess.Popen, port: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.01)
    raise SystemExit(f"{process.args[0]} does not start")


def lookups(
    engine: str, addresses: list[str], batch: int, value_bytes: int
) -> Callable[[list[list[str]]], Any]:
    """The engine's lookup of batches, one after the other. It returns the last answer."""
    if engine == "forerun-asyncio":
        loop = asyncio.new_event_loop()
        # It belongs to the loop that its first call runs in.
        peer = aio.Client(addresses)

        async def await_all(batches: list[list[str]]) -> Any:
            answer = None
            for keys in batches:
                answer = await peer.multi_get(keys)
            return answer

        return lambda batches: loop.run_until_complete(await_all(batches))
    look_up = lookup(engine, addresses, batch, value_bytes)

    def look_up_all(batches: list[list[str]]) -> Any:
        answer = None
        for keys in batches:
            answer = look_up(keys)
        return answer

    return look_up_all


def lookup(engine: str, addresses: list[str], batch: int, value_bytes: int) -> Callable[..., Any]:
    """The engine's call that looks up a batch."""
    if engine == "pymemcache":
        hash_client = importlib.import_module("pymemcache.client.hash").HashClient
        pairs = [address.split(":") for address in addresses]
        peer = hash_client([(host, int(port)) for host, port in pairs], no_delay=True)
        return peer.multi_get
    client = forerun.Client(addresses)
    if engine == "forerun":
        return client.multi_get
    out = np.empty((batch, value_bytes), np.uint8)
    found = np.empty(batch, bool)
    return lambda keys: client.multi_get(keys, out=out, found=found)


def load(engine: str, addresses: list[str], keys: list[str], value: bytes) -> None:
    """Stores the items where the engine's own ring places them."""
    if engine == "pymemcache":
        hash_client = importlib.import_module("pymemcache.client.hash").HashClient
        pairs = [address.split(":") for address in addresses]
        peer = hash_client([(host, int(port)) for host, port in pairs], no_delay=True)
        missing = peer.set_many(dict.fromkeys(keys, value), noreply=False)
        if missing:
            raise SystemExit(f"pymemcache could not store {len(missing)} items")
        peer.close()
    else:
        with forerun.Client(addresses) as client:
            client.set_many(keys, [value] * len(keys))


def check(engine: str, answer: Any, keys: list[str], value: bytes) -> None:
    """Ends the program if an answer lacks a value."""
    if engine == "pymemcache":
        right = answer == dict.fromkeys(keys, value)
    else:
        is_array = engine == "forerun-rows"
        right = bool(answer.all()) if is_array else answer == [value] * len(keys)
    if not right:
        raise SystemExit(f"{engine} did not find all {len(keys)} keys")


def case_of(engine: str, addresses: list[str], keys: list[str], batch: int, value: bytes) -> Case:
    look_up_all = lookups(engine, addresses, batch, len(value))
    rng = np.random.default_rng(5)
    batches = [
        [keys[position] for position in rng.choice(len(keys), batch, replace=False)]
        for _ in range(IN_TURN)
    ]
    check(engine, look_up_all(batches[:1]), batches[0], value)

    def turn(seconds: float) -> float:
        begin, done = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            look_up_all(batches)
            done += len(batches)
        return done / (time.perf_counter() - begin)

    return Case(engine, turn)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--program", choices=list(PROGRAMS), help="the servers [default: the first installed]"
    )
    parser.add_argument("--servers", default="1,4", help="numbers of servers, a list")
    parser.add_argument("--batch", default="100", help="keys per batch, a list")
    parser.add_argument("--items", type=count, help="items [default: 100k; with --quick 2000]")
    parser.add_argument("--value-bytes", type=count, default=64, help="bytes of a value")
    parser.add_argument("--rounds", type=count, help="rounds [default: 7; with --quick 2]")
    parser.add_argument(
        "--duration-ms",
        type=count,
        help="how long a case is timed in a round [default: 300; with --quick 1]",
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: shows that everything runs, not how fast"
    )
    parser.add_argument(
        "--json", action="store_true", help="prints one JSON object per line instead of a table"
    )
    arguments = parser.parse_args()
    installed = [name for name in PROGRAMS if shutil.which(PROGRAMS[name][0])]
    program = arguments.program or next(iter(installed), None)
    if program not in installed:
        parser.error(f"{program or 'memcached and forerun'}: not installed")
    items = arguments.items or (2000 if arguments.quick else 100_000)
    rounds = arguments.rounds or (2 if arguments.quick else 7)
    seconds = (arguments.duration_ms or (1 if arguments.quick else 300)) / 1000
    engines = ["forerun", "forerun-rows", "forerun-asyncio"]
    try:
        importlib.import_module("pymemcache")
        engines.append("pymemcache")
    except ImportError as error:
        print(f"pymemcache is skipped: {error}", file=sys.stderr)

    keys = [f"key:{number:012}" for number in range(items)]
    value = bytes(ord("a") + number % 26 for number in range(arguments.value_bytes))
    progress, lines = Progress(), []
    numbers = [count(number) for number in arguments.servers.split(",")]
    with contextlib.ExitStack() as stack:
        groups = {number: stack.enter_context(started(program, number)) for number in numbers}
        for number, addresses in groups.items():
            for engine in engines:
                progress(f"{number} servers: items of {engine}")
                load(engine, addresses, keys, value)
        for batch in map(count, arguments.batch.split(",")):
            # Every number of servers has its turn in every round.
            cases = {
                (number, engine): case_of(engine, addresses, keys, batch, value)
                for number, addresses in groups.items()
                for engine in engines
            }
            measure(list(cases.values()), rounds, seconds, progress)
            for (number, engine), case in cases.items():
                line = {
                    "bench": "python-client",
                    "case": program,
                    "engine": engine,
                    "servers": number,
                    "keys": items,
                    "value_bytes": len(value),
                    "batch": batch,
                    "rounds": rounds,
                    "us_per_batch": 1e6 / case.rate,
                    "keys_per_second": case.rate * batch,
                    "beside_last": ratio(case, cases[number, engines[-1]]),
                    "time_beside_first": ratio(cases[numbers[0], engine], case),
                }
                lines.append(line)
                if arguments.json:
                    print(json.dumps(line), flush=True)
    if not arguments.json:
        print(f"{program}, {items:,} items of {len(value)} bytes, medians of {rounds} rounds")
        print_table(
            [
                "servers",
                "batch",
                "client",
                "us/batch",
                "keys/s",
                f"beside {engines[-1]}",
                f"time beside {numbers[0]}",
            ],
            [
                [
                    str(line["servers"]),
                    str(line["batch"]),
                    line["engine"],
                    f"{line['us_per_batch']:.1f}",
                    short(line["keys_per_second"]),
                    f"{line['beside_last']:.2f}x",
                    f"{line['time_beside_first']:.2f}",
                ]
                for line in lines
            ],
        )


if __name__ == "__main__":
    main()
