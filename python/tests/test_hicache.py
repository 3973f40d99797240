"""`forerun.hicache` compared with PyTorch's indexing."""

import doctest
import inspect

import pytest
from forerun.errors import InvalidArgumentError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from forerun import hicache  # noqa: E402

RNG = torch.Generator().manual_seed(5)

PLACES = ["cpu", "host to gpu", "gpu to host"]


@pytest.fixture(params=PLACES)
def place(request):
    if request.param != "cpu" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return request.param


def at(place, end, tensor):
    """The tensor where a copy's source or destination is."""
    if place == "cpu":
        return tensor
    on_gpu = place.split(" ")[0 if end == "source" else -1] == "gpu"
    return tensor.cuda() if on_gpu else tensor.pin_memory()


def random(*shape):
    return torch.randint(0, 256, shape, generator=RNG, dtype=torch.uint8)


def chosen(rows, count):
    return torch.randperm(rows, generator=RNG)[:count]


def same(one, other):
    if torch.cuda.is_available():
        # `cpu` does not wait for copies into pinned memory.
        torch.cuda.synchronize()
    return torch.equal(one.cpu(), other.cpu())


def table(tensors):
    device = "cuda" if any(t.is_cuda or t.is_pinned() for t in tensors) else "cpu"
    return torch.tensor([t.data_ptr() for t in tensors], dtype=torch.uint64, device=device)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_one_layer_is_copied_as_by_indexing(place, dtype):
    sources = [at(place, "source", random(96, 4, 32)) for _ in range(2)]
    outs = [at(place, "destination", random(64, 4, 32)) for _ in range(2)]
    rows, to = chosen(96, 40), chosen(64, 40)
    wanted = [out.cpu().clone() for out in outs]
    for out, source in zip(wanted, sources, strict=True):
        out[to] = source.cpu()[rows]
    hicache.transfer_hicache_one_layer(
        *outs, to.to(dtype), *sources, rows.to(dtype), element_dim=128, block_quota=2, page_size=16
    )
    assert all(same(out, right) for out, right in zip(outs, wanted, strict=True))
    wanted[0][to] = sources[1].cpu()[rows]
    hicache.transfer_hicache_one_layer_mla(
        outs[0], to.to(dtype), sources[1], rows.to(dtype), element_dim=128
    )
    assert same(outs[0], wanted[0])


def test_rows_of_a_view_are_as_far_apart_as_in_its_memory(place):
    pool, out = at(place, "source", random(96, 3, 128)), at(place, "destination", random(64, 128))
    rows, to = chosen(96, 40), chosen(64, 40)
    wanted = out.cpu().clone()
    wanted[to] = pool.cpu()[rows, 1]
    hicache.transfer_hicache_one_layer_mla(out, to, pool[:, 1], rows)
    assert same(out, wanted)


def test_all_layers_are_copied_as_by_indexing(place):
    k, v = (at(place, "source", random(5, 96, 128)) for _ in range(2))
    outs = [at(place, "destination", random(5, 64, 256)) for _ in range(2)]
    rows, to = chosen(96, 40), chosen(64, 40)
    wanted = [out.cpu().clone() for out in outs]
    for out, source in zip(wanted, (k, v), strict=True):
        out[:, to, :128] = source.cpu()[:, rows]
    hicache.transfer_hicache_all_layer(
        table(list(outs[0])),
        table(list(outs[1])),
        to,
        table(list(k)),
        table(list(v)),
        rows,
        kv_cache_src_stride_bytes=128,
        kv_cache_dst_stride_bytes=256,
        element_size=128,
    )
    assert all(same(out, right) for out, right in zip(outs, wanted, strict=True))
    out = at(place, "destination", random(5, 64, 128))
    right = out.cpu().clone()
    right[:, to] = v.cpu()[:, rows]
    hicache.transfer_hicache_all_layer_mla(
        table(list(out)),
        to,
        list(v),
        rows,
        cache_src_stride_bytes=128,
        cache_dst_stride_bytes=128,
    )
    assert same(out, right)


