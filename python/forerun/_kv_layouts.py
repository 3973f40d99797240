"""The layouts of `forerun.kvcacheio`: from tensors and sizes to the sides of a row copy.

    lf   layer-first   | item | item | ...                            a tensor for each layer
    pf   page-first    | layer 0 | layer 1 | ... | layer 0 | ...      a token after the other
    ph   page-head     | head 0 of a page: token 0 in all layers | token 1 | ... | head 1 | ...

Everything that a cache multiplies is a layer of the copy: keys and values, layers, and heads if
they are apart. All arguments are checked here or in `_transfer_rows`, before anything is copied.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from forerun._forerun import _transfer_rows
from forerun.errors import InvalidArgumentError

# The maximum of a size or a distance in bytes, far beyond any memory.
_BYTES_MAX = 1 << 48
# The maximum of layers, and of heads in all layers, of one copy.
_LAYERS_MAX = 1 << 16
# Starting a thread takes as long as copying a few hundred KiB.
_BYTES_PER_THREAD = 4 << 20


class Side(NamedTuple):
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
    # The tensors that hold the rows, and the tables of addresses, by name.
    tensors: list[tuple[str, Tensor]]
    tables: list[tuple[str, Tensor]]


def checked_number(name: str, value: int, least: int = 1, limit: int = _BYTES_MAX) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgumentError(f"`{name}` must be an integer, not {value!r}") from None
    if not least <= number <= limit:
        raise InvalidArgumentError(f"`{name}` must be from {least} to {limit}, not {number}")
    return number


def checked_tensor(name: str, tensor: Tensor) -> Tensor:
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
    if tensor.is_conj() or tensor.is_neg():
        raise InvalidArgumentError(
            f"`{name}` is a view whose values differ from its memory: use `resolve_conj` or "
            f"`resolve_neg`"
        )
    return tensor


def checked_list(name: str, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    if not isinstance(tensors, Sequence):
        raise InvalidArgumentError(
            f"`{name}` must be a list of tensors, not {type(tensors).__qualname__}"
        )
    return tensors


def address_of(name: str, tensor: Tensor) -> int:
    """The address of the first byte. Tensors that only trace a program have none."""
    try:
        address = tensor.data_ptr()
    except RuntimeError as error:
        raise InvalidArgumentError(f"`{name}` has no memory: {error}") from None
    if address == 0 and tensor.nbytes > 0:
        raise InvalidArgumentError(f"`{name}` has no memory")
    return address


def expect_same(what: str, given: Iterable[tuple[str, object]]) -> None:
    """Checks that all arguments agree."""
    first: tuple[str, object] | None = None
    for name, value in given:
        if first is None:
            first = name, value
        elif value != first[1]:
            raise InvalidArgumentError(
                f"`{first[0]}` and `{name}` must have the same {what}, not {first[1]} and {value}"
            )


def in_rows(
    arguments: Sequence[tuple[str, Sequence[Tensor]]],
    stride: tuple[str, int],
    offsets: list[int],
    pages: tuple[int, int] | None = None,
    unit_bytes: int | None = None,
) -> Side:
    """A side whose rows begin every `stride` bytes of each tensor.

    A tensor is a whole number of rows, or of smaller units.
    """
    stride_name, stride_bytes = stride
    unit_bytes = unit_bytes or stride_bytes
    memories: list[tuple[str, list[tuple[int, int | None]]]] = []
    named: list[tuple[str, Tensor]] = []
    counts: list[int] = []
    for name, tensors in arguments:
        memory: list[tuple[int, int | None]] = []
        for position, tensor in enumerate(tensors):
            where = name if len(tensors) == 1 else f"{name}[{position}]"
            checked_tensor(where, tensor)
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
            memory.append((address_of(where, tensor), tensor.nbytes))
            named.append((where, tensor))
        memories.append((name, memory))
    return Side(memories, offsets, min(counts, default=0), stride_bytes, pages, named, [])


def layer_first(
    arguments: Sequence[tuple[str, Tensor]], item_size: int, offsets: list[int] | None = None
) -> Side:
    """One layer of each argument."""
    return in_rows(
        [(name, [checked_tensor(name, tensor)]) for name, tensor in arguments],
        ("item_size", checked_number("item_size", item_size)),
        offsets or [0],
    )


def layer_tensors(
    arguments: Sequence[tuple[str, Tensor | Sequence[Tensor]]],
    item_size: int,
    num_layers: int,
    offsets: list[int] | None = None,
) -> Side:
    """All layers of each argument: tensors, or a table of their addresses."""
    num_layers = checked_number("num_layers", num_layers, limit=_LAYERS_MAX)
    item_size = checked_number("item_size", item_size)
    sides: list[Side] = []
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
                in_rows(
                    [(name, list(given))],
                    ("item_size", item_size),
                    offsets or [0],
                )
            )
            continue
        table = checked_tensor(name, given)
        addresses: list[int] = table.tolist()
        if 0 in addresses:
            raise InvalidArgumentError(f"`{name}[{addresses.index(0)}]` is the address 0")
        sides.append(
            Side(
                [(name, [(address, None) for address in addresses])],
                offsets or [0],
                None,
                item_size,
                None,
                [],
                [(name, table)],
            )
        )
    known = [side.rows for side in sides if side.rows is not None]
    return sides[0]._replace(
        arguments=[argument for side in sides for argument in side.arguments],
        rows=min(known) if len(known) == len(sides) else None,
        tensors=[tensor for side in sides for tensor in side.tensors],
        tables=[table for side in sides for table in side.tables],
    )


def page_first(
    arguments: Sequence[tuple[str, Tensor]],
    layers: range,
    item_size: int,
    layout_dim: tuple[str, int],
) -> Side:
    """These layers of pools in which the layers of a token are next to each other."""
    name, token_bytes = layout_dim[0], checked_number(*layout_dim)
    item_size = checked_number("item_size", item_size)
    expect_layers(layers, item_size, name, token_bytes)
    return in_rows(
        [(argument, [checked_tensor(argument, tensor)]) for argument, tensor in arguments],
        (name, token_bytes),
        [layer * item_size for layer in layers],
    )


def expect_layers(layers: range, item_size: int, name: str, token_bytes: int) -> None:
    if layers.stop * item_size > token_bytes:
        raise InvalidArgumentError(
            f"layer {layers.stop - 1} of `item_size` = {item_size} bytes is not among the "
            f"{token_bytes // item_size} layers in `{name}` = {token_bytes} bytes"
        )


def page_head(
    arguments: Sequence[tuple[str, Tensor]],
    layers: range,
    item_size: int,
    layout_dim: tuple[str, int],
    page_size: int,
    head_num: int,
) -> tuple[Side, int]:
    """These layers of pools in which the heads of a page are apart from each other: every head of
    every layer is a layer of the copy. Also returns the bytes of a head."""
    name, token_bytes = layout_dim[0], checked_number(*layout_dim)
    item_size = checked_number("item_size", item_size)
    page_size = checked_number("page_size", page_size, limit=(1 << 32) - 1)
    head_num = checked_number("head_num", head_num, limit=_LAYERS_MAX // len(layers))
    expect_layers(layers, item_size, name, token_bytes)
    for what, size in (("item_size", item_size), (name, token_bytes)):
        if size % head_num != 0:
            raise InvalidArgumentError(
                f"`{what}` = {size} bytes is not a multiple of `head_num` = {head_num}"
            )
    if page_size * token_bytes > _BYTES_MAX:
        raise InvalidArgumentError(
            f"a page of `page_size` = {page_size} tokens of `{name}` = {token_bytes} bytes is "
            f"larger than {_BYTES_MAX} bytes"
        )
    head_bytes = item_size // head_num
    row_bytes = token_bytes // head_num
    whole = in_rows(
        [(argument, [checked_tensor(argument, tensor)]) for argument, tensor in arguments],
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


def one_layer(layer_id: int) -> range:
    layer_id = checked_number("layer_id", layer_id, 0)
    return range(layer_id, layer_id + 1)


def all_layers(num_layers: int) -> range:
    return range(checked_number("num_layers", num_layers, limit=_LAYERS_MAX))


def shapes_of(
    name: str, tensors: Sequence[Tensor], dimensions: int
) -> list[tuple[str, tuple[int, ...]]]:
    """The shapes of what the dimensions after the first `dimensions` hold."""
    names = [f"{name}[{position}]" for position in range(len(tensors))]
    return [
        (name, tuple(checked_tensor(name, tensor).shape[dimensions:]))
        for name, tensor in zip(names, tensors, strict=True)
    ]


def item_bytes(name: str, tensor: Tensor, dimensions: int) -> int:
    """The bytes of what the dimensions after the first `dimensions` hold."""
    checked_tensor(name, tensor)
    item = tensor.shape[dimensions:].numel() if tensor.dim() > dimensions else 1
    if tensor.dim() < dimensions or item == 0:
        raise InvalidArgumentError(f"`{name}` of shape {tuple(tensor.shape)} has no rows to copy")
    return item * tensor.element_size()


def checked_indices(name: str, indices: Tensor) -> Tensor:
    checked_tensor(name, indices)
    if indices.dtype != torch.int64:
        raise InvalidArgumentError(f"`{name}` must be of int64, not {indices.dtype}")
    return indices


def expect_same_lengths(src_indices: Tensor, dst_indices: Tensor) -> None:
    if src_indices.numel() != dst_indices.numel():
        raise InvalidArgumentError(
            f"`src_indices` and `dst_indices` must have the same length, not "
            f"{src_indices.numel()} and {dst_indices.numel()}"
        )


def transfer(
    source: Side, destination: Side, row_bytes: int, src_indices: Tensor, dst_indices: Tensor
) -> None:
    """Copies rows of `row_bytes` bytes in all layers."""
    tensors = [*source.tensors, *destination.tensors]
    expect_same("dtype", [(name, tensor.dtype) for name, tensor in tensors])
    expect_same_lengths(
        checked_indices("src_indices", src_indices), checked_indices("dst_indices", dst_indices)
    )
    # A table on a GPU holds addresses that the GPU can reach, of its own memory or of the CPU's.
    on_gpu = [
        (name, tensor.device)
        for name, tensor in (*tensors, *source.tables, *destination.tables)
        if tensor.is_cuda
    ]
    expect_same("CUDA device", on_gpu)
    for name, tensor in tensors if on_gpu else ():
        if not (tensor.is_cuda or tensor.numel() == 0 or tensor.is_pinned()):
            raise InvalidArgumentError(
                f"`{name}` must be in pinned memory, because the copy runs on {on_gpu[0][1]}: use "
                f"`pin_memory`"
            )
    stream: int | None = None
    indices_on_device = False
    device = 0
    if on_gpu:
        device = on_gpu[0][1].index or 0
        stream = torch.cuda.current_stream(on_gpu[0][1]).cuda_stream
        # Indices of a copy on a GPU may be in CPU memory, and then both are brought there.
        indices_on_device = src_indices.is_cuda and dst_indices.is_cuda
        if indices_on_device:
            expect_same(
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
        (address_of("src_indices", src_indices), src_indices.numel()),
        (address_of("dst_indices", dst_indices), dst_indices.numel()),
        threads,
        device,
        stream,
        indices_on_device,
    )
    # Backward then rejects a tensor that it saved before, as after PyTorch's own functions.
    for _, tensor in destination.tensors:
        if not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


def in_pages(src_indices: Tensor, dst_indices: Tensor, page_size: int) -> tuple[Tensor, Tensor]:
    """The indices in CPU memory, after the checks that all direct functions make."""
    page_size = checked_number("page_size", page_size)
    expect_same_lengths(
        checked_indices("src_indices", src_indices), checked_indices("dst_indices", dst_indices)
    )
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


def pages_of(name: str, indices: Tensor, page_size: int) -> Tensor:
    """The pages of tokens that are given page by page."""
    tokens = indices.reshape(-1, page_size)
    pages = tokens[:, 0] // page_size
    if not torch.equal(tokens, pages.unsqueeze(1) * page_size + torch.arange(page_size)):
        raise InvalidArgumentError(
            f"`{name}` must name whole pages: the {page_size} tokens of a page in their order, the "
            f"first of them a multiple of {page_size}"
        )
    return pages.contiguous()
