"""Bags per second of `forerun.torch.EmbeddingBag`: by `Table.find_pooled`, and by a lookup of all
rows that PyTorch adds up, which is what bags that cannot be pooled use.

Both use one table, answer the same bags in alternating rounds, and give the same sums. A step is
the lookup of a batch of bags, and with a gradient also `backward` and the clearing of gradients.
Rates are by the clock and by the CPU time of this process, which other programs on the machine
affect less. PyTorch uses one thread unless `--threads` says otherwise. `torch.nn.EmbeddingBag` over
a dense weight of the same rows, with sparse gradients, is the ceiling.

    python python/bench/embedding_bag.py --json > embedding_bag.json
    python python/bench/embedding_bag.py --dim 128 --bags 64 --grad yes --rounds 31
"""

import argparse
import json
import time
from collections.abc import Callable

import forerun
import numpy as np
import torch
from forerun.torch import EmbeddingBag
from rounds import Case, Progress, count, measure, print_table, ratio, short

ENGINES = ("pooled", "collected", "torch")


class Steps(Case):
    """One engine with one kind of batch."""

    def __init__(
        self,
        name: str,
        module: torch.nn.Module,
        clear: Callable[[], None],
        batches: list[tuple[torch.Tensor, torch.Tensor]],
        with_gradient: bool,
    ) -> None:
        super().__init__(name, self._turn)
        self.module, self.clear = module, clear
        self.batches, self.with_gradient = batches, with_gradient
        self.cpu_rates: list[float] = []
        self.next = 0

    @property
    def by_cpu(self) -> Case:
        return Case(self.name, self.turn, self.cpu_rates)

    def step(self) -> torch.Tensor:
        keys, offsets = self.batches[self.next % len(self.batches)]
        self.next += 1
        if not self.with_gradient:
            with torch.no_grad():
                return self.module(keys, offsets)
        sums = self.module(keys, offsets)
        sums.backward(torch.ones_like(sums))
        self.clear()
        return sums.detach()

    def _turn(self, seconds: float) -> float:
        begin, begin_cpu, done = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - begin < seconds or done == 0:
            self.step()
            done += 1
        bags = done * (len(self.batches[0][1]))
        self.cpu_rates.append(bags / (time.process_time() - begin_cpu))
        return bags / (time.perf_counter() - begin)


def batches_of(
    rng: np.random.Generator, rows: int, bags: int, length: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Bags of about `length` keys each, in their own order."""
    made = []
    for _ in range(8):
        lengths = rng.integers(1, 2 * length, bags)
        offsets = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        keys = rng.integers(0, rows, int(lengths.sum()))
        made.append((torch.from_numpy(keys), torch.from_numpy(offsets)))
    return made


def cases_of(
    table: forerun.Table, weight: torch.Tensor, batches: list, mode: str, with_gradient: bool
) -> list[Steps]:
    pooled, collected = (EmbeddingBag(table, mode=mode) for _ in range(2))
    # Its lookups then collect all rows first.
    collected._can_pool = False
    dense = torch.nn.EmbeddingBag.from_pretrained(weight, freeze=False, mode=mode, sparse=True)
    cases = [
        Steps(name, module, clear, batches, with_gradient)
        for name, module, clear in (
            ("pooled", pooled, pooled.clear_gradients),
            ("collected", collected, collected.clear_gradients),
            ("torch", dense, dense.zero_grad),
        )
    ]
    first = [case.step() for case in cases]
    for name, sums in zip(ENGINES, first):
        if not torch.allclose(sums, first[0], rtol=1e-4, atol=1e-4):
            raise SystemExit(f"{name} gives other sums")
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--rows", type=count, default=200_000, help="rows of the table [default: 200k]")
    add("--dim", default="16,64,128,256,512", help="float32 values per row [default: %(default)s]")
    add("--bags", default="64,256,1024,4096", help="bags per batch [default: %(default)s]")
    add("--length", type=count, default=20, help="keys per bag, on average [default: 20]")
    add("--mode", default="sum,mean", help="[default: %(default)s]")
    add("--grad", default="no,yes", help="whether backward runs, too [default: %(default)s]")
    add("--rounds", type=int, default=11, help="[default: 11]")
    add("--duration-ms", type=int, default=100, help="of a turn [default: 100]")
    add("--threads", type=int, default=1, help="of PyTorch [default: 1]")
    add("--quick", action="store_true", help="tiny sizes: the figures mean nothing")
    add("--json", action="store_true", help="print one JSON object per line")
    args = parser.parse_args()
    if args.quick:
        args.rows, args.dim, args.bags, args.rounds, args.duration_ms = 1000, "16", "64", 2, 1
    torch.set_num_threads(args.threads)
    rng = np.random.default_rng(7)
    progress = Progress()
    headings = ["dim", "bags", "mode", "grad", *ENGINES, "pooled/collected", "by CPU time"]
    lines = []
    for dim in map(int, args.dim.split(",")):
        weight = torch.from_numpy(rng.standard_normal((args.rows, dim), dtype=np.float32))
        table = forerun.Table(dim)
        table.insert(np.arange(args.rows), weight.numpy())
        for bags in map(int, args.bags.split(",")):
            batches = batches_of(rng, args.rows, bags, args.length)
            for mode in args.mode.split(","):
                for grad in args.grad.split(","):
                    cases = cases_of(table, weight, batches, mode, grad == "yes")
                    measure(cases, args.rounds, args.duration_ms / 1000, progress)
                    pooled, collected, _ = cases
                    gain = ratio(pooled, collected)
                    gain_cpu = ratio(pooled.by_cpu, collected.by_cpu)
                    if args.json:
                        for case in cases:
                            row = {
                                "bench": "embedding-bag",
                                "engine": case.name,
                                "dim": dim,
                                "bags": bags,
                                "keys_per_bag": args.length,
                                "mode": mode,
                                "grad": grad == "yes",
                                "rounds": args.rounds,
                                "bags_per_second": case.rate,
                                "bags_per_second_min": min(case.rates),
                                "bags_per_second_max": max(case.rates),
                                "bags_per_cpu_second": case.by_cpu.rate,
                                "ratio_to_collected": ratio(case, collected),
                                "ratio_to_collected_by_cpu": ratio(case.by_cpu, collected.by_cpu),
                            }
                            print(json.dumps(row), flush=True)
                    rates = [short(case.rate) for case in cases]
                    facts = [str(dim), str(bags), mode, grad]
                    lines.append([*facts, *rates, f"{gain:.2f}", f"{gain_cpu:.2f}"])
    if not args.json:
        print_table(headings, lines)


if __name__ == "__main__":
    main()