def test_the_staged_functions_fill_page_first_pools(place):
    k, v = (at(place, "source", random(3, 96, 656)) for _ in range(2))
    outs = [at(place, "destination", random(64, 3, 1, 656)) for _ in range(2)]
    pages = torch.arange(16)
    rows = torch.cat([chosen(6, 1) * 16 + pages for _ in range(3)])
    to = torch.cat([page * 16 + pages for page in (3, 0, 2)])
    wanted = [out.cpu().clone() for out in outs]
    for out, source in zip(wanted, (k, v), strict=True):
        out[to, :, 0] = source.cpu()[:, rows].transpose(0, 1)
    staging = torch.empty(32, 3, 1, 656, dtype=torch.uint8)
    hicache.transfer_hicache_all_layer_staged_lf_pf(
        list(k), table(list(v)), rows, to, staging, staging, *outs, page_size=16, element_size=656
    )
    assert all(same(out, right) for out, right in zip(outs, wanted, strict=True))
    wanted[0][to, :, 0] = v.cpu()[:, rows].transpose(0, 1)
    hicache.transfer_hicache_all_layer_mla_staged_lf_pf(
        list(v), rows, to, staging, outs[0], page_size=16
    )
    assert same(outs[0], wanted[0])


def test_page_unified_pools_are_read_as_by_indexing(place):
    groups, layers, page, heads, dim = 2, 3, 4, 2, 8
    pool = at(place, "source", random(6, groups, layers, 2, page, heads, dim))
    by_token = pool.cpu().permute(3, 2, 0, 4, 1, 5, 6).reshape(2, layers, 24, groups * heads, dim)
    outs = [at(place, "destination", random(40, groups * heads, dim)) for _ in range(2)]
    rows, to = chosen(24, 20), chosen(40, 20)
    for layer in range(layers):
        wanted = [out.cpu().clone() for out in outs]
        for kind, out in enumerate(wanted):
            out[to] = by_token[kind, layer, rows]
        hicache.transfer_hicache_one_layer_page_unified_lf(*outs, pool, rows, to, layer)
        assert all(same(out, right) for out, right in zip(outs, wanted, strict=True))
    pool = at(place, "source", random(6, layers, page, 36))
    out = at(place, "destination", random(40, 1, 36))
    wanted = out.cpu().clone()
    wanted[to, 0] = pool.cpu()[:, 1].reshape(24, 36)[rows]
    hicache.transfer_hicache_one_layer_mla_page_unified_lf(out, pool, rows, to, 1)
    assert same(out, wanted)


def test_pages_are_written_to_page_unified_pools_as_by_indexing(place):
    groups, layers, page, heads, dim = 2, 3, 4, 2, 8
    pool = at(place, "destination", random(6, groups, layers, 2, page, heads, dim))
    k, v = (at(place, "source", random(layers, 40, groups * heads, dim)) for _ in range(2))
    rows, to = torch.tensor([9, 0, 4, -1]), torch.tensor([2, 5, 0, 1])
    wanted = pool.cpu().clone()
    for row, out in zip(rows[:3], to[:3], strict=True):
        for kind, source in enumerate((k, v)):
            tokens = source.cpu()[:, row * page : (row + 1) * page]
            tokens = tokens.reshape(layers, page, groups, heads, dim).permute(2, 0, 1, 3, 4)
            wanted[out, :, :, kind] = tokens
    staging = pool[:1]
    hicache.transfer_hicache_all_layer_staged_lf_page_unified(
        list(k), table(list(v)), rows, to, staging, pool
    )
    assert same(pool, wanted)
    pool = at(place, "destination", random(6, layers, page, 36))
    source = at(place, "source", random(layers, 40, 36))
    wanted = pool.cpu().clone()
    wanted[to[:3]] = source.cpu().reshape(layers, 10, page, 36)[:, rows[:3]].transpose(0, 1)
    hicache.transfer_hicache_all_layer_mla_staged_lf_page_unified(
        list(source), rows.int(), to.int(), pool, pool
    )
    assert same(pool, wanted)


