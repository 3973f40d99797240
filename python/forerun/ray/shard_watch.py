"""Asks all shards of a table how they are, side by side.

    round    ask every shard that owes no answer ──> wait for a second ──> note the answers
             a shard that hangs owes its answer for some rounds, and delays none of them
             a shard that fails is repaired by a thread of its own
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import ray

from forerun.errors import Error
from forerun.ray.shard_actors import ORDER_S, Key, ShardActors, alive_nodes

log = logging.getLogger("forerun.ray")

# Between two rounds, and how long a round waits for answers.
PAUSE_S = 1.0
ROUND_S = 1.0
# A shard that owes an answer for longer is reported.
SILENT_S = 10.0


@dataclass
class Question:
    """A question that a shard has not answered yet."""

    answer: Any
    asked_at: float
    is_reported: bool = False


class ShardWatch:
    """`shards` are those to ask. `note` takes the description of one; `restore` is called for one
    that fails, or whose description `note` refuses with an error."""

    def __init__(
        self,
        actors: ShardActors,
        shards: Callable[[], Iterable[Key]],
        note: Callable[[Key, dict[str, Any]], None],
        restore: Callable[[Key], None],
    ) -> None:
        self._actors, self._shards, self._note, self._restore = actors, shards, note, restore
        self._questions: dict[Key, Question] = {}
        # Shards that a thread repairs now.
        self._repaired: set[Key] = set()

    def round(self) -> None:
        shards = set(self._shards())
        for key in self._questions.keys() - shards:
            del self._questions[key]
        now = time.monotonic()
        for key in shards - self._questions.keys():
            try:
                answer = self._actors.get(*key).describe.remote()
                self._questions[key] = Question(answer, now)
            except (ray.exceptions.RayError, ValueError) as error:
                self._fail(key, error)
        keys = {question.answer: key for key, question in self._questions.items()}
        if not keys:
            return
        done, late = ray.wait(list(keys), num_returns=len(keys), timeout=ROUND_S)
        for answer in done:
            key = keys[answer]
            del self._questions[key]
            try:
                self._note(key, ray.get(answer, timeout=ORDER_S))
            except (ray.exceptions.RayError, Error) as error:
                self._fail(key, error)
        for answer in late:
            self._note_silence(keys[answer])

    def _fail(self, key: Key, error: Exception) -> None:
        log.info("watching shard %d: %r", key[0], error)
        self.repair(key, self._restore)

    def _note_silence(self, key: Key) -> None:
        question = self._questions[key]
        if time.monotonic() - question.asked_at < SILENT_S:
            return
        if self._actors.node_ids.get(key) not in (None, *alive_nodes()):
            self.repair(key, self._restore)
        elif not question.is_reported:
            question.is_reported = True
            log.warning("shard %d has not answered for %.0f s", key[0], SILENT_S)

    def repair(self, key: Key, repair: Callable[[Key], None]) -> None:
        """Repairs a shard in a thread of its own, unless one does so already."""

        def run() -> None:
            try:
                repair(key)
            finally:
                self._repaired.discard(key)

        if key not in self._repaired:
            self._repaired.add(key)
            threading.Thread(target=run, name="forerun-repair", daemon=True).start()
