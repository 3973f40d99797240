"""`forerun.GpuTable` and its operators with PyTorch's tensors."""

import forerun
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from forerun import gpu_operators  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


@pytest.fixture(params=DEVICES)
def place(request):
    return torch.device(request.param)


def new_table(place, dtype="float32", **options):
    device = "cpu" if place.type == "cpu" else torch.cuda.current_device()
    return forerun.GpuTable(4096, 4, dtype, device=device, **options)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64"])
def test_tensors_are_used_in_place_and_returned(place, dtype):
    table = new_table(place, dtype)
    keys = torch.arange(-100, 100, device=place)
    rows = torch.arange(800, device=place).reshape(200, 4).to(getattr(torch, dtype))
    table.insert_or_assign(keys, rows)
    found_rows, found = table.find(keys.reshape(2, 100))
    assert found_rows.dtype == rows.dtype and found_rows.device == keys.device
    assert found.all() and torch.equal(found_rows.reshape(200, 4), rows)
    out = torch.full((3, 4), 7, device=place, dtype=rows.dtype)
    before = out._version
    given, found = table.find(torch.tensor([5, 1000, 6], device=place), out)
    assert given is out and out._version > before
    assert torch.equal(out[[0, 2]], rows[[105, 106]]) and (out[1] == 7).all()
    assert found.tolist() == [True, False, True]
    assert table.size() == len(table) == 200


def test_operators_return_rows_and_outcomes(place):
    table = new_table(place)
    keys, rows = torch.tensor([1, 2], device=place), torch.ones(2, 4, device=place)
    assert gpu_operators.insert_or_assign(table, keys, rows).tolist() == [2, 2]
    assert gpu_operators.assign(table, keys, rows * 2).tolist() == [1, 1]
    more = torch.tensor([2, 3], device=place)
    found, status = gpu_operators.find_or_insert(table, more, rows * 3)
    assert found[:, 0].tolist() == [2, 3] and status.tolist() == [1, 2]
    asked = torch.tensor([3, 4], device=place)
    assert gpu_operators.contains(table, asked).tolist() == [True, False]
    assert gpu_operators.erase(table, torch.tensor([4, 3], device=place)).tolist() == [0, 1]
    rows, found = gpu_operators.find(table, keys.reshape(1, 2))
    assert rows.shape == (1, 2, 4) and found.all()


def test_operators_are_traced_without_a_graph_break(place):
    table = new_table(place)
    keys = torch.arange(10, device=place)
    gpu_operators.insert_or_assign(table, keys, torch.ones(10, 4, device=place))

    def pooled(keys):
        rows, found = gpu_operators.find(table, keys * 2)
        return rows.sum(0), found

    compiled = torch.compile(pooled, fullgraph=True, backend="eager")
    for n in (10, 4):
        for ours, theirs in zip(compiled(keys[:n]), pooled(keys[:n])):
            assert torch.equal(ours, theirs)
    torch.library.opcheck(
        torch.ops.forerun.gpu_table_contains.default,
        (keys, gpu_operators._order_of(keys), table._number),
    )


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiler_keeps_the_order_of_lookups_and_changes(place, backend):
    table = new_table(place)
    keys = torch.arange(3, device=place)
    gpu_operators.insert_or_assign(table, keys, torch.zeros(3, 4, device=place))

    def training_step(keys):
        before, _ = gpu_operators.find(table, keys)
        gpu_operators.assign(table, keys, before + 1)
        between, _ = gpu_operators.find(table, keys)
        gpu_operators.erase(table, keys)
        return before, between, gpu_operators.contains(table, keys)

    compiled = torch.compile(training_step, fullgraph=True, backend=backend)
    before, between, left = compiled(keys)
    assert (before == 0).all() and (between == 1).all() and not left.any()
    assert table.size() == 0


def test_a_first_call_in_inference_or_in_a_trace_leaves_nothing_of_it(place, monkeypatch):
    table = new_table(place)
    keys, rows = torch.arange(3, device=place), torch.ones(3, 4, device=place)

    def fake():
        with FakeTensorMode() as mode:
            # Real and fake tensors do not mix.
            with pytest.raises(Exception, match="FakeTensor"):
                gpu_operators.contains(table, mode.from_tensor(keys))

    def inference():
        with torch.inference_mode():
            gpu_operators.insert_or_assign(table, keys, rows)

    def transform():
        torch.func.grad(lambda x: (x * gpu_operators.find(table, keys)[0]).sum())(rows)

    for first in (fake, inference, transform):
        monkeypatch.setattr(gpu_operators, "_orders", {})
        first()
        gpu_operators.insert_or_assign(table, keys, rows)
        assert gpu_operators.contains(table, keys).all()


@pytest.mark.skipif(not hasattr(torch.compiler, "is_exporting"), reason="an older PyTorch")
def test_a_table_is_not_exported(place):
    table, keys = new_table(place), torch.arange(3, device=place)

    class Model(torch.nn.Module):
        def forward(self, keys):
            return gpu_operators.find(table, keys)[0]

    with pytest.raises(Exception, match="cannot hold a GpuTable"):
        torch.export.export(Model(), (keys,))


def test_an_operator_of_a_table_that_is_gone_says_so(place):
    table = new_table(place)
    number, keys = table._number, torch.tensor([1], device=place)
    del table
    with pytest.raises(forerun.errors.ClosedError, match="does not exist"):
        torch.ops.forerun.gpu_table_contains(keys, gpu_operators._order_of(keys), number)


@pytest.mark.skipif("cuda" not in DEVICES, reason="there is no GPU")
def test_a_call_is_captured_and_follows_the_current_stream():
    place = torch.device("cuda")
    table = new_table(place)
    keys, rows = torch.arange(64, device=place), torch.rand(64, 4, device=place)
    out, found = torch.zeros_like(rows), torch.zeros(64, dtype=torch.bool, device=place)
    table.find(keys, out, found)
    table.insert_or_assign(keys, rows)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        table.find(keys, out, found)
    graph.replay()
    assert torch.equal(out, rows) and found.all()
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        table.assign(keys, rows + 1)
        later, _ = table.find(keys)
    # A stream that is not the current one: the tensors are kept until it is done.
    table.assign(keys.clone(), rows + 2, stream=other)
    torch.cuda.synchronize()
    assert torch.equal(later, rows + 1)
    assert torch.equal(table.find(keys)[0], rows + 2)
    exported = table.export_batch(like=keys)
    assert int(exported.count) == 64 and len(table) == 64
    array = table.export_batch().keys
    assert isinstance(array, forerun.gpu_table.DeviceArray)
    assert torch.from_dlpack(array)[:64].sum() == keys.sum()


@pytest.mark.skipif("cuda" not in DEVICES, reason="there is no GPU")
def test_arrays_elsewhere_are_refused_by_a_table_on_a_gpu():
    table = new_table(torch.device("cuda"))
    with pytest.raises(forerun.errors.InvalidArgumentError, match="ordinary host memory"):
        table.insert_or_assign(np.arange(3), torch.ones(3, 4, device="cuda"))
