"""What Python adds to a lookup: `table.find(keys, out, found)` compared with the engine's own call.

Both run in one process and look up the same batches in the same table, whose rows are all in
memory, into the same memory, in alternating rounds. The engine's calls run in a loop inside the
extension, Python's in a Python loop. The difference is the price of the call.

    python python/bench/overhead.py                      # 10 M rows of 64 float32, batches of 256
    python python/bench/overhead.py --batch 1,64,256,1024 --json
"""

import argparse
import json
import sys
import time

import forerun
import numpy as np
from accesses import Access, Workload
from forerun._forerun import _find_seconds
from rounds import Case, Progress, count, measure, print_table, ratio, short

IN_TURN = 1 << 14  # keys in the batches made before the clock starts


def cases_of(table: forerun.Table, workload: Workload, batch: int, dim: int) -> list[Case]:
    """The engine's call, and Python's with all memory given, with only `out`, and with none."""
    out, found = np.empty((batch, dim), np.float32), np.empty(batch, bool)

    def engine(batches):
        return _find_seconds(table, batches, out, found)

    def into_out_and_found(batches):
        begin = time.perf_counter()
        for keys in batches:
            table.find(keys, out, found)
        return time.perf_counter() - begin

    def into_out(batches):
        begin = time.perf_counter()
        for keys in batches:
            table.find(keys, out=out)
        return time.perf_counter() - begin

    def with_nothing(batches):
        begin = time.perf_counter()
        for keys in batches:
            table.find(keys)
        return time.perf_counter() - begin

    def turn_of(find):
        def turn(seconds: float) -> float:
            spent, done = 0.0, 0
            while spent < seconds:
                taken = workload.take(batch, max(1, IN_TURN // batch))
                batches = [workload.keys[positions] for positions in taken]
                spent += find(batches)
                done += len(batches)
            return done / spent

        return turn

    named = {
        "engine": engine,
        "out and found": into_out_and_found,
        "out": into_out,
        "nothing given": with_nothing,
    }
    return [Case(name, turn_of(find)) for name, find in named.items()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows", type=count, help="rows in the table [default: 10M; with --quick 3000]"
    )
    parser.add_argument("--dim", type=count, default=64, help="float32 elements per row")
    parser.add_argument(
        "--access",
        type=Access.parse,
        default=Access("uniform"),
        help="uniform, zipf:1 or trace:FILE",
    )
    parser.add_argument("--batch", default="256", help="keys per batch, a list")
    parser.add_argument("--rounds", type=count, help="rounds [default: 7; with --quick 2]")
    parser.add_argument(
        "--duration-ms",
        type=count,
        help="how long a case is timed in a round [default: 200; with --quick 1]",
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: shows that everything runs, not how fast"
    )
    parser.add_argument(
        "--json", action="store_true", help="prints one JSON object per line instead of a table"
    )
    arguments = parser.parse_args()
    rows = arguments.rows or (3000 if arguments.quick else 10_000_000)
    rounds = arguments.rounds or (2 if arguments.quick else 7)
    seconds = (arguments.duration_ms or (1 if arguments.quick else 200)) / 1000

    progress = Progress()
    progress("drawing the accesses")
    workload = Workload(arguments.access, rows, drawn=1 << 16 if arguments.quick else 1 << 22)
    table = forerun.Table(arguments.dim, host_capacity=len(workload))
    rng = np.random.default_rng(1)
    for start in range(0, len(workload), 1 << 14):
        keys = workload.keys[start : start + (1 << 14)]
        table.insert(keys, rng.random((len(keys), arguments.dim), dtype=np.float32))
        progress(f"rows: {start:,} of {len(workload):,}")

    lines = []
    for batch in map(count, arguments.batch.split(",")):
        cases = cases_of(table, workload, batch, arguments.dim)
        measure(cases, rounds, seconds, progress)
        for case in cases:
            line = {
                "bench": "table-overhead",
                "case": str(arguments.access),
                "engine": "forerun",
                "strategy": case.name,
                "keys": len(workload),
                "value_bytes": 4 * arguments.dim,
                "batch": batch,
                "rounds": rounds,
                "ns_per_call": 1e9 / case.rate,
                "keys_per_second": case.rate * batch,
                "overhead_share": ratio(cases[0], case) - 1,
            }
            lines.append(line)
            if arguments.json:
                print(json.dumps(line), flush=True)
    if not arguments.json:
        print(
            f"forerun {forerun.__version__}, Python {sys.version.split()[0]}, NumPy "
            f"{np.__version__}, {forerun.device_info()['isa']}"
        )
        print(
            f"{len(workload):,} rows of {4 * arguments.dim} bytes, all in memory; "
            f"{arguments.access}; medians of {rounds} rounds\n"
        )
        print_table(
            ["call", "batch", "ns per call", "rows/s", "more than the engine's"],
            [
                [
                    line["strategy"],
                    str(line["batch"]),
                    f"{line['ns_per_call']:,.0f}",
                    short(line["keys_per_second"]),
                    f"{line['overhead_share']:.1%}" if line["strategy"] != "engine" else "-",
                ]
                for line in lines
            ],
        )


if __name__ == "__main__":
    main()
