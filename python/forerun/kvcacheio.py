"""The row copies of SGLang's `sgl_kernel.kvcacheio`, between tensors in CPU memory and on a GPU.

The functions have SGLang's names, arguments and layouts. `forerun.hicache` has the newer ones.

>>> import torch
>>> from forerun.kvcacheio import transfer_kv_per_layer_mla
>>> host = torch.arange(40, dtype=torch.uint8).reshape(10, 4)
>>> pool = torch.zeros(3, 4, dtype=torch.uint8)
>>> rows, slots = torch.tensor([7, 2]), torch.tensor([0, 2])
>>> transfer_kv_per_layer_mla(host, pool, rows, slots, item_size=4)
>>> pool.tolist()
[[28, 29, 30, 31], [0, 0, 0, 0], [8, 9, 10, 11]]

They follow SGLang's commits 0ba3cdd474639a50317df43db246ca3351fbeecf (kvcacheio.py) and
1243cf3da37cb08cb73faa12db09653eb997d142 (transfer.cu). Row `src_indices[i]` is copied to row
`dst_indices[i]`; a row is the `item_size` bytes of one token in one layer:

    lf  layer-first   a tensor for each layer       [token, item]
    pf  page-first    one tensor for all layers     [token, layer, item], `layout_dim` bytes a token
    ph  page-head     one tensor for all layers     [page, head, token of page, layer, item of head]
    direct pf         one tensor for all layers     [page, layer, token of page, item]

`layers` arguments are tensors of `uint64` addresses, as in SGLang, or lists of tensors. The sizes
of tensors are checked; what is behind an address in CPU memory cannot be. A layer's tensor may be a
view whose rows are contiguous, such as one layer of a page-first pool.

On tensors in CPU memory the copy runs on the CPU, in up to `torch.get_num_threads()` threads. If a
tensor, a table of addresses or both are on a GPU, the copy of all layers is put on the current
stream, and the call returns, as SGLang's do. CPU memory must be pinned then. A call can be captured
in a CUDA graph, once an earlier one has loaded the kernels and read its tables.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from forerun import _kv_layouts as _kv
from forerun.errors import InvalidArgumentError

__all__ = [
    "transfer_kv_all_layer",
    "transfer_kv_all_layer_direct_lf_pf",
    "transfer_kv_all_layer_lf_pf",
    "transfer_kv_all_layer_lf_ph",
    "transfer_kv_all_layer_mla",
    "transfer_kv_all_layer_mla_lf_pf",
    "transfer_kv_direct",
    "transfer_kv_per_layer",
    "transfer_kv_per_layer_direct_pf_lf",
    "transfer_kv_per_layer_mla",
    "transfer_kv_per_layer_mla_pf_lf",
    "transfer_kv_per_layer_pf_lf",
    "transfer_kv_per_layer_ph_lf",
]

# The default of SGLang. All functions accept these two arguments and ignore them: they shape a grid
# of SGLang's kernels. Here the plan of a launch follows from the row size.
_BLOCK_QUOTA = 2
_WARPS_PER_BLOCK = 32


def transfer_kv_per_layer(
    src_k: Tensor,
    dst_k: Tensor,
    src_v: Tensor,
    dst_v: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    item_size: int,
    block_quota: int = _BLOCK_QUOTA,
    num_warps_per_block: int = _WARPS_PER_BLOCK,
) -> None:
    """Copies rows of the keys and the values of one layer."""
    _kv.transfer(
        _kv.layer_first([("src_k", src_k), ("src_v", src_v)], item_size),
        _kv.layer_first([("dst_k", dst_k), ("dst_v", dst_v)], item_size),
        item_size,
        src_indices,
        dst_indices,
    )


def transfer_kv_per_layer_pf_lf(
    src_k: Tensor,
    dst_k: Tensor,
    src_v: Tensor,
    dst_v: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    layer_id: int,
    item_size: int,
    src_layout_dim: int,
    block_quota: int = _BLOCK_QUOTA,
    num_warps_per_block: int = _WARPS_PER_BLOCK,
) -> None:
    """Copies rows of layer `layer_id` from page-first pools to that layer's tensors."""
    _kv.transfer(
        _kv.page_first(
            [("src_k", src_k), ("src_v", src_v)],
            _kv.one_layer(layer_id),
            item_size,
            ("src_layout_dim", src_layout_dim),
        ),
        _kv.layer_first([("dst_k", dst_k), ("dst_v", dst_v)], item_size),
        item_size,
        src_indices,
        dst_indices,
    )


