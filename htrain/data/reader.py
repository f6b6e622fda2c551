"""From chunks of a source to batches: sharded, streamed, resumable (docs/decisions/runs-and-resumes.md).

A source is a sequence of chunks; shard s of n reads the chunks c with c % n == s. A batch may span chunks, never an epoch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from htrain.data.batch import Batch, Position
from htrain.data.labels import as_taken, first_outside, is_binary, wanted
from htrain.data.left import Left, left_in
from htrain.data.malformed import Malformed
from htrain.data.rows import Rows, joined
from htrain.data.schema import Schema
from htrain.errors import DataError

_CURE = ": write them so, or compile with --loss mse"


class Source(Protocol):
    """Where rows come from."""

    @property
    def name(self) -> str:
        """What messages call the source."""

    def chunks(self, *, shard: int, num_shards: int, first: int, malformed: Malformed) -> Iterator[tuple[int, Rows]]:
        """The shard's chunks from number `first` on, with their numbers, in order."""

    def num_examples(self) -> int:
        """How many examples there are; 0 when only reading all would tell."""

    def place(self, *, number: int, row: int, num_shards: int) -> str:
        """How messages name a row of a chunk, both from 0, such as FILE:LINE. It may read the chunk again."""


@runtime_checkable
class Pieced(Source, Protocol):
    """A source of pieces of which some costs as much as all: whoever wants a row reads on to it from where its piece begins."""

    @property
    def pieces(self) -> tuple[int, ...]:
        """Their sizes, in their order; none where rows can be read from anywhere."""

    def owned(self, owners: tuple[int | None, ...]) -> Source:
        """The source whose pieces are read by these shards alone, with all of their chunks; by all shards, chunk by chunk, where None is."""


class Order(Protocol):
    """In which order rows come."""

    @property
    def option(self) -> str:
        """The option of a URI that says so."""

    @property
    def regroups(self) -> bool:
        """Whether chunks are others than those of the source."""

    def of(self, source: Source, epoch: int, begins: Sequence[int]) -> Source:
        """A source as it is read in an epoch. Chunks from each number of `begins` on had not come when those before were read."""


@dataclass(frozen=True)
class Begun:
    """What epochs up to `last_epoch` read, which were begun before data came: as `source`, of which something came at the chunks `begins`."""

    last_epoch: int
    source: Source
    begins: tuple[int, ...]


