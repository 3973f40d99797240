"""Times `forerun.RowCopy`: rows of 656 bytes from pinned memory to a GPU, by pairs on that GPU.

The options and the lines of output are those of the published script of the operator that copies
the KV cache's tokens of one layer (2026-02-02), so that both results can be put side by side. Its
`GB/s` are GiB/s. It draws the sources with replacement and checks one byte; here every row is
checked, after the destination was filled with other bytes, and so is the slot map.

    python python/bench/fast_h2d.py                           # 128 requests of 2,048 rows
    python python/bench/fast_h2d.py --version v5-r2 --max-multiprocessors 32
    python python/bench/fast_h2d.py --version v4              # of a build with `--features study`
    ncu python python/bench/fast_h2d.py --ncu                  # one launch

It needs a GPU and PyTorch.
"""

from __future__ import annotations

import argparse
import sys

import forerun

BYTES_PER_TOKEN = 656


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    number = {"type": int}
    parser.add_argument("--bs", default=128, help="batch size", **number)
    parser.add_argument("--topk", default=2048, help="rows copied per request", **number)
    parser.add_argument("--total-cpu-slots", default=300_000, help="rows of host memory", **number)
    parser.add_argument("--total-gpu-slots", default=300_000, help="rows of the GPU", **number)
    parser.add_argument("--iters", default=10, help="launches that are timed", **number)
    parser.add_argument("--warmup", default=2, help="launches before them", **number)
    parser.add_argument("--ncu", action="store_true", help="one launch, for Nsight Compute")
    parser.add_argument("--max-multiprocessors", default=16, help="blocks of the launch", **number)
    parser.add_argument("--version", help="of the kernel, by default the one that the plan chooses")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    reason = forerun.device_info()["no_gpu_because"]
    if reason:
        sys.exit(f"fast_h2d.py needs a GPU: {reason}")
    try:
        import torch
    except ModuleNotFoundError as missing:
        sys.exit(f"fast_h2d.py needs PyTorch ({missing}): pip install torch")
    if not torch.cuda.is_available():
        sys.exit("fast_h2d.py needs a GPU, and this PyTorch finds none")

    copies = options.bs * options.topk
    print("Benchmarking fast_intra_layer_h2d with:")
    print(f"  BS: {options.bs}")
    print(f"  TopK: {options.topk}")
    print(f"  Total Copies: {copies}")
    print(f"  Data Size: {copies * BYTES_PER_TOKEN / 1024 / 1024:.2f} MB")
    cpu_slots = max(options.total_cpu_slots, copies)
    gpu_slots = max(options.total_gpu_slots, copies)
    shape = (cpu_slots, 1, BYTES_PER_TOKEN)
    kv_cpu = torch.randint(0, 255, shape, dtype=torch.uint8).pin_memory()
    # No source has this byte.
    poison = torch.full((gpu_slots, 1, BYTES_PER_TOKEN), 255, dtype=torch.uint8, device="cuda")
    sparse_gpu = poison.clone()
    cpu_slot_to_gpu_slot = torch.full((cpu_slots,), -1, dtype=torch.int32, device="cuda")
    sources = torch.randint(
        0, cpu_slots, (options.bs, options.topk), dtype=torch.int32, device="cuda"
    )
    places = torch.arange(copies, dtype=torch.int32, device="cuda").reshape(sources.shape)
    evict_ids = torch.stack([sources, places], dim=-1)
    out_of_range = torch.zeros(1, dtype=torch.int64, device="cuda")
    op = forerun.RowCopy(options.max_multiprocessors, options.version)

    def copy() -> None:
        op(kv_cpu, sparse_gpu, cpu_slot_to_gpu_slot, evict_ids, out_of_range=out_of_range)

    if options.ncu:
        print("Running in NCU mode (1 iteration)...")
        torch.cuda.synchronize()
        copy()
        torch.cuda.synchronize()
        print("Done.")
        return
    print(f"Warming up for {options.warmup} iterations...")
    for _ in range(options.warmup):
        copy()
    sparse_gpu.copy_(poison)
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    print(f"Benchmarking for {options.iters} iterations...")
    start.record()
    for _ in range(options.iters):
        copy()
    end.record()
    torch.cuda.synchronize()
    average_ms = start.elapsed_time(end) / max(options.iters, 1)
    gib = copies * BYTES_PER_TOKEN / 2**30
    rate = gib / (average_ms / 1000) if average_ms > 0 else 0.0
    print("-" * 40)
    print("Results:")
    print(f"  Avg Latency: {average_ms:.4f} ms")
    print(f"  Throughput:  {rate:.2f} GB/s")
    print("-" * 40)

    flat = sources.flatten().long()
    rows_are_right = torch.equal(sparse_gpu[:copies].cpu(), kv_cpu[flat.cpu()])
    rest_is_untouched = bool((sparse_gpu[copies:] == 255).all())
    # A source that was drawn several times has one of its places in the map.
    placed = cpu_slot_to_gpu_slot[flat].long()
    map_is_right = bool((placed >= 0).all()) and torch.equal(flat[placed], flat)
    source, place = int(flat[0]), int(places[0, 0])
    if rows_are_right and rest_is_untouched and map_is_right and out_of_range.item() == 0:
        value = int(kv_cpu[source, 0, 0])
        print(f"Sanity Check Passed: src[{source}] == dst[{place}] == {value}")
        return
    print(
        f"Sanity Check FAILED: rows {rows_are_right}, rest {rest_is_untouched}, "
        f"map {map_is_right}, {out_of_range.item()} indices out of range"
    )
    sys.exit(1)


if __name__ == "__main__":
    main()