def transfer_kv_per_layer_ph_lf(
    src_k: Tensor,
    dst_k: Tensor,
    src_v: Tensor,
    dst_v: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    layer_id: int,
    item_size: int,
    src_layout_dim: int,
    page_size: int,
    head_num: int,
    block_quota: int = _BLOCK_QUOTA,
    num_warps_per_block: int = _WARPS_PER_BLOCK,
) -> None:
    """Copies rows of layer `layer_id` from page-head pools to that layer's tensors."""
    source, head_bytes = _kv.page_head(
        [("src_k", src_k), ("src_v", src_v)],
        _kv.one_layer(layer_id),
        item_size,
        ("src_layout_dim", src_layout_dim),
        page_size,
        head_num,
    )
    head_offsets = [head * head_bytes for head in range(head_num)]
    _kv.transfer(
        source,
        _kv.layer_first([("dst_k", dst_k), ("dst_v", dst_v)], item_size, head_offsets),
        head_bytes,
        src_indices,
        dst_indices,
    )


def transfer_kv_all_layer(
    src_k_layers: Tensor | Sequence[Tensor],
    dst_k_layers: Tensor | Sequence[Tensor],
    src_v_layers: Tensor | Sequence[Tensor],
    dst_v_layers: Tensor | Sequence[Tensor],
    src_indices: Tensor,
    dst_indices: Tensor,
    item_size: int,
    num_layers: int,
    block_quota: int = _BLOCK_QUOTA,
    num_warps_per_block: int = _WARPS_PER_BLOCK,
) -> None:
    """Copies rows of the keys and the values of all layers, which have a tensor each."""
    _kv.transfer(
        _kv.layer_tensors(
            [("src_k_layers", src_k_layers), ("src_v_layers", src_v_layers)], item_size, num_layers
        ),
        _kv.layer_tensors(
            [("dst_k_layers", dst_k_layers), ("dst_v_layers", dst_v_layers)], item_size, num_layers
        ),
        item_size,
        src_indices,
        dst_indices,
    )


def transfer_kv_all_layer_lf_pf(
    src_k_layers: Tensor | Sequence[Tensor],
    dst_k: Tensor,
    src_v_layers: Tensor | Sequence[Tensor],
    dst_v: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    item_size: int,
    dst_layout_dim: int,
    num_layers: int,
    block_quota: int = _BLOCK_QUOTA,
    num_warps_per_block: int = _WARPS_PER_BLOCK,
) -> None:
    """Copies rows of all layers from a tensor for each layer to page-first pools."""
    _kv.transfer(
        _kv.layer_tensors(
            [("src_k_layers", src_k_layers), ("src_v_layers", src_v_layers)], item_size, num_layers
        ),
        _kv.page_first(
            [("dst_k", dst_k), ("dst_v", dst_v)],
            _kv.all_layers(num_layers),
            item_size,
            ("dst_layout_dim", dst_layout_dim),
        ),
        item_size,
        src_indices,
        dst_indices,
    )


def transfer_kv_all_layer_lf_ph(
    src_k_layers: Tensor | Sequence[Tensor],
    dst_k: Tensor,
    src_v_layers: Tensor | Sequence[Tensor],
    dst_v: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    item_size: int,
    dst_layout_dim: int,
    num_layers: int,
    page_size: int,
    head_num: int,
    block_quota: int = _BLOCK_QUOTA,
    num_warps_per_block: int = _WARPS_PER_BLOCK,
) -> None:
    """Copies rows of all layers from a tensor for each layer to page-head pools."""
    destination, head_bytes = _kv.page_head(
        [("dst_k", dst_k), ("dst_v", dst_v)],
        _kv.all_layers(num_layers),
        item_size,
        ("dst_layout_dim", dst_layout_dim),
        page_size,
        head_num,
    )
    head_offsets = [head * head_bytes for head in range(head_num)]
    _kv.transfer(
        _kv.layer_tensors(
            [("src_k_layers", src_k_layers), ("src_v_layers", src_v_layers)],
            item_size,
            num_layers,
            head_offsets,
        ),
        destination,
        head_bytes,
        src_indices,
        dst_indices,
    )


