# PyTorch's methods to copy scattered rows of pinned memory to the GPU and back, timed like those of
# `forerun-bench gather`: medians of alternating rounds, with every byte compared. Prints one JSON
# object per line.
#
#   python3 pytorch.py REQUESTS ROWS SLOTS ROW_BYTES ROUNDS
#
# Needs torch with CUDA; without it, prints one line of JSON that says so.
import json
import statistics
import sys
import time


def main():
    requests, rows, slots, row_bytes, rounds = map(int, sys.argv[1:6])
    try:
        import torch
    except ImportError:
        print(json.dumps({"absent": "python3 has no torch"}))
        return
    if not torch.cuda.is_available():
        print(json.dumps({"absent": "torch %s finds no CUDA device" % torch.__version__}))
        return

    pairs = requests * rows
    generator = torch.Generator().manual_seed(1)
    host = torch.randint(
        0, 256, (slots, row_bytes), dtype=torch.uint8, generator=generator
    ).pin_memory()
    back = torch.empty_like(host).pin_memory()
    device = torch.zeros((slots, row_bytes), dtype=torch.uint8, device="cuda")
    staging = torch.empty((pairs, row_bytes), dtype=torch.uint8).pin_memory()
    index = torch.randperm(slots, generator=generator)[:pairs]

    def index_select_then_copy():
        torch.index_select(host, 0, index, out=staging)
        device[:pairs].copy_(staging, non_blocking=True)

    def index_then_to():
        device[:pairs] = host[index].to("cuda")

    def copy_then_index_put():
        staging.copy_(device[:pairs], non_blocking=True)
        torch.cuda.synchronize()
        back[index] = staging

    def check_gather():
        return bool((device[:pairs].cpu() == host[index]).all())

    def check_scatter():
        return bool((back[index] == device[:pairs].cpu()).all())

    methods = [
        ("gather", "pytorch: index_select, copy_", index_select_then_copy, check_gather),
        ("gather", "pytorch: host[index].to(device)", index_then_to, check_gather),
        ("scatter", "pytorch: copy_, host[index] = rows", copy_then_index_put, check_scatter),
    ]
    times = {name: [] for _, name, _, _ in methods}
    for direction, name, run, check in methods:
        if direction == "gather":
            device.fill_(0xA5)
        else:
            back.fill_(0xA5)
        run()
        torch.cuda.synchronize()
        if not check():
            print(json.dumps({"failed": name}))
            sys.exit(1)
    for _ in range(rounds):
        for _, name, run, _ in methods:
            torch.cuda.synchronize()
            start = time.perf_counter()
            run()
            torch.cuda.synchronize()
            times[name].append(time.perf_counter() - start)
    for direction, name, _, _ in methods:
        seconds = times[name]
        print(
            json.dumps(
                {
                    "method": name,
                    "direction": direction,
                    "device": torch.cuda.get_device_name(),
                    "torch": torch.__version__,
                    "bytes": pairs * row_bytes,
                    "seconds": statistics.median(seconds),
                    "seconds_min": min(seconds),
                    "seconds_max": max(seconds),
                }
            )
        )


main()