@dataclass(frozen=True)
class Dataset:
    """A source and the schema of its rows. With a `loss`, batches hold labels as it takes them.

    With a `partition`, ids are the new numbers of rows that the partition of this digest gives them (htrain.data.numbering). Examples that were packed for
    `num_workers` workers are read by so many shards, or by one; 0: by any number. With an `order`, batches have rows in that one. Rows of data that
    `is_timed` have times. Epochs that were `begun` on less read their own source, in the order of epochs. With `ids_are_counted`, the largest id that data has
    says how many rows its inputs have in the schema, and nobody else.
    """

    source: Source
    schema: Schema
    loss: str = ""
    partition: str = ""
    num_workers: int = 0
    order: Order | None = None
    is_timed: bool = False
    begun: tuple[Begun, ...] = ()
    ids_are_counted: bool = False

    def through(self, change: Callable[[Source], Source]) -> "Dataset":
        """The dataset whose epochs read their source through another."""
        begun = tuple(replace(each, source=change(each.source)) for each in self.begun)
        return replace(self, source=change(self.source), begun=begun)

    def ordered(self, order: Order) -> "Dataset":
        """The dataset in another order."""
        return replace(self, order=order)

    def as_it_stands(self) -> "Dataset":
        """The dataset in the order of its source."""
        return replace(self, order=None)

    def for_loss(self, loss: str) -> "Dataset":
        """The dataset for training with `loss`: labels that it does not take are refused where they stand."""
        return replace(self, loss=loss)

    def num_examples(self) -> int:
        """Examples of an epoch over all shards; an estimate where the source would have to be read to know."""
        return self.source.num_examples()

    def batches(
        self,
        *,
        batch_size: int,
        shard: int,
        num_shards: int,
        epochs: int,
        start: Position,
        malformed: Malformed,
        left: Sequence[Left] = (),
    ) -> Iterator[Batch]:
        """Batches of `batch_size` examples, the last of an epoch smaller, from `start` on; of epochs that other shards have begun what is `left`.

        Over all shards every example comes once per epoch. From a batch's position, with the same arguments, the batches that would have followed come
        again. Raises DataError for what cannot be read, and naming the row for a label that the loss does not take.
        """
        for epoch in range(start.epoch, epochs):
            begin = start if epoch == start.epoch else Position(epoch, 0, 0)
            num_read = 0
            for batch in self._epoch(begin, batch_size, shard, num_shards, malformed, left_in(left, epoch)):
                num_read += batch.num_examples
                yield batch
            if not num_read:
                self._check_not_empty()

    def _check_not_empty(self) -> None:
        """A shard may be empty, its source may not. Raises DataError when no row of the source can be read."""
        seen = Malformed(share=1.0)
        if not any(rows.count for _, rows in self.source.chunks(shard=0, num_shards=1, first=0, malformed=seen)):
            none = f"none of the {seen.rows} rows of {self.source.name} can be read"
            raise DataError(f"{seen.examples[0]} ({none})" if seen.examples else f"{self.source.name}: holds no rows")

    def _epoch(
        self, start: Position, batch_size: int, shard: int, num_shards: int, malformed: Malformed, left: Left | None
    ) -> Iterator[Batch]:
        held: list[Rows] = []
        count = 0
        position = start
        for chunk, rows, read in self._chunks(start, shard, num_shards, malformed, left):
            used = min(max(read, start.row if chunk == start.chunk else 0), rows.count)
            while rows.count - used + count >= batch_size:
                taken = batch_size - count
                held.append(rows.cut(used, used + taken))
                used += taken
                position = Position(start.epoch, chunk, used)
                yield _batch(held, position)
                held, count = [], 0
            if used < rows.count:
                held.append(rows.cut(used, rows.count))
                count += rows.count - used
        if held:
            yield _batch(held, Position(start.epoch + 1, 0, 0))

    def _chunks(
        self, start: Position, shard: int, num_shards: int, malformed: Malformed, left: Left | None
    ) -> Iterator[tuple[int, Rows, int]]:
        """The shard's chunks of an epoch from that of `start` on, with their numbers, and with how many of their rows others have read."""
        of_epoch = (each for each in self.begun if start.epoch <= each.last_epoch)
        begun = next(of_epoch, Begun(start.epoch, self.source, ()))
        source = self.order.of(begun.source, start.epoch, begun.begins) if self.order else begun.source
        if left is None:
            chunks = source.chunks(shard=shard, num_shards=num_shards, first=start.chunk, malformed=malformed)
            for chunk, rows in chunks:
                yield chunk, self._labelled(rows, source, chunk, num_shards), 0
            return
        first = None if self.order and self.order.regroups else start.chunk
        for chunk, rows, read in left.chunks(
            source, epoch=start.epoch, reader=shard, readers=num_shards, first=first, malformed=malformed
        ):
            if chunk >= start.chunk:
                yield chunk, self._labelled(rows, source, chunk, left.shards), read

    def _labelled(self, rows: Rows, source: Source, chunk: int, num_shards: int) -> Rows:
        label = as_taken(rows.fixed["label"], self.loss)
        outside = first_outside(label, self.loss)
        if outside is not None:
            where = source.place(number=chunk, row=outside, num_shards=num_shards)
            raise DataError(
                f"{where}: the label is {label[outside]:g}, but {wanted(self.loss)}{_CURE if is_binary(self.loss) else ''}"
            )
        return rows if label is rows.fixed["label"] else replace(rows, fixed={**rows.fixed, "label": label})


def _batch(parts: list[Rows], position: Position) -> Batch:
    rows = joined(parts)
    return Batch(rows.columns(), rows.count, position)