def transfer_kv_direct(
    src_layers: Sequence[Tensor],
    dst_layers: Sequence[Tensor],
    src_indices: Tensor,
    dst_indices: Tensor,
    page_size: int,
) -> None:
    """Copies rows of all layers, which have a tensor each, keys and values alike.

    The indices are those of tokens, in whole pages.
    """
    src_layers = _kv.checked_list("src_layers", src_layers)
    dst_layers = _kv.checked_list("dst_layers", dst_layers)
    if len(src_layers) != len(dst_layers):
        raise InvalidArgumentError(
            f"`src_layers` and `dst_layers` must have the same length, not {len(src_layers)} and "
            f"{len(dst_layers)}"
        )
    src_indices, dst_indices = _kv.in_pages(src_indices, dst_indices, page_size)
    if len(src_layers) == 0:
        return
    shapes = [
        *_kv.shapes_of("src_layers", src_layers, 1),
        *_kv.shapes_of("dst_layers", dst_layers, 1),
    ]
    _kv.expect_same("shape of a row", shapes)
    item_size = _kv.item_bytes("src_layers[0]", src_layers[0], 1)
    _kv.transfer(
        _kv.in_rows([("src_layers", src_layers)], ("src_layers[0].stride(0)", item_size), [0]),
        _kv.in_rows([("dst_layers", dst_layers)], ("src_layers[0].stride(0)", item_size), [0]),
        item_size,
        src_indices,
        dst_indices,
    )


def transfer_kv_per_layer_direct_pf_lf(
    src_ptrs: Sequence[Tensor],
    dst_ptrs: Sequence[Tensor],
    src_indices: Tensor,
    dst_indices: Tensor,
    layer_id: int,
    page_size: int,
) -> None:
    """Copies pages from pools of shape [page, layer, token of page, ...] to a tensor for each
    layer, from layer `layer_id` on.

    `src_ptrs` holds the pool of keys and that of values, or one pool. `dst_ptrs` holds the layers
    of the keys, then those of the values.
    """
    _direct(src_ptrs, dst_ptrs, src_indices, dst_indices, layer_id, page_size, to_pools=False)


def transfer_kv_all_layer_direct_lf_pf(
    src_ptrs: Sequence[Tensor],
    dst_ptrs: Sequence[Tensor],
    src_indices: Tensor,
    dst_indices: Tensor,
    page_size: int,
) -> None:
    """Copies pages from a tensor for each layer to pools of shape [page, layer, token of page, ...]
    that hold all of them: the reverse of `transfer_kv_per_layer_direct_pf_lf`."""
    _direct(dst_ptrs, src_ptrs, src_indices, dst_indices, 0, page_size, to_pools=True)


def transfer_kv_per_layer_mla(
    src: Tensor,
    dst: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    item_size: int,
    block_quota: int = _BLOCK_QUOTA,
    num_warps_per_block: int = _WARPS_PER_BLOCK,
) -> None:
    """`transfer_kv_per_layer` for a cache that has one tensor instead of keys and values."""
    _kv.transfer(
        _kv.layer_first([("src", src)], item_size),
        _kv.layer_first([("dst", dst)], item_size),
        item_size,
        src_indices,
        dst_indices,
    )


def transfer_kv_per_layer_mla_pf_lf(
    src: Tensor,
    dst: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    layer_id: int,
    item_size: int,
    src_layout_dim: int,
    block_quota: int = _BLOCK_QUOTA,
    num_warps_per_block: int = _WARPS_PER_BLOCK,
) -> None:
    """`transfer_kv_per_layer_pf_lf` for a cache that has one tensor instead of keys and values."""
    _kv.transfer(
        _kv.page_first(
            [("src", src)], _kv.one_layer(layer_id), item_size, ("src_layout_dim", src_layout_dim)
        ),
        _kv.layer_first([("dst", dst)], item_size),
        item_size,
        src_indices,
        dst_indices,
    )


