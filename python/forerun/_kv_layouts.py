"""The layouts of `forerun.kvcacheio`: from tensors and sizes to the sides of a row copy.

    lf   layer-first   | item | item | ...                            a tensor for each layer
    pf   page-first    | layer 0 | layer 1 | ... | layer 0 | ...      a token after the other
    ph   page-head     | head 0 of a page: token 0 in all layers | token 1 | ... | head 1 | ...

Everything that a cache multiplies is a layer of the copy: keys and values, layers, and heads if
they are apart. All arguments are checked here or in `_transfer_rows`, before anything is copied.
"""

from __future__ import annotations

import operator
import weakref
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


def checked_tensor(name: str, tensor: Tensor, strided: bool = False) -> Tensor:
    """The tensor, if its memory can be used in place. With `strided`, only its rows, along the
    first dimension, are contiguous."""
    if not isinstance(tensor, Tensor):
        raise InvalidArgumentError(
            f"`{name}` must be a torch.Tensor, not {type(tensor).__qualname__}"
        )
    if tensor.device.type not in ("cpu", "cuda"):
        raise InvalidArgumentError(
            f"`{name}` must be in CPU memory or on a CUDA device, not on {tensor.device}"
        )
    if tensor.layout != torch.strided or not (
        tensor.is_contiguous() or (strided and has_contiguous_rows(tensor))
    ):
        raise InvalidArgumentError(
            f"`{name}` must be contiguous{', or have contiguous rows' if strided else ''}: it is "
            f"copied in place"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise InvalidArgumentError(
            f"`{name}` is a view whose values differ from its memory: use `resolve_conj` or "
            f"`resolve_neg`"
        )
    return tensor


def has_contiguous_rows(tensor: Tensor) -> bool:
    """Whether the rows along the first dimension are contiguous and do not overlap."""
    if tensor.dim() < 2 or tensor.numel() == 0:
        return False
    return tensor[0].is_contiguous() and tensor.stride(0) >= tensor[0].numel()


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
    strided: bool = False,
) -> Side:
    """A side whose rows begin every `stride` bytes of each tensor.

    A tensor is a whole number of rows, or of smaller units. With `strided`, each tensor may be a
    view whose rows are further apart, equally in all tensors.
    """
    stride_name, stride_bytes = stride
    unit_bytes = unit_bytes or stride_bytes
    distances: list[tuple[str, int]] = []
    memories: list[tuple[str, list[tuple[int, int | None]]]] = []
    named: list[tuple[str, Tensor]] = []
    counts: list[int] = []
    for name, tensors in arguments:
        memory: list[tuple[int, int | None]] = []
        for position, tensor in enumerate(tensors):
            where = name if len(tensors) == 1 else f"{name}[{position}]"
            checked_tensor(where, tensor, strided)
            if not tensor.is_contiguous():
                row_bytes = tensor[0].numel() * tensor.element_size()
                if row_bytes != stride_bytes:
                    raise InvalidArgumentError(
                        f"`{where}` is a view with rows of {row_bytes} bytes, but `{stride_name}` "
                        f"is {stride_bytes} bytes"
                    )
                distance = tensor.stride(0) * tensor.element_size()
                distances.append((where, distance))
                counts.append(tensor.shape[0])
                extent = (tensor.shape[0] - 1) * distance + row_bytes
                memory.append((address_of(where, tensor), extent))
                named.append((where, tensor))
                continue
            if tensor.shape[:1] != (1,) or tensor.nbytes != stride_bytes:
                distances.append((where, stride_bytes))
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
    expect_same("distance of rows in bytes", distances)
    distance = distances[0][1] if distances else stride_bytes
    return Side(memories, offsets, min(counts, default=0), distance, pages, named, [])


def layer_first(
    arguments: Sequence[tuple[str, Tensor]], item_size: int, offsets: list[int] | None = None
) -> Side:
    """One layer of each argument."""
    return in_rows(
        [(name, [tensor]) for name, tensor in arguments],
        ("item_size", checked_number("item_size", item_size)),
        offsets or [0],
        strided=True,
    )


