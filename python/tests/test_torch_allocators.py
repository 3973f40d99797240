"""Copies to and from tensors of PyTorch's allocators whose memory is mapped in pieces.

The driver is asked for the extent of an allocation, to check the rows of a copy against it. Memory
of `expandable_segments` is reserved as a whole and mapped in pieces of 2 or 20 MiB, and that of
`cudaMallocAsync` comes from a pool, so the driver's answer may be a piece, the reservation, or a
pool. Whatever it is, a copy of rows that exist must be whole, and rows that do not exist must be
refused or counted.
"""

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

ALLOCATORS = {
    "expandable segments": "expandable_segments:True",
    "cudaMallocAsync": "backend:cudaMallocAsync",
}

# A pool of 96 MiB, longer than any piece; rows of 64 KiB from all over it.
PROGRAM = """
import forerun, torch
from forerun import kvcacheio

# So that the pool does not begin where a piece does.
before = torch.zeros(3 << 20, device="cuda")
pool = torch.zeros(1536, 16384, device="cuda")
after = torch.zeros(3 << 20, device="cuda")
host = torch.randn(200, 16384).pin_memory()
rows = torch.randperm(200)
places = torch.randperm(1536)[:200]
places[:3] = torch.tensor([0, 1535, 768])
places = torch.unique(places)
rows = rows[: len(places)]

forerun.gather(host, pool, torch.stack([rows, places], dim=1))
torch.cuda.synchronize()
assert forerun.out_of_range_count() == 0
expected = torch.zeros(1536, 16384)
expected[places] = host[rows]
assert torch.equal(pool.cpu(), expected)

back = torch.zeros(200, 16384).pin_memory()
forerun.scatter(pool, back, torch.stack([places, rows], dim=1))
torch.cuda.synchronize()
assert forerun.out_of_range_count() == 0
assert torch.equal(back[rows], host[rows])

# An index past the tensor, within what is reserved or mapped.
for counted, index in enumerate((1536, 1537, 1 << 20), 1):
    forerun.gather(host, pool, torch.tensor([[0, index]]))
    torch.cuda.synchronize()
    assert forerun.out_of_range_count() == counted, index
assert torch.equal(pool.cpu(), expected)
assert not before.any() and not after.any()

# The same rows by calls that know addresses alone.
tables = [torch.tensor([t.data_ptr()], dtype=torch.uint64, device="cuda") for t in (host, pool)]
for indices in (rows, places), (rows.cuda(), places.cuda()):
    pool.zero_()
    kvcacheio.transfer_kv_all_layer_mla(*tables, *indices, item_size=16384 * 4, num_layers=1)
    torch.cuda.synchronize()
    assert torch.equal(pool.cpu(), expected)
assert forerun.out_of_range_count() == counted
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")
@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_rows_of_memory_that_is_mapped_in_pieces_are_all_copied(allocator):
    setting = ALLOCATORS[allocator]
    # The second name is that of newer versions.
    names = dict.fromkeys(("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"), setting)
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=os.environ | names, capture_output=True, text=True
    )
    assert run.returncode == 0, f"{allocator}:\n{run.stderr}"
