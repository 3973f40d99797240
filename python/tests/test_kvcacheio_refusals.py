"""Invalid arguments of `forerun.kvcacheio` are refused before anything is copied."""

import pytest
from forerun.errors import InvalidArgumentError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from forerun import kvcacheio  # noqa: E402

HALF = torch.zeros(10, 4, dtype=torch.float16)  # rows of 8 bytes
INDEX = torch.tensor([1, 2])


def negated(tensor):
    """A view that negates its memory lazily."""
    view = torch._neg_view(tensor)
    assert view.is_neg() and view.is_contiguous()
    return view


def apart(rows, columns):
    """A view of rows with a gap after each."""
    return torch.zeros(rows, columns, dtype=torch.float16)[:, :4]


def traced(*shape):
    """A tensor that only traces a program."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(shape, dtype=torch.float16)


def layer(src=HALF, dst=None, src_indices=INDEX, dst_indices=INDEX, item_size=8):
    dst = torch.zeros(6, 4, dtype=torch.float16) if dst is None else dst
    return kvcacheio.transfer_kv_per_layer_mla, (src, dst, src_indices, dst_indices, item_size)


def with_kv(**changes):
    arguments = {
        "src_k": HALF,
        "dst_k": torch.zeros_like(HALF),
        "src_v": HALF,
        "dst_v": torch.zeros_like(HALF),
        "src_indices": INDEX,
        "dst_indices": INDEX,
        "item_size": 8,
        **changes,
    }
    return kvcacheio.transfer_kv_per_layer, arguments


def all_layers(src, dst, num_layers=2, indices=INDEX):
    return kvcacheio.transfer_kv_all_layer_mla, (src, dst, indices, indices, 8, num_layers)


def page_first(layer_id=0, item_size=8, layout_dim=16, src=HALF):
    out = torch.zeros(6, 4, dtype=torch.float16)
    return kvcacheio.transfer_kv_per_layer_mla_pf_lf, (
        src,
        out,
        INDEX,
        INDEX,
        layer_id,
        item_size,
        layout_dim,
    )


def page_head(page_size=2, head_num=2, layout_dim=16, pool=None):
    pool = torch.zeros(8, 8, dtype=torch.float16) if pool is None else pool
    return kvcacheio.transfer_kv_per_layer_ph_lf, (
        pool,
        torch.zeros(6, 4, dtype=torch.float16),
        pool.clone(),
        torch.zeros(6, 4, dtype=torch.float16),
        INDEX,
        INDEX,
        0,
        8,
        layout_dim,
        page_size,
        head_num,
    )


def direct(indices=INDEX, page_size=2, sources=None, outs=None):
    sources = [HALF] if sources is None else sources
    outs = [torch.zeros_like(HALF)] if outs is None else outs
    return kvcacheio.transfer_kv_direct, (sources, outs, indices, indices, page_size)


def pages(indices, pools=None, layers=None, layer_id=0, page_size=2):
    pools = [torch.zeros(3, 2, 2, 4, dtype=torch.float16)] if pools is None else pools
    layers = [torch.zeros(8, 4, dtype=torch.float16)] if layers is None else layers
    return kvcacheio.transfer_kv_per_layer_direct_pf_lf, (
        pools,
        layers,
        indices,
        indices,
        layer_id,
        page_size,
    )


@pytest.mark.parametrize(
    "call, words",
    [
        (layer(src=[1, 2]), "`src` must be a torch.Tensor, not list"),
        (layer(dst=torch.zeros(6, 4)), "`src` and `dst` must have the same dtype"),
        (layer(src=HALF.T), "`src` must be contiguous"),
        (layer(dst=HALF[:, ::2]), "`dst` must be contiguous"),
        (layer(dst=HALF.to_sparse()), "`dst` must be contiguous"),
        (layer(src=HALF.to("meta")), "`src` must be in CPU memory or on a CUDA device, not on"),
        (layer(src=negated(HALF)), "`src` is a view whose values differ from its memory"),
        (layer(src_indices=negated(INDEX)), "`src_indices` is a view whose values differ"),
        (layer(src=traced(10, 4)), "`src` has no memory"),
        (layer(dst=traced(6, 4)), "`dst` has no memory"),
        (layer(src_indices=INDEX.short()), "`src_indices` must be of int32 or int64, not torch.i"),
        (layer(dst=apart(6, 8)[:, :3]), "`dst` is a view with rows of 6 bytes, but `item_size`"),
        (layer(dst=apart(1, 4).expand(6, 4)), "`dst` must be contiguous"),
        (with_kv(dst_v=apart(10, 8)), "`dst_k` and `dst_v` must have the same distance of rows"),
        (layer(dst_indices=INDEX[::2]), "must have the same length, not 2 and 1"),
        (layer(dst_indices=torch.arange(8)[::4]), "`dst_indices` must be contiguous"),
        (
            layer(src_indices=torch.tensor([1, 10])),
            r"`src_indices\[1\]` is 10, but `src` has 10 ro",
        ),
        (layer(dst_indices=torch.tensor([6, 0])), r"`dst_indices\[0\]` is 6, but `dst` has 6 rows"),
        (layer(dst_indices=torch.tensor([0, 2**62])), r"`dst_indices\[1\]` is 4611686018427387904"),
        (layer(item_size=0), "`item_size` must be from 1 to"),
        (layer(item_size=-8), "`item_size` must be from 1 to"),
        (layer(item_size=8.0), "`item_size` must be an integer, not 8.0"),
        (layer(item_size=2**70), "`item_size` must be from 1 to"),
        (layer(item_size=6), "`src` has 80 bytes of torch.float16, which is not a whole number"),
        (layer(item_size=5), "`src` has 80 bytes of torch.float16, which is not a whole number"),
        (layer(dst=HALF), "`dst` is written and shares 80 bytes of memory with `src`"),
        (with_kv(dst_v=HALF), "`dst_v` is written and shares 80 bytes of memory with `src_k`"),
        (with_kv(dst_v=torch.zeros(10, 4)), "`src_k` and `dst_v` must have the same dtype"),
        (
            with_kv(src_v=HALF[:9], src_indices=INDEX + 8),
            "is 10, but `src_k` and `src_v` have 9 ro",
        ),
        (all_layers([HALF], [HALF.clone()]), "`src_layers` has 1 layers, but `num_layers` is 2"),
        (all_layers(HALF, [HALF.clone()] * 2), "`src_layers` must be a list of tensors, or a tens"),
        (all_layers(7, [HALF.clone()] * 2), "`src_layers` must be a list of tensors.*not int"),
        (
            all_layers([HALF, HALF], [HALF.clone(), torch.zeros(10, 4)]),
            r"`src_layers\[0\]` and `dst_layers\[1\]` must have the same dtype",
        ),
        (
            all_layers([HALF, HALF], torch.zeros(2, dtype=torch.uint64)),
            r"`dst_layers\[0\]` is the address 0",
        ),
        (all_layers([], [], num_layers=0), "`num_layers` must be from 1 to"),
        (page_first(layer_id=2), "layer 2 of `item_size` = 8 bytes is not among the 2 layers in"),
        (page_first(layer_id=-1), "`layer_id` must be from 0 to"),
        (page_first(layout_dim=24), "which is not a whole number of rows of `src_layout_dim` = 24"),
        (page_head(page_size=3), "`src_k` has 8 rows, which is not a whole number of pages of 3"),
        (page_head(head_num=3), "`item_size` = 8 bytes is not a multiple of `head_num` = 3"),
        (page_head(head_num=0), "`head_num` must be from 1 to"),
        (page_head(page_size=2**33), "`page_size` must be from 1 to 4294967295, not 8589934592"),
        (page_head(head_num=2**40), "`head_num` must be from 1 to 65536"),
        (
            page_head(page_size=2**31, layout_dim=2**40, pool=torch.zeros(0, dtype=torch.float16)),
            "a page of `page_size` = 2147483648 tokens of `src_layout_dim` = .* is larger than",
        ),
        (all_layers([], [], num_layers=2**40), "`num_layers` must be from 1 to 65536"),
        (page_first(layer_id="0"), "`layer_id` must be an integer, not '0'"),
        (direct(page_size=4), "`src_indices` has 2 indices, which are not whole pages of 4"),
        (direct(torch.tensor([1, -1])), "`src_indices` has the negative index -1"),
        (direct(torch.tensor([9, 10])), r"`src_indices\[1\]` is 10, but `src_layers` has 10 rows"),
        (direct(sources=HALF), "`src_layers` must be a list of tensors, not Tensor"),
        (direct(outs=7), "`dst_layers` must be a list of tensors, not int"),
        (pages(torch.tensor([0, 1]), pools=HALF), "`src_ptrs` must be a list of tensors"),
        (direct(outs=[]), "`src_layers` and `dst_layers` must have the same length, not 1 and 0"),
        (
            direct(sources=[HALF[:, :0]], outs=[HALF[:, :0]]),
            r"`src_layers\[0\]` of shape \(10, 0\) has no rows to copy",
        ),
        (pages(torch.tensor([1, 2])), "`src_indices` must name whole pages: the 2 tokens"),
        (pages(torch.tensor([2, 4])), "`src_indices` must name whole pages: the 2 tokens"),
        (pages(torch.tensor([6, 7])), r"`src_indices\[0\]` is 3, but `src_ptrs` has 3 rows"),
        (
            pages(torch.tensor([0, 1]), layer_id=2),
            r"`src_ptrs\[0\]` must have the shape \[page, la",
        ),
        (pages(torch.tensor([0, 1, 2, 3]), page_size=4), r"`src_ptrs\[0\]` must have the shape"),
        (
            pages(torch.tensor([0, 1]), layers=[torch.zeros(8, 2, 2, dtype=torch.float16)]),
            r"`src_ptrs\[0\]` and `dst_ptrs\[0\]` must have the same shape of a row",
        ),
        (pages(torch.tensor([0, 1]), pools=[]), "`src_ptrs` must be one pool, or one of keys"),
    ],
)
def test_invalid_arguments_are_refused_by_name_before_anything_is_copied(call, words):
    function, arguments = call
    given = list(arguments.values()) if isinstance(arguments, dict) else list(arguments)
    tensors = []
    for argument in given:
        tensors += argument if isinstance(argument, list) else [argument]
    tensors = [t for t in tensors if isinstance(t, torch.Tensor) and t.device.type == "cpu"]
    fake = [t for t in tensors if type(t) is not torch.Tensor]
    tensors = [t for t in tensors if type(t) is torch.Tensor]
    assert len(fake) <= 1
    before = [tensor.clone() for tensor in tensors]
    with pytest.raises(InvalidArgumentError, match=words):
        function(**arguments) if isinstance(arguments, dict) else function(*arguments)
    assert all(
        torch.equal(tensor.to_dense(), old.to_dense())
        for tensor, old in zip(tensors, before, strict=True)
    )


def test_indices_at_an_odd_address_are_refused():
    odd = torch.frombuffer(bytearray(64), dtype=torch.uint8)[4:52].numpy().view("<i8")
    odd = torch.from_numpy(odd)
    if odd.data_ptr() % 8 == 0:
        pytest.skip("the address is even")
    out = torch.zeros(6, 4, dtype=torch.float16)
    with pytest.raises(InvalidArgumentError, match="`src_indices` must begin at a multiple of 8"):
        kvcacheio.transfer_kv_per_layer_mla(HALF, out, odd, torch.arange(6), 8)
