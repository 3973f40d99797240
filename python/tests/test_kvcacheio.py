"""`forerun.kvcacheio` compared with PyTorch's indexing."""

import doctest
import inspect
import threading

import pytest
from forerun.errors import InvalidArgumentError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from forerun import kvcacheio  # noqa: E402

RNG = torch.Generator().manual_seed(3)

# Where the source and the destination of a copy are.
PLACES = ["cpu", "host to gpu", "gpu to host", "gpu"]


@pytest.fixture(params=PLACES)
def place(request):
    if request.param != "cpu" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return request.param


def put(tensor, where):
    return tensor.cuda() if where == "gpu" else tensor.pin_memory()


def source_at(place, tensor):
    return tensor if place == "cpu" else put(tensor, place.split(" ")[0])


def destination_at(place, tensor):
    return tensor if place == "cpu" else put(tensor, place.split(" ")[-1])


def random(dtype, *shape):
    """A tensor of random bytes. As numbers they may be NaN, so compare them with `same`."""
    size = torch.empty(shape, dtype=dtype, device="meta").nbytes
    return torch.randint(0, 256, (size,), generator=RNG, dtype=torch.uint8).view(dtype).view(shape)


def on_cpu(tensor):
    """The tensor after all copies: `cpu` does not wait for those into pinned memory."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return tensor.cpu()


def same(one, other):
    one, other = (on_cpu(each).contiguous().view(torch.uint8) for each in (one, other))
    return torch.equal(one, other)


def chosen(rows, count, absent=0):
    """Distinct rows in any order, of which `absent` are replaced by negative indices."""
    indices = torch.randperm(rows, generator=RNG)[:count]
    indices[torch.randperm(count, generator=RNG)[:absent]] = -1 - 6 * (absent % 2)
    return indices


def copied(destination, source, to, rows):
    """What a copy of one layer must leave in the destination."""
    wanted = destination.clone()
    both = (to >= 0) & (rows >= 0)
    wanted[to[both]] = source[rows[both]]
    return wanted


def addresses(tensors):
    device = "cuda" if tensors[0].is_cuda or tensors[0].is_pinned() else "cpu"
    return torch.tensor([t.data_ptr() for t in tensors], dtype=torch.uint64, device=device)


# The type of an element and the shape of an item: 16, 8, 4, 2 and 1 bytes divide it.
ITEMS = [
    (torch.bfloat16, (8, 16)),
    (torch.float16, (4, 3)),
    (torch.float32, (1, 7)),
    (torch.uint8, (1, 656)),
    (torch.uint8, (1, 13)),
    (torch.uint8, (7, 1)),
    (torch.uint8, (1, 1)),
]
items = pytest.mark.parametrize("dtype, item", ITEMS)


class Cache:
    """Layers of keys and values on the source's side and on the destination's."""

    def __init__(self, place, dtype, item, layers=3, tokens=(96, 64)):
        self.layers = layers
        self.item_size = random(dtype, *item).nbytes
        both = [random(dtype, layers, tokens[0], *item) for _ in range(2)]
        self.src_k, self.src_v = (source_at(place, layers) for layers in both)
        both = [random(dtype, layers, tokens[1], *item) for _ in range(2)]
        self.dst_k, self.dst_v = (destination_at(place, layers) for layers in both)


@items
@pytest.mark.parametrize("count, absent", [(0, 0), (1, 0), (50, 0), (50, 7), (64, 64)])
def test_one_layer_is_copied_as_by_indexing(place, dtype, item, count, absent):
    cache = Cache(place, dtype, item)
    rows, to = chosen(96, count, absent), chosen(64, count, absent // 2)
    k, v = cache.dst_k[1].cpu(), cache.dst_v[1].cpu()
    k, v = copied(k, cache.src_k[2].cpu(), to, rows), copied(v, cache.src_v[2].cpu(), to, rows)
    untouched = cache.dst_k[0].clone()
    result = kvcacheio.transfer_kv_per_layer(
        cache.src_k[2],
        cache.dst_k[1],
        cache.src_v[2],
        cache.dst_v[1],
        rows,
        to,
        item_size=cache.item_size,
        block_quota=3,
        num_warps_per_block=7,
    )
    assert result is None
    assert same(cache.dst_k[1], k) and same(cache.dst_v[1], v)
    assert same(cache.dst_k[0], untouched)

    mla = copied(cache.dst_k[0].cpu(), cache.src_k[1].cpu(), to, rows)
    kvcacheio.transfer_kv_per_layer_mla(cache.src_k[1], cache.dst_k[0], rows, to, cache.item_size)
    assert same(cache.dst_k[0], mla)


@items
@pytest.mark.parametrize("tables", ["tensors", "addresses", "one of each"])
def test_all_layers_are_copied_as_by_indexing(place, dtype, item, tables):
    cache = Cache(place, dtype, item, layers=5)
    rows, to = chosen(96, 40, 5), chosen(64, 40)
    layers = range(cache.layers)
    k = [copied(cache.dst_k[i].cpu(), cache.src_k[i].cpu(), to, rows) for i in layers]
    v = [copied(cache.dst_v[i].cpu(), cache.src_v[i].cpu(), to, rows) for i in layers]
    if place != "cpu":
        rows, to = rows.cuda(), to.cuda()
    src_k, src_v, dst_k, dst_v = (
        list(side) for side in (cache.src_k, cache.src_v, cache.dst_k, cache.dst_v)
    )
    if tables != "tensors":
        src_k, dst_v = addresses(src_k), addresses(dst_v)
    if tables == "addresses":
        src_v, dst_k = addresses(src_v), addresses(dst_k)
    kvcacheio.transfer_kv_all_layer(
        src_k, dst_k, src_v, dst_v, rows, to, cache.item_size, cache.layers
    )
    assert same(cache.dst_k, torch.stack(k)) and same(cache.dst_v, torch.stack(v))

    cache.dst_k.zero_()
    kvcacheio.transfer_kv_all_layer_mla(
        src_k, dst_k, rows, to, item_size=cache.item_size, num_layers=cache.layers
    )
    rows, to = rows.cpu(), to.cpu()
    zeros = torch.zeros_like(cache.dst_k[0].cpu())
    assert same(
        cache.dst_k, torch.stack([copied(zeros, cache.src_k[i].cpu(), to, rows) for i in layers])
    )


@items
def test_page_first_pools_are_written_and_read_as_by_indexing(place, dtype, item):
    cache = Cache(place, dtype, item, layers=4)
    rows, to = chosen(96, 60, 3), chosen(80, 60)
    pools = [random(dtype, 80, cache.layers, *item) for _ in range(3)]
    k, v, mla = (destination_at(place, pool) for pool in pools)
    wanted_k, wanted_v, wanted_mla = (pool.cpu().clone() for pool in (k, v, mla))
    for layer in range(cache.layers):
        for wanted, layers in (
            (wanted_k, cache.src_k),
            (wanted_v, cache.src_v),
            (wanted_mla, cache.src_v),
        ):
            wanted[:, layer] = copied(wanted[:, layer], layers[layer].cpu(), to, rows)
    layout_dim = cache.layers * cache.item_size
    kvcacheio.transfer_kv_all_layer_lf_pf(
        list(cache.src_k),
        k,
        list(cache.src_v),
        v,
        rows,
        to,
        cache.item_size,
        layout_dim,
        cache.layers,
    )
    kvcacheio.transfer_kv_all_layer_mla_lf_pf(
        addresses(list(cache.src_v)), mla, rows, to, cache.item_size, layout_dim, cache.layers
    )
    assert same(k, wanted_k) and same(v, wanted_v) and same(mla, wanted_mla)

    # Back to one layer, in the other direction.
    k, v, mla = (source_at(place, pool.cpu()) for pool in (k, v, mla))
    rows, to = chosen(80, 30), chosen(64, 30, 2)
    for layer in range(cache.layers):
        before = [destination_at(place, random(dtype, 64, *item)) for _ in range(3)]
        wanted = [
            copied(out.cpu(), pool[:, layer].cpu(), to, rows)
            for out, pool in zip(before, (k, v, mla), strict=True)
        ]
        kvcacheio.transfer_kv_per_layer_pf_lf(
            k, before[0], v, before[1], rows, to, layer, cache.item_size, layout_dim
        )
        kvcacheio.transfer_kv_per_layer_mla_pf_lf(
            mla, before[2], rows, to, layer, cache.item_size, layout_dim
        )
        assert all(same(out, right) for out, right in zip(before, wanted, strict=True))


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("dtype, item", [(torch.float16, (8, 16)), (torch.uint8, (3, 7))])
def test_page_head_pools_are_written_and_read_as_by_indexing(place, dtype, item, page_size):
    cache = Cache(place, dtype, item, layers=4)
    heads, dim = item
    rows, to = chosen(96, 60, 3), chosen(80, 60)
    # The shape of a pool, and the same memory as [token, layer, head, dim].
    shape = (80 // page_size, heads, page_size, cache.layers, dim)

    def by_token(pool):
        return on_cpu(pool).permute(0, 2, 3, 1, 4).reshape(80, cache.layers, heads, dim)

    k, v = (destination_at(place, random(dtype, *shape)) for _ in range(2))
    wanted_k, wanted_v = by_token(k).clone(), by_token(v).clone()
    for layer in range(cache.layers):
        for wanted, layers in ((wanted_k, cache.src_k), (wanted_v, cache.src_v)):
            wanted[:, layer] = copied(wanted[:, layer], layers[layer].cpu(), to, rows)
    layout_dim = cache.layers * cache.item_size
    kvcacheio.transfer_kv_all_layer_lf_ph(
        addresses(list(cache.src_k)),
        k,
        list(cache.src_v),
        v,
        rows,
        to,
        cache.item_size,
        layout_dim,
        cache.layers,
        page_size,
        heads,
    )
    assert same(by_token(k), wanted_k) and same(by_token(v), wanted_v)

    k, v = source_at(place, k.cpu()), source_at(place, v.cpu())
    rows, to = chosen(80, 30), chosen(64, 30, 2)
    for layer in range(cache.layers):
        out_k, out_v = (destination_at(place, random(dtype, 64, *item)) for _ in range(2))
        right_k = copied(out_k.cpu(), by_token(k)[:, layer], to, rows)
        right_v = copied(out_v.cpu(), by_token(v)[:, layer], to, rows)
        kvcacheio.transfer_kv_per_layer_ph_lf(
            k,
            out_k,
            v,
            out_v,
            rows,
            to,
            layer,
            cache.item_size,
            layout_dim,
            page_size=page_size,
            head_num=heads,
        )
        assert same(out_k, right_k) and same(out_v, right_v)


def tokens_of(pages, page_size):
    return (pages.unsqueeze(1) * page_size + torch.arange(page_size)).flatten()


@items
@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("is_mla", [False, True])
def test_direct_functions_copy_pages_as_by_indexing(place, dtype, item, page_size, is_mla):
    cache = Cache(place, dtype, item, layers=4, tokens=(96, 64))
    rows = tokens_of(chosen(96 // page_size, 3), page_size)
    to = tokens_of(chosen(64 // page_size, 3), page_size)
    sources = list(cache.src_k) + ([] if is_mla else list(cache.src_v))
    outs = list(cache.dst_k) + ([] if is_mla else list(cache.dst_v))
    wanted = [copied(o.cpu(), s.cpu(), to, rows) for o, s in zip(outs, sources, strict=True)]
    kvcacheio.transfer_kv_direct(sources, outs, rows, to, page_size)
    assert all(same(out, right) for out, right in zip(outs, wanted, strict=True))

    # A pool of pages has shape [page, layer, token of page, item].
    shape = (64 // page_size, 4, page_size, *item)
    pools = [destination_at(place, random(dtype, *shape)) for _ in range(1 if is_mla else 2)]
    wanted = [pool.cpu().clone() for pool in pools]
    for pool, layers in zip(wanted, (cache.src_k, cache.src_v), strict=False):
        for layer in range(4):
            by_token = pool[:, layer].reshape(64, *item)
            by_token = copied(by_token, layers[layer].cpu(), to, rows)
            pool[:, layer] = by_token.view(-1, page_size, *item)
    kvcacheio.transfer_kv_all_layer_direct_lf_pf(sources, pools, rows, to, page_size)
    assert all(same(pool, right) for pool, right in zip(pools, wanted, strict=True))

    pools = [source_at(place, pool.cpu()) for pool in pools]
    rows = tokens_of(chosen(64 // page_size, 2), page_size)
    to = tokens_of(chosen(64 // page_size, 2), page_size)
    for layer in range(4):
        outs = [destination_at(place, random(dtype, 64, *item)) for _ in pools]
        wanted = [
            copied(out.cpu(), pool[:, layer].reshape(64, *item).cpu(), to, rows)
            for out, pool in zip(outs, pools, strict=True)
        ]
        kvcacheio.transfer_kv_per_layer_direct_pf_lf(pools, outs, rows, to, layer, page_size)
        assert all(same(out, right) for out, right in zip(outs, wanted, strict=True))


@pytest.mark.parametrize("wide", [False, True])
def test_rows_of_views_and_indices_of_32_bits_are_copied_as_by_indexing(place, wide):
    pool = source_at(place, random(torch.float16, 96, 3, 8))  # page-first: [token, layer, item]
    layers = destination_at(place, random(torch.float16, 64, 2, 8))
    rows, to = chosen(96, 50, 3), chosen(64, 50)
    k, v = layers[:, 0].cpu(), layers[:, 1].cpu()
    k = copied(k.contiguous(), pool[:, 2].cpu(), to, rows)
    v = copied(v.contiguous(), pool[:, 0].cpu(), to, rows)
    kvcacheio.transfer_kv_per_layer(
        pool[:, 2], layers[:, 0], pool[:, 0], layers[:, 1], rows.int(), to if wide else to.int(), 16
    )
    assert same(layers[:, 0], k) and same(layers[:, 1], v)
    views = [pool[:, layer] for layer in range(3)]
    outs = [destination_at(place, random(torch.float16, 64, 8)) for _ in range(3)]
    both = zip(outs, views, strict=True)
    wanted = [copied(out.cpu(), view.cpu(), to, rows) for out, view in both]
    kvcacheio.transfer_kv_all_layer_mla(views, outs, rows.int(), to.int(), 16, 3)
    assert all(same(out, right) for out, right in zip(outs, wanted, strict=True))


def test_several_threads_copy_what_one_copies():
    cache = Cache("cpu", torch.float32, (8, 32), layers=20, tokens=(600, 600))
    rows, to = chosen(600, 500), chosen(600, 500)
    wanted = [copied(cache.dst_k[i], cache.src_k[i], to, rows) for i in range(20)]
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        kvcacheio.transfer_kv_all_layer_mla(
            list(cache.src_k), list(cache.dst_k), rows, to, cache.item_size, 20
        )
    finally:
        torch.set_num_threads(before)
    assert same(cache.dst_k, torch.stack(wanted))


def test_calls_may_use_different_rows_of_one_pool_at_the_same_time():
    pool, outs = random(torch.uint8, 4000, 656), random(torch.uint8, 2, 2000, 656)
    rows = torch.randperm(4000, generator=RNG)
    upper, back = rows[:2000], rows[2000:]
    source = random(torch.uint8, 2000, 656)

    def load():
        for _ in range(20):
            kvcacheio.transfer_kv_per_layer_mla(pool, outs[0], upper, torch.arange(2000), 656)

    def store():
        for _ in range(20):
            kvcacheio.transfer_kv_per_layer_mla(source, pool, torch.arange(2000), back, 656)

    threads = [threading.Thread(target=target) for target in (load, store)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same(outs[0], pool[upper]) and same(pool[back], source)


def test_a_tensor_that_backward_needs_is_counted_as_changed():
    weight = torch.ones(4, 2, requires_grad=True)
    saved = torch.ones(4, 2)
    loss = (weight * saved).sum()
    index = torch.tensor([0])
    with pytest.raises(InvalidArgumentError):
        kvcacheio.transfer_kv_per_layer_mla(torch.zeros(4, 2), saved, index, index + 9, 8)
    kvcacheio.transfer_kv_per_layer_mla(torch.zeros(4, 2), saved, index, index, 8)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():
        out = torch.ones(4, 2)
        kvcacheio.transfer_kv_per_layer_mla(torch.zeros(4, 2), out, index, index, 8)
        assert out[0].tolist() == [0, 0]


# The names and the order of SGLang's arguments at the commits that the module names.
KV = "src_k dst_k src_v dst_v src_indices dst_indices "
LAYERS = "src_k_layers dst_k_layers src_v_layers dst_v_layers src_indices dst_indices "
GRID = " block_quota=2 num_warps_per_block=32"
SIGNATURES = {
    "transfer_kv_per_layer": KV + "item_size" + GRID,
    "transfer_kv_per_layer_pf_lf": KV + "layer_id item_size src_layout_dim" + GRID,
    "transfer_kv_per_layer_ph_lf": (
        KV + "layer_id item_size src_layout_dim page_size head_num" + GRID
    ),
    "transfer_kv_all_layer": LAYERS + "item_size num_layers" + GRID,
    "transfer_kv_all_layer_lf_pf": (
        "src_k_layers dst_k src_v_layers dst_v src_indices dst_indices "
        "item_size dst_layout_dim num_layers" + GRID
    ),
    "transfer_kv_all_layer_lf_ph": (
        "src_k_layers dst_k src_v_layers dst_v src_indices dst_indices "
        "item_size dst_layout_dim num_layers page_size head_num" + GRID
    ),
    "transfer_kv_direct": "src_layers dst_layers src_indices dst_indices page_size",
    "transfer_kv_per_layer_direct_pf_lf": (
        "src_ptrs dst_ptrs src_indices dst_indices layer_id page_size"
    ),
    "transfer_kv_all_layer_direct_lf_pf": "src_ptrs dst_ptrs src_indices dst_indices page_size",
    "transfer_kv_per_layer_mla": "src dst src_indices dst_indices item_size" + GRID,
    "transfer_kv_per_layer_mla_pf_lf": (
        "src dst src_indices dst_indices layer_id item_size src_layout_dim" + GRID
    ),
    "transfer_kv_all_layer_mla": (
        "src_layers dst_layers src_indices dst_indices item_size num_layers" + GRID
    ),
    "transfer_kv_all_layer_mla_lf_pf": (
        "src_layers dst src_indices dst_indices item_size dst_layout_dim num_layers" + GRID
    ),
}


def test_the_functions_have_the_signatures_of_sglang():
    assert sorted(SIGNATURES) == sorted(kvcacheio.__all__)
    for name, arguments in SIGNATURES.items():
        parameters = inspect.signature(getattr(kvcacheio, name)).parameters.values()
        found = [
            parameter.name
            + ("" if parameter.default is parameter.empty else f"={parameter.default}")
            for parameter in parameters
        ]
        assert found == arguments.split(), name
        assert all(parameter.kind == parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)


def test_the_example_of_the_module_runs():
    result = doctest.testmod(kvcacheio)
    assert result.attempted > 0 and result.failed == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")
def test_rows_behind_addresses_on_a_gpu_end_where_the_next_layer_begins():
    pool = random(torch.uint8, 2, 64, 656).cuda()
    source = random(torch.uint8, 2, 64, 656).pin_memory()
    before = pool.clone()

    def copy(to, sources=addresses(source)):
        rows = torch.zeros_like(to)
        kvcacheio.transfer_kv_all_layer_mla(sources, addresses(pool), rows, to, 656, 2)

    with pytest.raises(InvalidArgumentError, match="`dst_indices.0.` is 64, .* for 64 rows"):
        copy(torch.tensor([64]))
    # Indices on the GPU are not seen, but limited.
    copy(torch.tensor([64, 1 << 40]).cuda())
    assert same(pool, before)
    ordinary = torch.zeros(2, 64, 656, dtype=torch.uint8)
    table = torch.tensor([layer.data_ptr() for layer in ordinary], dtype=torch.uint64).cuda()
    with pytest.raises(InvalidArgumentError, match="cannot locate the memory"):
        copy(torch.tensor([0]), table)
    copy(torch.tensor([63]))
    assert same(pool[:, 63], source[:, 0]) and same(pool[:, :63], before[:, :63])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")
def test_empty_tensors_and_indices_are_copied_on_a_gpu():
    empty, pool = torch.zeros(0, 8, device="cuda"), torch.ones(4, 8, device="cuda")
    none, one = torch.zeros(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64, device="cuda")
    kvcacheio.transfer_kv_per_layer_mla(empty, pool, none, none, 32)
    kvcacheio.transfer_kv_per_layer_mla(empty, pool, one, one, 32)
    kvcacheio.transfer_kv_per_layer_mla(pool, empty, one, one, 32)
    assert pool.sum() == 32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")
def test_a_layer_each_is_captured_in_one_graph():
    pool = random(torch.uint8, 60, 64, 656).pin_memory()
    layers = torch.zeros(60, 64, 656, dtype=torch.uint8, device="cuda")
    rows, to = torch.arange(64, device="cuda"), torch.arange(64, device="cuda")

    def load():
        for layer in range(60):
            kvcacheio.transfer_kv_per_layer_mla(pool[layer], layers[layer], rows, to, 656)

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        load()
    stream.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        load()
    layers.zero_()
    rows.copy_(torch.randperm(64))
    graph.replay()
    torch.cuda.synchronize()
    assert same(layers, pool[:, rows.cpu()])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")
def test_temporary_memory_stays_until_a_late_copy_has_run():
    pool = torch.zeros(64, 1 << 16, dtype=torch.uint8, device="cuda")
    index, stream = torch.arange(64, device="cuda"), torch.cuda.Stream()
    kvcacheio.transfer_kv_per_layer_mla(pool.cpu().pin_memory(), pool, index, index, 1 << 16)
    torch.cuda.synchronize()
    for value in range(1, 20):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(10_000_000)
            source = torch.full((64, 1 << 16), value, dtype=torch.uint8).pin_memory()
            kvcacheio.transfer_kv_per_layer_mla(source, pool, index + 0, index + 0, 1 << 16)
            del source
            torch.zeros(64, 1 << 16, dtype=torch.uint8).pin_memory()
        torch.full((64,), 1 << 40, device="cuda")
        stream.synchronize()
        assert (pool == value).all()
