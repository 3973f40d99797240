"""Rows per second of a table with part of its rows in memory and of its competitors, from Python.

All contenders have the same rows, answer the same batches in alternating rounds, and may use the
same memory: where Forerun has a budget of rows in memory and a page cache, RocksDB has a block
cache of as many bytes. The arrays (numpy, numpy-take, embedding-bag) hold all rows whatever the
budget, and get positions of rows where the others get keys: they are the ceiling. The operating
system may cache the files of all stores, Forerun's included; LMDB has no other cache. Answers are
compared with the rows outside the timed section.

    pip install lmdb rocksdict torch matplotlib          # any of these that you want to compare with
    python python/bench/table.py --json > table.json
    python python/bench/table.py --rows 1M --access zipf:1,uniform,trace:orm-busy.trace.xz --plot
    table.png python python/bench/table.py --peer lmdb,rocksdb --budget 0.1 --batch 1024
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import forerun
import numpy as np
from accesses import Access, Workload
from contenders import ALL, Contender, Forerun
from rounds import Case, Progress, count, measure, print_table, ratio, short

IN_TURN = 1 << 14  # keys in the batches made before the clock starts
WARMED_TIMES = 6  # lookups before the first round, per row in memory


class Lane(Case):
    """A contender with one batch size."""

    def __init__(self, contender: Contender, batch: int, workload: Workload) -> None:
        super().__init__(f"{contender.name}, batches of {batch}", self._turn)
        self.contender, self.batch, self.workload = contender, batch, workload
        self.happened: dict[str, int] = {}

    def _turn(self, seconds: float) -> float:
        contender, batch = self.contender, self.batch
        contender.size(batch)
        find, before = contender.find, contender.counters()
        spent, done = 0.0, 0
        while spent < seconds:
            taken = self.workload.take(batch, max(1, IN_TURN // batch))
            wanted = [contender.wanted(positions) for positions in taken]
            begin = time.perf_counter()
            for batch_wanted in wanted:
                answer = find(batch_wanted)
            spent += time.perf_counter() - begin
            done += len(wanted) * batch
            if not np.array_equal(np.asarray(answer), contender.rows[taken[-1]]):
                raise SystemExit(f"{contender.name} returned rows of other keys")
        after = contender.counters()
        for name in after:
            self.happened[name] = self.happened.get(name, 0) + after[name] - before[name]
        # Pending moves must not run into the next turn, which belongs to another contender.
        contender.wait_idle()
        return done / spent


class Bench:
    """One access: the rows, the contenders loaded with them, and the measurements."""

    def __init__(
        self, arguments: argparse.Namespace, access: Access, directory: Path, progress: Progress
    ) -> None:
        self.arguments, self.access, self.progress = arguments, access, progress
        progress(f"drawing {access}")
        self.workload = Workload(access, arguments.rows, arguments.drawn)
        self.rows = random_rows(len(self.workload), arguments.dim)
        self.contenders = []
        for kind in arguments.contenders:
            place = directory / kind.name.removesuffix("-multi")
            place.mkdir(exist_ok=True)
            contender = kind(self.rows, self.workload.keys, place)
            contender.load(lambda done, kind=kind: progress(f"loading {kind.name}: {done:,} rows"))
            self.contenders.append(contender)

    def at_budget(self, budget: float) -> list[dict]:
        """Measures all contenders with this share of the rows in memory."""
        budget_rows = max(1, int(len(self.workload) * budget))
        budget_bytes = budget_rows * self.rows[:1].nbytes + Forerun.cache_bytes
        for nth, contender in enumerate(self.contenders):
            contender.open(budget_rows, budget_bytes)
            if isinstance(contender, Forerun):
                # The memory of these rows, including their index, is the other contenders' budget
                # too.
                budget_bytes = contender.counters()["host_bytes"] + Forerun.cache_bytes
            if contender.on_disk:
                self.warm(contender, budget_rows)
        lanes = [
            Lane(contender, batch, self.workload)
            for batch in self.arguments.batches
            for contender in self.contenders
        ]
        measure(lanes, self.arguments.rounds, self.arguments.seconds, self.progress)
        lines = [self.line(lane, budget, budget_bytes, lanes) for lane in lanes]
        for contender in self.contenders:
            contender.close()
        return lines

    def warm(self, contender: Contender, budget_rows: int) -> None:
        """Uses the contender until its memory holds what the access uses, for a minute at most."""
        batch, begin = 1024, time.monotonic()
        contender.size(batch)
        for done in range(0, WARMED_TIMES * budget_rows, batch):
            self.progress(f"warming {contender.name}: {done:,} rows")
            contender.find(contender.wanted(self.workload.take(batch, 1)[0]))
            if time.monotonic() - begin > self.arguments.warm_seconds:
                break
        contender.wait_idle()

    def line(self, lane: Lane, budget: float, budget_bytes: int, lanes: list[Lane]) -> dict:
        """One result, with the names that `forerun-bench table --json` uses."""
        happened, row_bytes = lane.happened, self.rows[:1].nbytes
        keys = happened.get("find_keys", 0)
        ours = next(other for other in lanes if other.batch == lane.batch)
        holds_all = not lane.contender.on_disk
        shares = {
            f"{tier}_hit_rate": happened[f"{tier}_hits"] / max(keys, 1)
            for tier in ("device", "host", "store")
            if f"{tier}_hits" in happened
        }
        return {
            "bench": "table-peers",
            "case": str(self.access),
            "engine": lane.contender.name,
            "keys": len(self.workload),
            "value_bytes": row_bytes,
            "batch": lane.batch,
            "threads": 1,
            "budget": 1.0 if holds_all else budget,
            "beside_budget": budget,
            "budget_bytes": None if holds_all else budget_bytes,
            "rounds": len(lane.rates),
            "keys_per_second": lane.rate,
            "keys_per_second_min": min(lane.rates),
            "keys_per_second_max": max(lane.rates),
            "ns_per_key": 1e9 / lane.rate,
            "forerun_over_this": ratio(ours, lane),
            "moved_per_found": happened["moved_bytes"] / max(keys * row_bytes, 1) if keys else None,
            **shares,
        }


def random_rows(count: int, dim: int) -> np.ndarray:
    rng, rows = np.random.default_rng(1), np.empty((count, dim), np.float32)
    for start in range(0, count, 1 << 16):
        rng.random(out=rows[start : start + (1 << 16)], dtype=np.float32)
    return rows


def show(lines: list[dict]) -> None:
    """Prints a table of the results for one access and budget."""
    first = lines[0]
    print(
        f"\n{first['case']}: {first['keys']:,} rows of {first['value_bytes']} bytes, "
        f"{first['beside_budget']:.0%} in memory\n"
    )
    print_table(
        [
            "engine",
            "batch",
            "rows/s",
            "slowest - fastest",
            "ns per row",
            "forerun is",
            "from memory",
            "moved",
        ],
        [
            [
                line["engine"],
                str(line["batch"]),
                short(line["keys_per_second"]),
                f"{short(line['keys_per_second_min'])} - {short(line['keys_per_second_max'])}",
                f"{line['ns_per_key']:,.0f}"
                if line["ns_per_key"] >= 100
                else f"{line['ns_per_key']:.3g}",
                "-" if line["engine"] == "forerun" else f"{line['forerun_over_this']:.2f} x",
                f"{1 - line['store_hit_rate']:.1%}" if "store_hit_rate" in line else "-",
                "-" if line["moved_per_found"] is None else f"{line['moved_per_found']:.1%}",
            ]
            for line in lines
        ],
    )


def draw(lines: list[dict], path: Path) -> None:
    """Draws one panel per access and budget: rows per second by batch size, one line per engine,
    dotted for arrays."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    cases = list(dict.fromkeys(line["case"] for line in lines))
    budgets = list(dict.fromkeys(line["beside_budget"] for line in lines))
    # By name, whatever was measured: an engine has the same colour in all panels and plots.
    colours = {kind.name: f"C{number}" for number, kind in enumerate(ALL)}
    figure, panels = plt.subplots(
        len(cases),
        len(budgets),
        figsize=(4 * len(budgets), 3.2 * len(cases)),
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    for row, case in zip(panels, cases):
        for panel, budget in zip(row, budgets):
            of_panel = [
                line for line in lines if (line["case"], line["beside_budget"]) == (case, budget)
            ]
            for engine in dict.fromkeys(line["engine"] for line in of_panel):
                of_engine = [line for line in of_panel if line["engine"] == engine]
                rates = [line["keys_per_second"] for line in of_engine]
                low = [line["keys_per_second"] - line["keys_per_second_min"] for line in of_engine]
                high = [line["keys_per_second_max"] - line["keys_per_second"] for line in of_engine]
                style = {"linewidth": 2.5 if engine == "forerun" else 1.2, "capsize": 2}
                style["color"] = colours[engine]
                style["linestyle"] = (
                    "-" if of_engine[0]["budget_bytes"] else ":"
                )  # all rows in an array
                panel.errorbar(
                    [line["batch"] for line in of_engine], rates, [low, high], label=engine, **style
                )
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            batches = sorted({line["batch"] for line in lines})
            panel.set_xticks(batches, [str(batch) for batch in batches])
            panel.minorticks_off()
            panel.set_title(f"{case}, {budget:.0%} in memory", fontsize=9)
            panel.grid(alpha=0.3)
    for panel in panels[-1]:
        panel.set_xlabel("keys in a batch")
    for row in panels:
        row[0].set_ylabel("rows per second")
    handles, engines = panels[0][0].get_legend_handles_labels()
    figure.tight_layout(rect=(0, 0, 1, 0.9 if len(cases) == 1 else 0.95))
    figure.legend(
        handles, engines, loc="upper center", ncols=len(engines), fontsize=7, frameon=False
    )
    figure.savefig(path, dpi=120)


def arguments_of_command_line() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = {kind.name: kind for kind in ALL}
    parser.add_argument(
        "--rows",
        type=count,
        help="rows in the table, except for traces [default: 10M; with --quick 3000]",
    )
    parser.add_argument(
        "--dim", type=count, default=64, help="float32 elements per row [default: 64]"
    )
    parser.add_argument(
        "--access",
        default="zipf:1,uniform",
        help="a list of uniform, zipf:1, trace:FILE [default: zipf:1,uniform]",
    )
    parser.add_argument(
        "--budget",
        default="0.1,0.5,1",
        help="shares of the rows that memory may hold, a list [default: 0.1,0.5,1]",
    )
    parser.add_argument(
        "--batch",
        default="64,256,1024,4096",
        help="keys per batch, a list [default: 64,256,1024,4096]",
    )
    parser.add_argument(
        "--peer", help=f"a list of {', '.join(list(names)[1:])} [default: all that are installed]"
    )
    parser.add_argument(
        "--rounds", type=count, help="rounds; a result is their median [default: 5; with --quick 2]"
    )
    parser.add_argument(
        "--duration-ms",
        type=count,
        help="how long a case is timed in a round [default: 200; with --quick 1]",
    )
    parser.add_argument(
        "--dir",
        type=Path,
        help="directory for the stores [default: the system's directory for temporary files]",
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: shows that everything runs, not how fast"
    )
    parser.add_argument(
        "--json", action="store_true", help="prints one JSON object per line instead of tables"
    )
    parser.add_argument(
        "--plot", type=Path, help="also draws a plot, in the format of the file name"
    )
    arguments = parser.parse_args()
    quick = arguments.quick
    try:
        arguments.accesses = [Access.parse(text) for text in arguments.access.split(",")]
        arguments.budgets = [float(text) for text in arguments.budget.split(",")]
        arguments.batches = [count(text) for text in arguments.batch.split(",")]
    except ValueError as error:
        parser.error(str(error))
    if not all(0 < budget <= 1 for budget in arguments.budgets):
        parser.error("a budget must be above 0 and at most 1")
    chosen = list(names) if arguments.peer is None else ["forerun", *arguments.peer.split(",")]
    if unknown := [name for name in chosen if name not in names]:
        parser.error(
            f"there is no peer {', '.join(unknown)}: the peers are {', '.join(list(names)[1:])}"
        )
    arguments.contenders = []
    for kind in (names[name] for name in chosen):
        if missing := kind.missing():
            print(missing, file=sys.stderr)
        else:
            arguments.contenders.append(kind)
    arguments.rows = arguments.rows or (3000 if quick else 10_000_000)
    arguments.rounds = arguments.rounds or (2 if quick else 5)
    arguments.seconds = (arguments.duration_ms or (1 if quick else 200)) / 1000
    arguments.drawn = 1 << 16 if quick else 1 << 22
    arguments.warm_seconds = 1 if quick else 60
    return arguments


def main() -> None:
    arguments = arguments_of_command_line()
    progress, lines = Progress(), []
    if not arguments.json:
        print(
            f"forerun {forerun.__version__}, Python {sys.version.split()[0]}, NumPy "
            f"{np.__version__}, {forerun.device_info()['isa']}"
        )
    for access in arguments.accesses:
        with tempfile.TemporaryDirectory(prefix="forerun-bench-", dir=arguments.dir) as directory:
            bench = Bench(arguments, access, Path(directory), progress)
            for budget in arguments.budgets:
                measured = bench.at_budget(budget)
                lines += measured
                if arguments.json:
                    for line in measured:
                        print(json.dumps(line), flush=True)
                else:
                    show(measured)
    if arguments.plot:
        draw(lines, arguments.plot)
        print(f"plot: {arguments.plot}", file=sys.stderr)


if __name__ == "__main__":
    main()
