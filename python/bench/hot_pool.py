"""Positions per second of `forerun.HotPool` on the CPU, beside NumPy.

A step resolves the top-k positions of one request, as sparse attention reads them for each layer
and token: most are those of the step before. Missing rows are copied from the host's pool. All
engines have the same positions in alternating rounds, and fetch the same rows. `loop` takes one
position after the other; `vectors` works on whole arrays, and only if no position repeats.

    python python/bench/hot_pool.py --json > hot_pool.json
    python python/bench/hot_pool.py --top-k 512,2048 --new 0.01,0.1 --rounds 21
"""

import argparse
import json
import time

import forerun
import numpy as np
from hot_pool_reference import NumpyHotPool, VectorHotPool
from rounds import Case, Progress, count, measure, print_table, ratio, short


class Steps(Case):
    """One engine: `resolve(positions)` is a step."""

    def __init__(self, name: str, resolve, steps: list) -> None:
        super().__init__(name, self._turn)
        self.resolve, self.steps, self.next = resolve, steps, 0

    def step(self):
        positions = self.steps[self.next % len(self.steps)]
        self.next += 1
        return self.resolve(positions)

    def _turn(self, seconds: float) -> float:
        begin, done = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds or done == 0:
            self.step()
            done += 1
        return done * len(self.steps[0]) / (time.perf_counter() - begin)


def steps_of(rng: np.random.Generator, context: int, top_k: int, new: float) -> list:
    """Distinct positions, of which a share is replaced in each step."""
    positions = rng.permutation(context)[:top_k].astype(np.int32)
    steps = []
    for _ in range(64):
        positions = positions.copy()
        replaced = rng.permutation(top_k)[: max(1, int(top_k * new))]
        others = np.setdiff1d(np.arange(context, dtype=np.int32), positions)
        positions[replaced] = rng.permutation(others)[: len(replaced)]
        steps.append(positions)
    return steps


def cases_of(steps: list, context: int, top_k: int, row_bytes: int, rng) -> list[Steps]:
    slots = top_k * 2
    host = rng.integers(0, 256, (1, context, row_bytes), dtype=np.uint8)
    host_rows = rng.permutation(context).astype(np.int64)
    cases = []
    for name, eviction in (("lru", "lru"), ("clock", "clock")):
        rows = np.zeros((1, slots, row_bytes), np.uint8)
        pool = forerun.HotPool(
            host,
            rows,
            slots=slots,
            positions=context,
            count=top_k,
            eviction=eviction,
            host_rows=host_rows[None],
        )
        out = np.empty(top_k, np.int32)
        cases.append(
            Steps(name, lambda p, pool=pool, out=out: pool.resolve(0, p, out=out), steps)
        )
    for name, engine in (("loop", NumpyHotPool(slots)), ("vectors", VectorHotPool(slots))):
        rows = np.zeros((slots, row_bytes), np.uint8)

        def resolve(positions, engine=engine, rows=rows):
            return engine.resolve(positions, host_rows, host[0], rows)

        cases.append(Steps(name, resolve, steps))
    for _ in range(3):
        lru, _, loop, vectors = [np.array(case.step()) for case in cases]
        if not (lru == loop).all() or not (lru == vectors).all():
            raise SystemExit("the engines give different answers")
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--top-k", default="2048", help="positions per step [default: %(default)s]")
    add("--context", type=count, default=32_768, help="positions of the request [default: 32768]")
    add("--row-bytes", type=count, default=656, help="[default: 656]")
    add("--new", default="0.01,0.1,0.5", help="share of new positions [default: %(default)s]")
    add("--rounds", type=int, default=11, help="[default: 11]")
    add("--duration-ms", type=int, default=100, help="of a turn [default: 100]")
    add("--quick", action="store_true", help="tiny sizes: the figures mean nothing")
    add("--json", action="store_true", help="print one JSON object per line")
    args = parser.parse_args()
    if args.quick:
        args.top_k, args.context, args.rounds, args.duration_ms = "32", 256, 2, 5
    progress, lines = Progress(), []
    for top_k in (int(number) for number in args.top_k.split(",")):
        for new in (float(number) for number in args.new.split(",")):
            rng = np.random.default_rng(7)
            steps = steps_of(rng, args.context, top_k, new)
            cases = cases_of(steps, args.context, top_k, args.row_bytes, rng)
            measure(cases, args.rounds, args.duration_ms / 1000, progress)
            loop, vectors = cases[2], cases[3]
            for case in cases:
                line = {
                    "engine": case.name,
                    "top_k": top_k,
                    "new": new,
                    "row_bytes": args.row_bytes,
                    "positions_per_second": case.rate,
                    "us_per_step": top_k / case.rate * 1e6,
                    "ratio_to_loop": ratio(case, loop),
                    "ratio_to_vectors": ratio(case, vectors),
                }
                lines.append(line)
                if args.json:
                    print(json.dumps(line), flush=True)
    if not args.json:
        print_table(
            ["engine", "top-k", "new", "positions/s", "us/step", "x loop", "x vectors"],
            [
                [
                    line["engine"],
                    str(line["top_k"]),
                    str(line["new"]),
                    short(line["positions_per_second"]),
                    f"{line['us_per_step']:.1f}",
                    f"{line['ratio_to_loop']:.1f}",
                    f"{line['ratio_to_vectors']:.2f}",
                ]
                for line in lines
            ],
        )


if __name__ == "__main__":
    main()