INDEX = torch.tensor([1, 2])


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda pool: hicache.transfer_hicache_one_layer_mla([1], INDEX, pool, INDEX), "not list"),
        (
            lambda pool: hicache.transfer_hicache_one_layer_mla(
                pool, INDEX, pool.clone(), INDEX, element_dim=7
            ),
            "`cache_src` of shape .* cannot be viewed as rows of 7 elements",
        ),
        (
            lambda pool: hicache.transfer_hicache_all_layer_mla(
                [pool],
                INDEX,
                [pool.clone()],
                INDEX,
                cache_src_stride_bytes=16,
                cache_dst_stride_bytes=32,
            ),
            "must have the same value without an `element_size`",
        ),
        (
            lambda pool: hicache.transfer_hicache_all_layer_mla(
                [], INDEX, [], INDEX, cache_src_stride_bytes=16, cache_dst_stride_bytes=16
            ),
            "`ptr_dst` must have an address for each layer",
        ),
        (
            lambda pool: hicache.transfer_hicache_all_layer_mla_staged_lf_pf(
                [pool], INDEX, INDEX, pool, torch.zeros(8, 2, 16).byte(), page_size=1
            ),
            "`dst` must have the shape .token, layer, .* with 1 layers",
        ),
        (
            lambda pool: hicache.transfer_hicache_one_layer_mla_page_unified_lf(
                pool, pool, INDEX, INDEX, 0
            ),
            "`src` must have the shape .page, layer, token of page, dim.",
        ),
        (
            lambda pool: hicache.transfer_hicache_one_layer_mla_page_unified_lf(
                pool, torch.zeros(2, 3, 4, 16).byte(), INDEX, INDEX, 3
            ),
            "`layer_id` is 3, but `src` has 3 layers",
        ),
    ],
)
def test_invalid_arguments_are_refused_by_name(call, words):
    pool = random(8, 16)
    before = pool.clone()
    with pytest.raises(InvalidArgumentError, match=words):
        call(pool)
    assert torch.equal(pool, before)


def test_rows_of_every_size_can_be_copied():
    assert hicache.can_use_hicache_jit_kernel(element_size=656, page_size=64)
    assert hicache.can_use_write_back_jit_kernel(element_size=13)
    assert hicache.can_use_page_unified_load_back_jit_kernel(group_bytes=36)
    assert not hicache.can_use_hicache_jit_kernel(element_size=0)


# The names of SGLang's arguments at the version that the module names; `*` begins those that are
# passed by name.
ONE = " * element_dim=None unroll=None block_quota=None page_size=None"
ALL = " element_size=None unroll=None block_quota=None page_size=None"
STAGED = " * page_size element_size=None unroll=None block_quota=None"
UNIFIED = " src src_indices dst_indices layer_id * block_quota=None"
SIGNATURES = {
    "can_use_hicache_jit_kernel": (
        "* element_size unroll=None block_quota=None page_size=None"
    ),
    "can_use_page_unified_load_back_jit_kernel": "* group_bytes block_quota=None",
    "can_use_write_back_jit_kernel": "* element_size unroll=None block_quota=None",
    "transfer_hicache_all_layer": (
        "k_ptr_dst v_ptr_dst indices_dst k_ptr_src v_ptr_src indices_src * "
        "kv_cache_src_stride_bytes kv_cache_dst_stride_bytes" + ALL
    ),
    "transfer_hicache_all_layer_mla": (
        "ptr_dst indices_dst ptr_src indices_src * "
        "cache_src_stride_bytes cache_dst_stride_bytes" + ALL
    ),
    "transfer_hicache_all_layer_mla_staged_lf_pf": (
        "ptr_src src_indices dst_indices staging dst" + STAGED
    ),
    "transfer_hicache_all_layer_mla_staged_lf_page_unified": (
        "ptr_src src_pages dst_pages staging dst"
    ),
    "transfer_hicache_all_layer_staged_lf_page_unified": (
        "k_ptr_src v_ptr_src src_pages dst_pages staging dst"
    ),
    "transfer_hicache_all_layer_staged_lf_pf": (
        "k_ptr_src v_ptr_src src_indices dst_indices staging_k staging_v dst_k dst_v" + STAGED
    ),
    "transfer_hicache_one_layer": (
        "k_cache_dst v_cache_dst indices_dst k_cache_src v_cache_src indices_src" + ONE
    ),
    "transfer_hicache_one_layer_mla": "cache_dst indices_dst cache_src indices_src" + ONE,
    "transfer_hicache_one_layer_mla_page_unified_lf": "cache_dst" + UNIFIED,
    "transfer_hicache_one_layer_page_unified_lf": "k_cache_dst v_cache_dst" + UNIFIED,
}


def test_the_functions_have_the_signatures_of_sglang():
    assert sorted(SIGNATURES) == sorted(hicache.__all__)
    for name, arguments in SIGNATURES.items():
        found, by_name = [], False
        for parameter in inspect.signature(getattr(hicache, name)).parameters.values():
            if parameter.kind == parameter.KEYWORD_ONLY and not by_name:
                by_name = True
                found.append("*")
            has_default = parameter.default is not parameter.empty
            found.append(parameter.name + (f"={parameter.default}" if has_default else ""))
        assert found == arguments.split(), name


def test_the_example_of_the_module_runs():
    result = doctest.testmod(hicache)
    assert result.attempted > 0 and result.failed == 0
