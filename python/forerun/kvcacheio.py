"""The row copies of SGLang's `sgl_kernel.kvcacheio`, between tensors in CPU memory and on a GPU.

The functions have SGLang's names, arguments and layouts, so a server changes one import:

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
of tensors are checked; what is behind an address in CPU memory cannot be.

On tensors in CPU memory the copy runs on the CPU, in up to `torch.get_num_threads()` threads. If a
tensor, a table of addresses or both are on a GPU, one launch on the current stream copies all
layers, and the call returns when it is done. CPU memory must be pinned then.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from forerun._forerun import _transfer_rows
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

# The maximum of a size or a distance in bytes, far beyond any memory.
_BYTES_MAX = 1 << 48
# The maximum of layers, and of heads in all layers, of one copy.
_LAYERS_MAX = 1 << 16
# Starting a thread takes as long as copying a few hundred KiB.
_BYTES_PER_THREAD = 4 << 20

# The default of SGLang. All functions accept these two arguments and ignore them: they shape a grid
# of SGLang's kernels. Here the plan of a launch follows from the row size.
_BLOCK_QUOTA = 2
_WARPS_PER_BLOCK = 32


class _Side(NamedTuple):
    """One side of a copy, in the form that `_transfer_rows` reads."""

    # Names of arguments, with the address and the size of each of their tensors. A table of
    # addresses has no sizes.
    arguments: list[tuple[str, list[tuple[int, int | None]]]]
    # Where row 0 of each layer begins in each tensor.
    offsets: list[int]
    # Rows of a layer, if the sizes are known.
    rows: int | None
    stride_bytes: int
    # Rows per page, and bytes from one page to the next.
    pages: tuple[int, int] | None
    # The first tensor of each argument: its type, and the device that holds it.
    devices: list[tuple[str, torch.device]]
    dtypes: list[tuple[str, torch.dtype]]
    # What the copy changes, if this is the destination.
    tensors: list[Tensor]


def _number(name: str, value: int, least: int = 1, most: int = _BYTES_MAX) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgumentError(f"`{name}` must be an integer, not {value!r}") from None
    if not least <= number <= most:
        raise InvalidArgumentError(f"`{name}` must be from {least} to {most}, not {number}")
    return number


def _tensor(name: str, tensor: Tensor) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise InvalidArgumentError(
            f"`{name}` must be a torch.Tensor, not {type(tensor).__qualname__}"
        )
    if tensor.device.type not in ("cpu", "cuda"):
        raise InvalidArgumentError(
            f"`{name}` must be in CPU memory or on a CUDA device, not on {tensor.device}"
        )
    if tensor.layout != torch.strided or not tensor.is_contiguous():
        raise InvalidArgumentError(f"`{name}` must be contiguous: it is copied in place")
    return tensor


def _same(what: str, given: Iterable[tuple[str, object]]) -> None:
    """Checks that all arguments agree."""
    first: tuple[str, object] | None = None
    for name, value in given:
        if first is None:
            first = name, value
        elif value != first[1]:
            raise InvalidArgumentError(
                f"`{first[0]}` and `{name}` must have the same {what}, not {first[1]} and {value}"
            )


def _side(
    arguments: Sequence[tuple[str, Sequence[Tensor]]],
    stride: tuple[str, int],
    offsets: list[int],
    pages: tuple[int, int] | None = None,
    unit_bytes: int | None = None,
) -> _Side:
    """A side whose rows begin every `stride` bytes of each tensor.

    A tensor is a whole number of rows, or of smaller units.
    """
    stride_name, stride_bytes = stride
    unit_bytes = unit_bytes or stride_bytes
    memories: list[tuple[str, list[tuple[int, int | None]]]] = []
    devices: list[tuple[str, torch.device]] = []
    dtypes: list[tuple[str, torch.dtype]] = []
    counts: list[int] = []
    for name, tensors in arguments:
        memory: list[tuple[int, int | None]] = []
        for position, tensor in enumerate(tensors):
            where = name if len(tensors) == 1 else f"{name}[{position}]"
            _tensor(where, tensor)
            if tensor.nbytes % unit_bytes != 0 or unit_bytes % tensor.element_size() != 0:
                raise InvalidArgumentError(
                    f"`{where}` has {tensor.nbytes} bytes of {tensor.dtype}, which is not a whole "
                    f"number of rows of `{stride_name}` = {stride_bytes} bytes"
                )
            count = tensor.nbytes // stride_bytes
            if pages is not None and count % pages[0] != 0:
                raise InvalidArgumentError(
                    f"`{where}` has {count} rows, which is not a whole number of pages of "
                    f"{pages[0]}"
                )
            counts.append(count)
            memory.append((tensor.data_ptr(), tensor.nbytes))
            devices.append((where, tensor.device))
            dtypes.append((where, tensor.dtype))
        memories.append((name, memory))
    tensors = [tensor for _, given in arguments for tensor in given]
    return _Side(
        memories, offsets, min(counts, default=0), stride_bytes, pages, devices, dtypes, tensors
    )


def _layer_first(
    arguments: Sequence[tuple[str, Tensor]], item_size: int, offsets: list[int] | None = None
) -> _Side:
    """One layer of each argument."""
    return _side(
        [(name, [_tensor(name, tensor)]) for name, tensor in arguments],
        ("item_size", _number("item_size", item_size)),
        offsets or [0],
    )


def _layers(
    arguments: Sequence[tuple[str, Tensor | Sequence[Tensor]]],
    item_size: int,
    num_layers: int,
    offsets: list[int] | None = None,
) -> _Side:
    """All layers of each argument: tensors, or a table of their addresses."""
    num_layers = _number("num_layers", num_layers, most=_LAYERS_MAX)
    item_size = _number("item_size", item_size)
    sides: list[_Side] = []
    for name, given in arguments:
        is_table = isinstance(given, Tensor) and given.dtype == torch.uint64 and given.dim() == 1
        if not is_table and (isinstance(given, Tensor) or not isinstance(given, Sequence)):
            found = (
                f"{given.dtype} of shape {tuple(given.shape)}"
                if isinstance(given, Tensor)
                else type(given).__qualname__
            )
            raise InvalidArgumentError(
                f"`{name}` must be a list of tensors, or a tensor of uint64 with one address for "
                f"each layer, not {found}"
            )
        if len(given) != num_layers:
            raise InvalidArgumentError(
                f"`{name}` has {len(given)} layers, but `num_layers` is {num_layers}"
            )
        if not isinstance(given, Tensor):
            sides.append(
                _side(
                    [(name, list(given))],
                    ("item_size", item_size),
                    offsets or [0],
                )
            )
            continue
        table = _tensor(name, given)
        addresses: list[int] = table.tolist()
        if 0 in addresses:
            raise InvalidArgumentError(f"`{name}[{addresses.index(0)}]` is the address 0")
        sides.append(
            _Side(
                [(name, [(address, None) for address in addresses])],
                offsets or [0],
                None,
                item_size,
                None,
                # A table on a GPU holds addresses that the GPU can reach, also of CPU memory.
                [(name, table.device)] if table.is_cuda else [],
                [],
                [],
            )
        )
    known = [side.rows for side in sides if side.rows is not None]
    return sides[0]._replace(
        arguments=[argument for side in sides for argument in side.arguments],
        rows=min(known) if len(known) == len(sides) else None,
        devices=[device for side in sides for device in side.devices],
        dtypes=[dtype for side in sides for dtype in side.dtypes],
        tensors=[tensor for side in sides for tensor in side.tensors],
    )


def _page_first(
    arguments: Sequence[tuple[str, Tensor]],
    layers: range,
    item_size: int,
    layout_dim: tuple[str, int],
) -> _Side:
    """These layers of pools in which the layers of a token are next to each other."""
    name, token_bytes = layout_dim[0], _number(*layout_dim)
    item_size = _number("item_size", item_size)
    _expect_layers(layers, item_size, name, token_bytes)
    return _side(
        [(argument, [_tensor(argument, tensor)]) for argument, tensor in arguments],
        (name, token_bytes),
        [layer * item_size for layer in layers],
    )


def _expect_layers(layers: range, item_size: int, name: str, token_bytes: int) -> None:
    if layers.stop * item_size > token_bytes:
        raise InvalidArgumentError(
            f"layer {layers.stop - 1} of `item_size` = {item_size} bytes is not among the "
            f"{token_bytes // item_size} layers in `{name}` = {token_bytes} bytes"
        )


def _page_head(
    arguments: Sequence[tuple[str, Tensor]],
    layers: range,
    item_size: int,
    layout_dim: tuple[str, int],
    page_size: int,
    head_num: int,
) -> tuple[_Side, int]:
    """These layers of pools in which the heads of a page are apart from each other: every head of
    every layer is a layer of the copy. Also returns the bytes of a head."""
    name, token_bytes = layout_dim[0], _number(*layout_dim)
    item_size = _number("item_size", item_size)
    page_size = _number("page_size", page_size, most=(1 << 32) - 1)
    head_num = _number("head_num", head_num, most=_LAYERS_MAX // len(layers))
    _expect_layers(layers, item_size, name, token_bytes)
    for what, size in (("item_size", item_size), (name, token_bytes)):
        if size % head_num != 0:
            raise InvalidArgumentError(
                f"`{what}` = {size} bytes is not a multiple of `head_num` = {head_num}"
            )
    head_bytes = item_size // head_num
    row_bytes = token_bytes // head_num
    whole = _side(
        [(argument, [_tensor(argument, tensor)]) for argument, tensor in arguments],
        (name, token_bytes),
        [
            layer * head_bytes + head * page_size * row_bytes
            for layer in layers
            for head in range(head_num)
        ],
        (page_size, page_size * token_bytes),
    )
    # Tokens are counted by their size in all heads, but their parts are closer.
    return whole._replace(stride_bytes=row_bytes), head_bytes


def _indices(name: str, indices: Tensor) -> Tensor:
    _tensor(name, indices)
    if indices.dtype != torch.int64:
        raise InvalidArgumentError(f"`{name}` must be of int64, not {indices.dtype}")
    return indices


def _same_lengths(src_indices: Tensor, dst_indices: Tensor) -> None:
    if src_indices.numel() != dst_indices.numel():
        raise InvalidArgumentError(
            f"`src_indices` and `dst_indices` must have the same length, not "
            f"{src_indices.numel()} and {dst_indices.numel()}"
        )


def _transfer(
    source: _Side, destination: _Side, row_bytes: int, src_indices: Tensor, dst_indices: Tensor
) -> None:
    """Copies rows of `row_bytes` bytes in all layers."""
    _same("dtype", [*source.dtypes, *destination.dtypes])
    _same_lengths(_indices("src_indices", src_indices), _indices("dst_indices", dst_indices))
    on_gpu = [
        (name, device)
        for name, device in (*source.devices, *destination.devices)
        if device.type == "cuda"
    ]
    _same("CUDA device", on_gpu)
    stream: int | None = None
    indices_on_device = False
    device = 0
    if on_gpu:
        device = on_gpu[0][1].index or 0
        stream = torch.cuda.current_stream(on_gpu[0][1]).cuda_stream
        # Indices of a copy on a GPU may be in CPU memory, and then both are brought there.
        indices_on_device = src_indices.is_cuda and dst_indices.is_cuda
        if indices_on_device:
            _same(
                "CUDA device",
                [
                    *on_gpu[:1],
                    ("src_indices", src_indices.device),
                    ("dst_indices", dst_indices.device),
                ],
            )
    if not indices_on_device:
        src_indices, dst_indices = src_indices.cpu(), dst_indices.cpu()
    layers = len(source.offsets) * sum(len(memory) for _, memory in source.arguments)
    copied_bytes = src_indices.numel() * row_bytes * layers
    threads = max(1, min(torch.get_num_threads(), copied_bytes // _BYTES_PER_THREAD))
    _transfer_rows(
        source,
        destination,
        row_bytes,
        (src_indices.data_ptr(), src_indices.numel()),
        (dst_indices.data_ptr(), dst_indices.numel()),
        threads,
        device,
        stream,
        indices_on_device,
    )
    # Backward then rejects a tensor that it saved before, as after PyTorch's own functions.
    for tensor in destination.tensors:
        if not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


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
    _transfer(
        _layer_first([("src_k", src_k), ("src_v", src_v)], item_size),
        _layer_first([("dst_k", dst_k), ("dst_v", dst_v)], item_size),
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
    _transfer(
        _page_first(
            [("src_k", src_k), ("src_v", src_v)],
            _one_layer(layer_id),
            item_size,
            ("src_layout_dim", src_layout_dim),
        ),
        _layer_first([("dst_k", dst_k), ("dst_v", dst_v)], item_size),
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
    source, head_bytes = _page_head(
        [("src_k", src_k), ("src_v", src_v)],
        _one_layer(layer_id),
        item_size,
        ("src_layout_dim", src_layout_dim),
        page_size,
        head_num,
    )
    heads = [head * head_bytes for head in range(head_num)]
    _transfer(
        source,
        _layer_first([("dst_k", dst_k), ("dst_v", dst_v)], item_size, heads),
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
    _transfer(
        _layers(
            [("src_k_layers", src_k_layers), ("src_v_layers", src_v_layers)], item_size, num_layers
        ),
        _layers(
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
    _transfer(
        _layers(
            [("src_k_layers", src_k_layers), ("src_v_layers", src_v_layers)], item_size, num_layers
        ),
        _page_first(
            [("dst_k", dst_k), ("dst_v", dst_v)],
            _all_layers(num_layers),
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
    destination, head_bytes = _page_head(
        [("dst_k", dst_k), ("dst_v", dst_v)],
        _all_layers(num_layers),
        item_size,
        ("dst_layout_dim", dst_layout_dim),
        page_size,
        head_num,
    )
    heads = [head * head_bytes for head in range(head_num)]
    _transfer(
        _layers(
            [("src_k_layers", src_k_layers), ("src_v_layers", src_v_layers)],
            item_size,
            num_layers,
            heads,
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
    if len(src_layers) != len(dst_layers):
        raise InvalidArgumentError(
            f"`src_layers` and `dst_layers` must have the same length, not {len(src_layers)} and "
            f"{len(dst_layers)}"
        )
    src_indices, dst_indices = _in_pages(src_indices, dst_indices, page_size)
    if len(src_layers) == 0:
        return
    shapes = [*_shapes("src_layers", src_layers, 1), *_shapes("dst_layers", dst_layers, 1)]
    _same("shape of a row", shapes)
    item_size = _item_bytes("src_layers[0]", src_layers[0], 1)
    _transfer(
        _side([("src_layers", src_layers)], ("src_layers[0].stride(0)", item_size), [0]),
        _side([("dst_layers", dst_layers)], ("src_layers[0].stride(0)", item_size), [0]),
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
    src_indices, dst_indices = _in_pages(src_indices, dst_indices, page_size)
    if len(pools) not in (1, 2) or len(layers) % len(pools) != 0:
        raise InvalidArgumentError(
            f"`{pools_name}` must be one pool, or one of keys and one of values, and "
            f"`{layers_name}` as many layers of each, not {len(pools)} and {len(layers)} tensors"
        )
    if len(layers) == 0:
        return
    layer_id = _number("layer_id", layer_id, 0)
    of_pool = range(layer_id, layer_id + len(layers) // len(pools))
    pool = _tensor(f"{pools_name}[0]", pools[0])
    if pool.dim() < 3 or pool.shape[2] != page_size or of_pool.stop > pool.shape[1]:
        raise InvalidArgumentError(
            f"`{pools_name}[0]` must have the shape [page, layer, token of page, ...] with "
            f"{page_size} tokens per page and at least {of_pool.stop} layers, not "
            f"{tuple(pool.shape)}"
        )
    _same("shape", _shapes(pools_name, pools, 0))
    row = (f"{pools_name}[0]", tuple(pool.shape[3:]))
    _same("shape of a row", [row, *_shapes(layers_name, layers, 1)])
    page_bytes = _item_bytes(f"{pools_name}[0]", pool, 2)
    in_pools = _side(
        [(pools_name, pools)],
        (f"{pools_name}[0].stride(0)", pool.shape[1] * page_bytes),
        [layer * page_bytes for layer in of_pool],
    )
    in_layers = _side(
        [(layers_name, layers)],
        (f"a page of {pools_name}[0]", page_bytes),
        [0],
        unit_bytes=page_bytes // page_size,
    )
    source, destination = (in_layers, in_pools) if to_pools else (in_pools, in_layers)
    _transfer(
        source,
        destination,
        page_bytes,
        _pages("src_indices", src_indices, page_size),
        _pages("dst_indices", dst_indices, page_size),
    )


def _one_layer(layer_id: int) -> range:
    layer_id = _number("layer_id", layer_id, 0)
    return range(layer_id, layer_id + 1)


def _all_layers(num_layers: int) -> range:
    return range(_number("num_layers", num_layers, most=_LAYERS_MAX))


def _shapes(
    name: str, tensors: Sequence[Tensor], dimensions: int
) -> list[tuple[str, tuple[int, ...]]]:
    """The shapes of what the dimensions after the first `dimensions` hold."""
    names = [f"{name}[{position}]" for position in range(len(tensors))]
    return [
        (name, tuple(_tensor(name, tensor).shape[dimensions:]))
        for name, tensor in zip(names, tensors, strict=True)
    ]


def _item_bytes(name: str, tensor: Tensor, dimensions: int) -> int:
    """The bytes of what the dimensions after the first `dimensions` hold."""
    _tensor(name, tensor)
    item = tensor.shape[dimensions:].numel() if tensor.dim() > dimensions else 1
    if tensor.dim() < dimensions or item == 0:
        raise InvalidArgumentError(f"`{name}` of shape {tuple(tensor.shape)} has no rows to copy")
    return item * tensor.element_size()


def _in_pages(src_indices: Tensor, dst_indices: Tensor, page_size: int) -> tuple[Tensor, Tensor]:
    """The indices in CPU memory, after the checks that all direct functions make."""
    page_size = _number("page_size", page_size)
    _same_lengths(_indices("src_indices", src_indices), _indices("dst_indices", dst_indices))
    if src_indices.numel() % page_size != 0:
        raise InvalidArgumentError(
            f"`src_indices` has {src_indices.numel()} indices, which are not whole pages of "
            f"{page_size}"
        )
    both = src_indices.cpu(), dst_indices.cpu()
    for name, indices in zip(("src_indices", "dst_indices"), both, strict=True):
        if indices.numel() > 0 and int(indices.min()) < 0:
            raise InvalidArgumentError(f"`{name}` has the negative index {int(indices.min())}")
    return both


def _pages(name: str, indices: Tensor, page_size: int) -> Tensor:
    """The pages of tokens that are given page by page."""
    tokens = indices.reshape(-1, page_size)
    pages = tokens[:, 0] // page_size
    if not torch.equal(tokens, pages.unsqueeze(1) * page_size + torch.arange(page_size)):
        raise InvalidArgumentError(
            f"`{name}` must name whole pages: the {page_size} tokens of a page in their order, the "
            f"first of them a multiple of {page_size}"
        )
    return pages.contiguous()


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
    _transfer(
        _layer_first([("src", src)], item_size),
        _layer_first([("dst", dst)], item_size),
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
    _transfer(
        _page_first(
            [("src", src)], _one_layer(layer_id), item_size, ("src_layout_dim", src_layout_dim)
        ),
        _layer_first([("dst", dst)], item_size),
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
    _transfer(
        _layers([("src_layers", src_layers)], item_size, num_layers),
        _layers([("dst_layers", dst_layers)], item_size, num_layers),
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
    _transfer(
        _layers([("src_layers", src_layers)], item_size, num_layers),
        _page_first(
            [("dst", dst)], _all_layers(num_layers), item_size, ("dst_layout_dim", dst_layout_dim)
        ),
        item_size,
        src_indices,
        dst_indices,
    )
