"""The tables of a plan, for a worker outside of it: what modules read, what a step writes (HET 3)."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist

from htrain.client.direct import DirectRows
from htrain.client.link import Link, Where
from htrain.client.rows import Lookup, Side
from htrain.client.warm_up import WarmUp
from htrain.errors import DataError, PeerLost, RunError, UsageError
from htrain.membership.served import Served, ServedCache, ServedTable
from htrain.sync.request import Request
from htrain.sync.territory import Ids

_UNSENT_SECONDS = 1.0  # between two counts of what is not sent
_MOST_OPEN = 1000
_UNANSWERED = "a request of this worker has not been answered"
Given = torch.Tensor | np.ndarray


class Tables:
    """The tables behind one plan's caches, as one worker has them. For one thread of one process: in one that was forked, all but `close` raises UsageError.

    A training step reads rows by `HetEmbedding` and `HetEmbeddingBag`, any number of times, and ends with `step`, which writes their gradients. A batch that
    was announced is asked for while the one before computes, and all of its tables at once.

        import htrain.client

        with htrain.client.connect("runs/tables") as tables:
            for cache in tables.served.caches:
                print({table.name: (table.rows, cache.width) for table in cache.tables})
    """

    def __init__(
        self, find: Callable[[], Where], *, capacity: int | None, gradient_scale: float | Literal["mean"]
    ) -> None:
        """`find` says where to join, now and whenever this worker joins anew."""
        self._process = os.getpid()
        self._find = find
        self._where = where = find()
        self._capacity = capacity
        self._scale = gradient_scale
        self._link = Link(where)
        self._warm_up = WarmUp(self._link.served.caches)
        self._sides = self._new_sides()
        self._announced: deque[frozenset[str]] = deque()  # the caches of each batch
        self._current: frozenset[str] | None = None
        self._asked: set[str] = set()
        self._under_way = 0  # rows whose updates were sent, and not answered
        self._is_due = False  # a round: a step has been written, and nothing asked since
        self._counted = time.monotonic()
        self._closed = False
        self._broken = ""  # what was broken off in the middle, where something was
        self._may_be_unsent = False
        self.steps = 0

    # -- what there is -----------------------------------------------------------------------------------------------

    @property
    def served(self) -> Served:
        """What the servers offer."""
        return self._link.served

    def place_of(self, table: str) -> tuple[ServedCache, ServedTable]:
        """The cache that a table is behind, and its place in it.

        Raises DataError for a table that is not served.

            import htrain.client

            with htrain.client.connect("runs/tables") as tables:
                cache, table = tables.place_of("embeddings.tables.user")
                print(f"{table.rows} rows of {cache.width} numbers; {cache.capacity} fit into the cache")
        """
        self._require_own_process()
        return self._link.served.place_of(table)

    @property
    def counts(self) -> dict[str, Any]:
        """What the caches have done: steps, hits, misses, rows fetched anew by their own age (`run_out`) or the server's word (`stale`), evictions, bytes."""
        found: dict[str, Any] = {"steps": self.steps, "unsent": self.unsent}
        for side in self._sides.values():
            for name, count in side.counts().items():
                found[name] = found.get(name, 0) + count
        return found

    @property
    def unsent(self) -> int:
        """Rows with updates that the servers are not known to have."""
        return self._under_way + sum(side.unsent for side in self._sides.values())

    @property
    def is_warm(self) -> bool:
        """Whether caches hold rows; until their loops are compiled every batch is fetched whole."""
        return not any(side.is_direct for side in self._sides.values())

    def warm(self, seconds: float = 120.0) -> None:
        """Wait until the loops of caches are compiled, at most so many `seconds`.

        Raises RunError where they cannot be, or it takes longer; UsageError for a capacity without memory.

            import htrain.client

            with htrain.client.connect("runs/tables") as tables:
                tables.warm(60.0)
                assert tables.is_warm
        """
        self._require_own_process()
        if not self._warm_up.wait(seconds):
            raise RunError(
                f"the loops of caches are not compiled after {seconds:g} s: {self._warm_up.error or 'try again'}"
            )
        self._settle()

    # -- a step ------------------------------------------------------------------------------------------------------

    def announce(self, batch: Mapping[str, Given | Sequence[Given]]) -> None:
        """A later step will look up these ids of each table, in any shape; a table that is looked up several times has a list of them.

        A batch has all lookups of its step, and batches are announced in the order of their steps. Rows of announced batches are the last to leave the cache,
        and the next batch is asked for while the present one computes.
        Raises DataError for a table that is not served, and for an id out of range.

            import torch

            import htrain.client

            with htrain.client.connect("runs/tables") as tables:
                items = htrain.client.HetEmbedding(tables, "embeddings.tables.item")
                batches = torch.randint(300, (8, 128))
                for ids in batches:
                    tables.announce({"embeddings.tables.item": ids})
                for ids in batches:
                    items(ids).square().mean().backward()
                    tables.step()
        """
        self._require_open()
        announced: dict[str, list[tuple[str, Ids]]] = {}
        for table, given in batch.items():
            cache, found = self.place_of(table)
            parts = [given] if isinstance(given, torch.Tensor | np.ndarray) else list(given)
            if not parts or not all(isinstance(ids, torch.Tensor | np.ndarray) for ids in parts):
                raise DataError(
                    f"table '{table}': announce its ids as a tensor, or a list of tensors, one for each lookup"
                )
            announced.setdefault(cache.name, []).extend((found.name, _flat(ids, found)) for ids in parts)
        for name, lookups in announced.items():
            self._sides[name].announce(lookups)
        self._announced.append(frozenset(announced))
        self._ask_ahead()

    def read(self, table: str, ids: torch.Tensor) -> Lookup:
        """The rows of ids, to be trained: `step` writes the gradient that `Lookup.rows` has then.

        Raises DataError for an id out of range, or another than was announced; PeerLost where a server does not answer.

            import torch

            import htrain.client

            with htrain.client.connect("runs/tables") as tables:
                lookup = tables.read("embeddings.tables.user", torch.tensor([4, 17, 4]))
                lookup.rows[lookup.inverse].square().sum().backward()
                tables.step()
        """
        self._require_open()
        cache, found = self.place_of(table)
        flat = _flat(ids, found)
        if self._current is None and self._announced and not self._is_open:
            self._begin_announced()
        if self._current is not None:
            lookup = self._sides[cache.name].taken(found.name, flat)
            self._ask_ahead()
            return lookup
        side = self._sides[cache.name]
        if side.num_open >= _MOST_OPEN:
            raise RunError(
                f"{_MOST_OPEN} lookups were not followed by a step: call tables.step() after each backward(), or look up under torch.no_grad()"
            )
        self._settle()
        lookups, keys = side.begin(found.name, flat)
        if keys.size:
            self._exchange({cache.name: side.ask(keys)})
            side.end_read(self._answers()[cache.name])
        else:
            self._come_to_round()
        return lookups[0]

    def look(self, table: str, ids: torch.Tensor | np.ndarray) -> torch.Tensor:
        """rows[n,D] of ids[n] as the servers have them; nothing is cached, nothing will be trained.

        Between steps this worker's updates are sent first, and are in them. Between a lookup and its step they are not: those that it has not sent are missing,
        with a staleness of 0 none. Raises DataError for an id out of range, PeerLost where a server does not answer.

            import torch

            import htrain.client

            with htrain.client.connect("runs/tables") as tables:
                rows = tables.look("embeddings.tables.user", torch.tensor([4, 17]))
                print(rows.norm(dim=1))
        """
        self._require_open()
        cache, found = self.place_of(table)
        flat = _flat(ids, found)
        if self._may_be_unsent and not self._in_step:
            self.flush()
        keys = {each.name: [np.empty(0, np.int64)] * len(each.devices) for each in self.served.caches}
        distinct, inverse = np.unique(flat, return_inverse=True)
        parts = [cache.held_at(place, distinct + found.first_key) for place in range(len(cache.devices))]
        keys[cache.name] = [held for _, held in parts]
        rows = np.empty((distinct.size, cache.width), np.float32)
        with self._whole(_UNANSWERED):
            seen = self._link.look(keys)[cache.name]
        rows[np.concatenate([places for places, _ in parts])] = np.concatenate(seen)
        return torch.from_numpy(rows[inverse.reshape(-1)])

    def step(self, scale: float = 1.0) -> None:
        """Write the gradients of all rows that were read since the last step, as optimizer.step() does those of weights; times `scale`.

        Rows without a gradient are let go. Raises RunError for gradients that are not finite, `scale` included; they are let go, too, whatever is raised.

            import torch

            import htrain.client

            with htrain.client.connect("runs/tables") as tables:
                items = htrain.client.HetEmbedding(tables, "embeddings.tables.item")
                for ids in torch.randint(300, (4, 128)):  # four small batches make one step
                    items(ids).square().mean().backward()
                tables.step(scale=1 / 4)
        """
        self._require_open()
        scale = float(scale) * self._gradient_scale()
        try:
            self._come_to_round()  # of the step before, where this one has looked nothing up
            self._scale_gradients(scale)
        except BaseException:
            self._let_go()
            raise
        with self._whole("a step of this worker was broken off"):
            for side in self._sides.values():
                side.step()
        self._current, self._is_due, self._may_be_unsent = None, True, True
        self.steps += 1
        if time.monotonic() - self._counted > _UNSENT_SECONDS:
            self._link.unsent, self._counted = self.unsent, time.monotonic()
        self._settle()
        self._ask_ahead()

    def skip(self) -> None:
        """End a step that writes nothing.

        What it has looked up, and the gradients that rows have, are let go.

            import torch

            import htrain.client

            with htrain.client.connect("runs/tables") as tables:
                items = htrain.client.HetEmbedding(tables, "embeddings.tables.item")
                loss = items(torch.randint(300, (128,))).log().mean()  # not a number, where one is below 0
                loss.backward()
                if loss.isfinite():
                    tables.step()
                else:
                    tables.skip()
        """
        self._require_open()
        self._come_to_round()
        self._let_go()
        self._is_due = True
        self._ask_ahead()

    def step_after(self, optimizer: torch.optim.Optimizer) -> None:
        """Have every step of an optimizer followed by one of the tables.

        Nothing is done where the optimizer's own step raises.

            import torch

            import htrain.client

            with htrain.client.connect("runs/tables") as tables:
                users = htrain.client.HetEmbedding(tables, "embeddings.tables.user")
                top = torch.nn.Linear(users.embedding_dim, 1)
                optimizer = torch.optim.Adam(top.parameters())
                tables.step_after(optimizer)
                top(users(torch.tensor([4, 17]))).sum().backward()
                optimizer.step()
        """
        self._require_own_process()
        optimizer.register_step_post_hook(lambda *_: self.step())

    def flush(self) -> None:
        """Send every update that was not sent; rows stay in the caches. With a staleness of 0, all workers do so together.

        Raises PeerLost where a server does not answer; RunError between a lookup and its step.

            import torch

            import htrain.client

            with htrain.client.connect("runs/tables") as tables:
                items = htrain.client.HetEmbedding(tables, "embeddings.tables.item")
                items(torch.tensor([4, 8, 15])).square().sum().backward()
                tables.step()
                tables.flush()
                assert tables.unsent == 0
        """
        self._require_open()
        if self._in_step:
            raise RunError("flush between a lookup and its step: call tables.step() first")
        if self._link.is_waiting:
            self._take_announced()
        self._exchange({name: side.flush() for name, side in self._sides.items()})
        for name, answers in self._answers().items():
            self._sides[name].absorb(answers)
        self._link.unsent, self._may_be_unsent = self.unsent, False
        self._ask_ahead()

    # -- coming and going --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Send what was not sent, and leave.

        Without a step, what was read is let go. In a process that was forked nothing is done.

            import torch

            import htrain.client

            tables = htrain.client.connect("runs/tables")
            items = htrain.client.HetEmbedding(tables, "embeddings.tables.item")
            items(torch.tensor([4, 8, 15])).square().sum().backward()
            tables.step()
            tables.close()
        """
        if self._closed or self._is_elsewhere:
            return
        try:
            if self._broken:
                return
            self._let_go()
            if self._link.is_waiting:
                self._take_announced()
                self._let_go()
            self._announced.clear()
            if self.unsent:
                self.flush()
        finally:
            self._closed = True
            self._link.leave()

    def rejoin(self) -> int:
        """Join anew, with empty caches: after a server was started again, or the lease has run out. How many rows had updates that are lost.

        A worker that has joined by a folder joins where its servers are now. What was announced is forgotten.
        Raises what `connect` does, and RunError where another plan is served now.

            import htrain.client

            with htrain.client.connect("runs/tables") as tables:
                num_lost = tables.rejoin()  # after a PeerLost, once the servers are there again
                print(f"updates of {num_lost} rows are lost")
        """
        self._require_own_process()
        lost = self.unsent
        self._broken = self._broken or "this worker has not joined anew"
        self._link.drop()
        self._where = self._find()
        link = Link(self._where)
        if link.served != self.served:
            link.leave()
            raise RunError(
                f"{self._where.address}: serves another plan now ({link.served.model}, digest {link.served.plan[:12]}): connect anew"
            )
        self._link = link
        self._sides = self._new_sides()
        self._announced.clear()
        self._current, self._closed, self._broken, self._may_be_unsent = None, False, "", False
        self._is_due, self._under_way = False, 0
        return lost

    def __enter__(self) -> "Tables":
        self._require_own_process()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        if self._closed or self._is_elsewhere:
            return
        if not self._broken and not self.served.is_synchronous:
            with suppress(RunError):  # what goes wrong here would hide what went wrong before
                self.close()
        self._closed = True
        self._link.leave()

    def __deepcopy__(self, memo: object) -> "Tables":
        """A copy of a module reads the same tables."""
        return self

    def __reduce__(self) -> Any:
        raise RunError(
            "tables of a worker belong to its process: save the state_dict() of what is beside them; their rows are saved by their servers"
        )

    # -- inside ------------------------------------------------------------------------------------------------------

    def _new_sides(self) -> dict[str, Side]:
        return {cache.name: Side(cache, DirectRows(cache)) for cache in self.served.caches}

    def _come_to_round(self) -> None:
        """Where workers step together, and this one has asked for nothing since its last step: others wait for what it has written."""
        if self._is_due and self.served.is_synchronous and not self._link.is_waiting:
            self._exchange({})
            self._answers()

    def _let_go(self) -> None:
        for side in self._sides.values():
            side.let_go()
        self._current = None

    def _scale_gradients(self, scale: float) -> None:
        unusable = [table for side in self._sides.values() for table in side.scale(scale)]
        if unusable:
            times = "" if scale == 1 else f", times {scale:g},"
            raise RunError(
                f"gradients of {', '.join(unusable)}, summed for each row{times or ','} are not finite: train with smaller rates"
            )

    @property
    def _is_elsewhere(self) -> bool:
        """Whether this is a copy of a worker in a process that was forked: its threads are not here, its connections are another's."""
        return os.getpid() != self._process

    def _require_own_process(self) -> None:
        if self._is_elsewhere:
            raise UsageError(f"these tables belong to process {self._process}: connect() in this one, {os.getpid()}")

    def _require_open(self) -> None:
        self._require_own_process()
        if self._closed:
            raise PeerLost("this worker has left its servers: connect anew")
        if self._broken:
            raise PeerLost(f"{self._broken}: tables.rejoin() begins anew with its rows")

    @property
    def _is_open(self) -> bool:
        """Whether rows have been read that were neither written nor let go."""
        return any(side.num_open for side in self._sides.values())

    @property
    def _in_step(self) -> bool:
        """Whether rows have been looked up since the last step."""
        return any(side.lookups for side in self._sides.values())

    @contextmanager
    def _whole(self, else_said: str) -> Iterator[None]:
        """What ends in the middle, by an error or by the user, leaves a worker that must join anew."""
        try:
            yield
        except BaseException:
            self._broken = else_said
            raise

    def _settle(self) -> None:
        """Have caches as soon as they can be had, and between steps."""
        if self._warm_up.error:
            raise RunError(f"the loops of caches cannot be compiled: {self._warm_up.error}")
        if self._warm_up.is_done and not self.is_warm and not self._link.is_waiting and not self._is_open:
            for side in self._sides.values():
                side.settle(self._capacity)

    def _ask_ahead(self) -> None:
        """Ask for the next announced batch, where its rows may be asked for before those of the present one are written."""
        if not self._announced or self._link.is_waiting:
            return
        if self._current is None:
            may_ask = not self._is_open
        else:
            may_ask = self._in_step and all(side.asks_ahead for side in self._sides.values())
        if may_ask:
            self._ask_announced()

    def _ask_announced(self) -> None:
        batch = self._announced[0]
        self._exchange({name: self._sides[name].ask_announced() for name in batch})

    def _begin_announced(self) -> None:
        """The next announced batch is the present one from here on."""
        if not self._link.is_waiting:
            self._ask_announced()
        self._take_announced()

    def _take_announced(self) -> None:
        """The batch that was asked for is the present one from here on."""
        batch = self._announced.popleft()
        for name, answers in self._answers().items():
            if name in batch:
                self._sides[name].end_announced(answers)
            else:
                self._sides[name].absorb(answers)
        self._current = batch

    def _exchange(self, requests: Mapping[str, Sequence[Request]]) -> None:
        """Send requests of some caches; of the others what waits to be pushed goes along."""
        self._asked = set(requests)
        in_round, self._is_due = self._is_due, False
        sides = self._sides.items()
        all_requests = {name: requests[name] if name in requests else side.outgoing() for name, side in sides}
        self._under_way += sum(int(each.counts[0]) for parts in all_requests.values() for each in parts)
        with self._whole(_UNANSWERED):
            self._link.ask(all_requests, in_round=in_round)

    def _answers(self) -> dict[str, Sequence[Any]]:
        """What servers have answered; caches that had asked for nothing take theirs here."""
        with self._whole(_UNANSWERED):
            answers = self._link.answers()
        self._under_way = 0
        for name in answers.keys() - self._asked:
            self._sides[name].absorb(answers[name])
        return {name: answers[name] for name in self._asked}

    def _gradient_scale(self) -> float:
        if self._scale != "mean":
            return self._scale
        return 1 / dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1.0


def _flat(ids: torch.Tensor | np.ndarray, table: ServedTable) -> Ids:
    """ids[n] of a table, in one row. Raises DataError for ids that are none, or out of range."""
    found = ids.detach().cpu().numpy() if isinstance(ids, torch.Tensor) else np.asarray(ids)
    if found.dtype.kind not in "iu":
        raise DataError(f"table '{table.name}': ids are {found.dtype}, want integers")
    flat = np.ascontiguousarray(found, np.int64).reshape(-1)
    if flat.size and not 0 <= flat.min() <= flat.max() < table.rows:
        bad = flat[(flat < 0) | (flat >= table.rows)][0]
        raise DataError(f"table '{table.name}': id {bad} is out of range, it has {table.rows} rows")
    return flat
