"""The events of a store, which `Db(event_listener=...)` passes to a function.

An event is a dict. A type checker knows its other keys once `event["event"]` is compared. The name
of the store's own keyspace is empty. An `error` is an exception of `forerun.errors`.
"""

from typing import Literal, TypedDict

__all__ = [
    "BackgroundError",
    "CompactionBegun",
    "CompactionEnded",
    "DamageFound",
    "DbEvent",
    "EventsLost",
    "FlushBegun",
    "FlushEnded",
    "ScrubEnded",
    "WriteStallBegun",
    "WriteStallEnded",
]


class FlushBegun(TypedDict):
    """Full memtables are about to be written to runs."""

    event: Literal["flush_begun"]
    keyspaces: list[str]
    memtable_bytes: int


class FlushEnded(TypedDict):
    """The memtables are in runs, or could not be written and will be tried again."""

    event: Literal["flush_ended"]
    keyspaces: list[str]
    written_bytes: int
    seconds: float
    error: Exception | None


class _Compaction(TypedDict):
    keyspace: str
    reason: Literal["level", "deletions", "range_deletions", "requested", "other"]
    from_level: int
    into_level: int


class CompactionBegun(_Compaction):
    """Runs are about to be merged into the next level, or moved there as they are."""

    event: Literal["compaction_begun"]
    runs: int
    run_bytes: int


class CompactionEnded(_Compaction):
    """The compaction is done or has failed. A run that was only moved counts no bytes."""

    event: Literal["compaction_ended"]
    read_bytes: int
    written_bytes: int
    dropped_entries: int
    seconds: float
    error: Exception | None


class _Stall(TypedDict, total=False):
    # Of the reason "level0" only.
    keyspace: str


class WriteStallBegun(_Stall):
    """A write begins to wait."""

    event: Literal["write_stall_begun"]
    reason: Literal["memory", "level0", "ingestion", "backup", "other"]


class WriteStallEnded(_Stall):
    """The write has waited."""

    event: Literal["write_stall_ended"]
    reason: Literal["memory", "level0", "ingestion", "backup", "other"]
    seconds: float


class DamageFound(TypedDict):
    """A scrub has found damage in a run. Each damaged page has its own event in each round."""

    event: Literal["damage_found"]
    error: Exception


class ScrubEnded(TypedDict):
    """A scrub has read all runs that there were when it began."""

    event: Literal["scrub_ended"]
    read_bytes: int
    damaged_pages: int
    seconds: float


class BackgroundError(TypedDict):
    """Work in the background failed."""

    event: Literal["background_error"]
    task: Literal["flush", "compaction", "log_sync", "scrub", "other"]
    error: Exception


class EventsLost(TypedDict):
    """The function was so slow that events were dropped."""

    event: Literal["events_lost"]
    count: int


DbEvent = (
    FlushBegun
    | FlushEnded
    | CompactionBegun
    | CompactionEnded
    | WriteStallBegun
    | WriteStallEnded
    | DamageFound
    | ScrubEnded
    | BackgroundError
    | EventsLost
)