def layer_tensors(
    arguments: Sequence[tuple[str, Tensor | Sequence[Tensor]]],
    item_size: int,
    num_layers: int,
    offsets: list[int] | None = None,
    distance: tuple[str, int] | None = None,
) -> Side:
    """All layers of each argument: tensors, or a table of their addresses.

    Rows behind addresses are `distance` bytes apart, by default `item_size`.
    """
    num_layers = checked_number("num_layers", num_layers, limit=_LAYERS_MAX)
    item_size = checked_number("item_size", item_size)
    stride_bytes = checked_number(*distance) if distance else item_size
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
                    strided=True,
                )
            )
            continue
        table = checked_tensor(name, given)
        addresses = addresses_in(name, table)
        sides.append(
            Side(
                [(name, [(address, None) for address in addresses])],
                offsets or [0],
                None,
                stride_bytes,
                None,
                [],
                [(name, table)],
            )
        )
    expect_same(
        "distance of rows in bytes",
        [(side.arguments[0][0], side.stride_bytes) for side in sides],
    )
    known = [side.rows for side in sides if side.rows is not None]
    return sides[0]._replace(
        arguments=[argument for side in sides for argument in side.arguments],
        rows=min(known) if len(known) == len(sides) else None,
        tensors=[tensor for side in sides for tensor in side.tensors],
        tables=[table for side in sides for table in side.tables],
    )


# What tables on a GPU hold. To read one waits for its stream, so each is read once. The key is the
# tensor that the table is, or is a view of, and the place in it.
_TABLES: dict[tuple[int, int, int], tuple[weakref.ref[Tensor], int, list[int]]] = {}


def addresses_in(name: str, table: Tensor) -> list[int]:
    """The addresses in a table, checked. A table on a GPU is read when it is first used, and again
    after PyTorch has changed it."""
    if not table.is_cuda:
        return checked_addresses(name, table.tolist())
    owner = table if table._base is None else table._base
    # An inference tensor has no version. It is not expected to change.
    version = -1 if owner.is_inference() else owner._version
    key = id(owner), table.data_ptr(), table.numel()
    known = _TABLES.get(key)
    if known is None or known[0]() is not owner or known[1] != version:
        addresses = checked_addresses(name, table.tolist())
        known = weakref.ref(owner, lambda _: _TABLES.pop(key, None)), version, addresses
        _TABLES[key] = known
    return known[2]


def checked_addresses(name: str, addresses: list[int]) -> list[int]:
    if 0 in addresses:
        raise InvalidArgumentError(f"`{name}[{addresses.index(0)}]` is the address 0")
    return addresses


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
    if indices.dtype not in (torch.int32, torch.int64):
        raise InvalidArgumentError(f"`{name}` must be of int32 or int64, not {indices.dtype}")
    return indices


def expect_same_lengths(src_indices: Tensor, dst_indices: Tensor) -> None:
    if src_indices.numel() != dst_indices.numel():
        raise InvalidArgumentError(
            f"`src_indices` and `dst_indices` must have the same length, not "
            f"{src_indices.numel()} and {dst_indices.numel()}"
        )


def place_of(name: str, indices: Tensor) -> tuple[int, int, int | None]:
    """Address and number of indices, and the size of one if they are on a GPU."""
    width = indices.element_size() if indices.is_cuda else None
    return address_of(name, indices), indices.numel(), width


def transfer(
    source: Side, destination: Side, row_bytes: int, src_indices: Tensor, dst_indices: Tensor
) -> None:
    """Copies rows of `row_bytes` bytes in all layers. On a GPU, the copy is put on the current
    stream."""
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
    device = 0
    stream: torch.cuda.Stream | None = None
    if on_gpu:
        device = on_gpu[0][1].index or 0
        stream = torch.cuda.current_stream(on_gpu[0][1])
        indices = ("src_indices", src_indices), ("dst_indices", dst_indices)
        expect_same(
            "CUDA device",
            [*on_gpu[:1], *((name, index.device) for name, index in indices if index.is_cuda)],
        )
    else:
        src_indices, dst_indices = src_indices.cpu(), dst_indices.cpu()
    if not (src_indices.is_cuda and dst_indices.is_cuda and src_indices.dtype == dst_indices.dtype):
        # A tensor that this makes on the GPU is freed in the order of the current stream.
        src_indices, dst_indices = src_indices.to(torch.int64), dst_indices.to(torch.int64)
    layers = len(source.offsets) * sum(len(memory) for _, memory in source.arguments)
    copied_bytes = src_indices.numel() * row_bytes * layers
    threads = max(1, min(torch.get_num_threads(), copied_bytes // _BYTES_PER_THREAD))
    _transfer_rows(
        source,
        destination,
        row_bytes,
        place_of("src_indices", src_indices),
        place_of("dst_indices", dst_indices),
        threads,
        device,
        None if stream is None else stream.cuda_stream,
        None if stream is None else [tensor for _, tensor in tensors if not tensor.is_cuda],
    )
    if stream is not None and stream.cuda_stream != 0:
        # Memory of another stream must not be given to others before this one has used it.
        for tensor in (src_indices, dst_indices, *(tensor for _, tensor in tensors)):
            if tensor.is_cuda:
                tensor.record_stream(stream)
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
    # Whole pages are checked on the CPU, which waits for indices on a GPU.
    both = src_indices.cpu().to(torch.int64), dst_indices.cpu().to(torch.int64)
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
