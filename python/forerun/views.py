"""Views of the keys, the values and the entries of a store or a cache.

They are like the views of a dict: they hold no entries, and show what the store or the cache
contains when they are used. Each iterator over a view of a store sees the store as of the moment
when the iterator was made.

    iter, reversed    one pass over the range
    len               of a store: one pass over the range; of a cache: a figure that it keeps
    bool              the first step of an iterator
    in                keys, items: one lookup; values: a pass over the range up to the first match
    ==, <=, <         keys, items: one pass over the range, and one lookup for each other entry

`list(view)` calls `len(view)` first, to reserve memory, and so makes two passes over the range of a
store. `list(iter(view))` makes one.
"""

from collections import abc
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from forerun.errors import InvalidArgumentError

__all__ = ["ItemsView", "KeysView", "Range", "ValuesView"]


class Range(NamedTuple):
    """The entries that a view shows, and their order."""

    start: bytes | None = None
    end: bytes | None = None
    prefix: bytes | None = None
    reverse: bool = False

    def is_whole(self) -> bool:
        """Whether the range has no bounds, as that of a cache."""
        return self.start is None and self.end is None and self.prefix is None

    def reversed(self) -> "Range":
        """The same entries in the opposite order."""
        return self._replace(reverse=not self.reverse)


class _Source(Protocol):
    """A store or a cache."""

    def get(self, key: Any, /) -> bytes | None: ...
    def _scan(self, part: str, range: Range) -> Iterator[Any]: ...
    def _count(self, range: Range) -> int: ...
    def _covers(self, key: Any, range: Range) -> bool: ...
    def __contains__(self, key: object, /) -> bool: ...


class _View:
    """What the three views share."""

    _part = ""
    _mapping: _Source
    _range: Range

    def __init__(self, mapping: _Source, range: Range) -> None:
        self._mapping = mapping
        self._range = range

    def __len__(self) -> int:
        return self._mapping._count(self._range)

    def __bool__(self) -> bool:
        # An iterator over the keys of a cache copies no values.
        return any(True for _ in self._mapping._scan("keys", self._range))

    def __iter__(self) -> Iterator[Any]:
        return self._mapping._scan(self._part, self._range)

    def __reversed__(self) -> Iterator[Any]:
        return self._mapping._scan(self._part, self._range.reversed())

    def __repr__(self) -> str:
        shown = [repr(self._mapping)]
        for name, value in self._range._asdict().items():
            if value is not None and value is not False:
                shown.append(f"{name}={value!r}")
        return f"forerun.views.{type(self).__name__}({', '.join(shown)})"

    def _covers(self, key: object) -> bool:
        """Whether a key lies within the range. Only the store knows the order of its keys."""
        return self._range.is_whole() or self._mapping._covers(key, self._range)


def _stored(value: object) -> object:
    """A value as a store returns it: text is stored as UTF-8. Text without UTF-8 equals none."""
    if not isinstance(value, str):
        return value
    try:
        return value.encode()
    except UnicodeEncodeError:
        return value


class _SetView(_View):
    """The comparisons of a view that is a set.

    The comparisons of `collections.abc.Set` begin with `len`, and the length of a cache includes
    expired entries. So these compare only what an iterator returns.
    """

    def __le__(self, other: abc.Set[Any]) -> bool:
        if not isinstance(other, abc.Set):
            return NotImplemented
        return all(entry in other for entry in self)

    def __ge__(self, other: abc.Set[Any]) -> bool:
        if not isinstance(other, abc.Set):
            return NotImplemented
        return all(entry in self for entry in other)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, abc.Set):
            return NotImplemented
        return self <= other and self >= other

    def __lt__(self, other: abc.Set[Any]) -> bool:
        if not isinstance(other, abc.Set):
            return NotImplemented
        return self <= other and not self >= other

    def __gt__(self, other: abc.Set[Any]) -> bool:
        if not isinstance(other, abc.Set):
            return NotImplemented
        return self >= other and not self <= other

    # Equality depends on what the store contains.
    __hash__ = None  # type: ignore[assignment]


class KeysView(_SetView, abc.KeysView[bytes]):
    """The keys, as a set in the order of the store.

    `list(view)` calls `len(view)` first, which scans the range of a store, unless the view has no
    range. `list(iter(view))` does not.
    """

    _part = "keys"

    def __contains__(self, key: object) -> bool:
        return self._covers(key) and key in self._mapping


class ValuesView(_View, abc.ValuesView[bytes]):
    """The values. `in` compares with each of them, up to the first that is equal.

    `list(view)` calls `len(view)` first, which scans the range of a store, unless the view has no
    range. `list(iter(view))` does not.
    """

    _part = "values"

    def __contains__(self, value: object) -> bool:
        stored = _stored(value)
        return any(stored == other for other in self)


class ItemsView(_SetView, abc.ItemsView[bytes, bytes]):
    """The entries, as a set of pairs in the order of the store.

    `list(view)` calls `len(view)` first, which scans the range of a store, unless the view has no
    range. `list(iter(view))` does not.
    """

    _part = "items"

    def __contains__(self, item: object) -> bool:
        if not (isinstance(item, tuple) and len(item) == 2):
            return False
        key, value = item
        if not self._covers(key):
            return False
        try:
            found = self._mapping.get(key)
        except InvalidArgumentError:
            # An object that cannot be a key.
            return False
        return found is not None and found == _stored(value)