def transfer_kv_all_layer_mla(
    src_layers: Tensor | Sequence[Tensor],
    dst_layers: Tensor | Sequence[Tensor],
    src_indices: Tensor,
    dst_indices: Tensor,
    item_size: int,
    num_layers: int,
    block_quota: int = _BLOCK_QUOTA,
    num_warps_per_block: int = _WARPS_PER_BLOCK,
) -> None:
    """`transfer_kv_all_layer` for a cache that has one tensor instead of keys and values."""
    _kv.transfer(
        _kv.layer_tensors([("src_layers", src_layers)], item_size, num_layers),
        _kv.layer_tensors([("dst_layers", dst_layers)], item_size, num_layers),
        item_size,
        src_indices,
        dst_indices,
    )


def transfer_kv_all_layer_mla_lf_pf(
    src_layers: Tensor | Sequence[Tensor],
    dst: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    item_size: int,
    dst_layout_dim: int,
    num_layers: int,
    block_quota: int = _BLOCK_QUOTA,
    num_warps_per_block: int = _WARPS_PER_BLOCK,
) -> None:
    """`transfer_kv_all_layer_lf_pf` for a cache that has one tensor instead of keys and values."""
    _kv.transfer(
        _kv.layer_tensors([("src_layers", src_layers)], item_size, num_layers),
        _kv.page_first(
            [("dst", dst)],
            _kv.all_layers(num_layers),
            item_size,
            ("dst_layout_dim", dst_layout_dim),
        ),
        item_size,
        src_indices,
        dst_indices,
    )


def _direct(
    pools: Sequence[Tensor],
    layers: Sequence[Tensor],
    src_indices: Tensor,
    dst_indices: Tensor,
    layer_id: int,
    page_size: int,
    to_pools: bool,
) -> None:
    """Copies pages between pools and layers. A row is a page of one layer."""
    pools_name, layers_name = ("dst_ptrs", "src_ptrs") if to_pools else ("src_ptrs", "dst_ptrs")
    pools, layers = _kv.checked_list(pools_name, pools), _kv.checked_list(layers_name, layers)
    src_indices, dst_indices = _kv.in_pages(src_indices, dst_indices, page_size)
    if len(pools) not in (1, 2) or len(layers) % len(pools) != 0:
        raise InvalidArgumentError(
            f"`{pools_name}` must be one pool, or one of keys and one of values, and "
            f"`{layers_name}` as many layers of each, not {len(pools)} and {len(layers)} tensors"
        )
    if len(layers) == 0:
        return
    layer_id = _kv.checked_number("layer_id", layer_id, 0)
    of_pool = range(layer_id, layer_id + len(layers) // len(pools))
    pool = _kv.checked_tensor(f"{pools_name}[0]", pools[0])
    if pool.dim() < 3 or pool.shape[2] != page_size or of_pool.stop > pool.shape[1]:
        raise InvalidArgumentError(
            f"`{pools_name}[0]` must have the shape [page, layer, token of page, ...] with "
            f"{page_size} tokens per page and at least {of_pool.stop} layers, not "
            f"{tuple(pool.shape)}"
        )
    _kv.expect_same("shape", _kv.shapes_of(pools_name, pools, 0))
    row = (f"{pools_name}[0]", tuple(pool.shape[3:]))
    _kv.expect_same("shape of a row", [row, *_kv.shapes_of(layers_name, layers, 1)])
    page_bytes = _kv.item_bytes(f"{pools_name}[0]", pool, 2)
    in_pools = _kv.in_rows(
        [(pools_name, pools)],
        (f"{pools_name}[0].stride(0)", pool.shape[1] * page_bytes),
        [layer * page_bytes for layer in of_pool],
    )
    in_layers = _kv.in_rows(
        [(layers_name, layers)],
        (f"a page of {pools_name}[0]", page_bytes),
        [0],
        unit_bytes=page_bytes // page_size,
    )
    source, destination = (in_layers, in_pools) if to_pools else (in_pools, in_layers)
    _kv.transfer(
        source,
        destination,
        page_bytes,
        _kv.pages_of("src_indices", src_indices, page_size),
        _kv.pages_of("dst_indices", dst_indices, page_size),
    )
