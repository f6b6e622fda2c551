"""A click log with a planted model: Zipf ids, co-occurrence locality, and a best reachable NE and AUC that are known.

An example belongs to one of `communities`. Each of its ids is, with probability `locality`, drawn from the community's own part of
the field's rows, and from all rows otherwise, both times by a Zipf law. Its label is drawn from
    p = sigmoid(bias + sum of the effects of its ids + dense @ slopes + factor(id of field 0) . factor(id of field 1))
where effects and factors are hashes of (field, id). Block b of the log is a function of (options, b) alone; the log of one
seed has no end, so that training and test data are different blocks of it.
"""

import gzip
import json
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from htrain.data.evaluation import auc, entropy
from htrain.data.format import Format, UriOptions
from htrain.data.malformed import Malformed
from htrain.data.reader import Dataset
from htrain.data.rows import Rows
from htrain.data.schema import click_schema
from htrain.errors import DataError
from htrain.files import new_file, place_to_write, read_file, write_file

BLOCK_ROWS = 4096
NUM_DENSE, NUM_SPARSE = 13, 26
_FACTORS = 4  # numbers of an id's factor, which the planted model multiplies
_MEAN_DENSE = 1.27  # about the mean of log1p of a count: slopes should not move the base rate


TEST_BLOCK = 1 << 30  # where the log of test data begins, further on than any training data reaches


@dataclass(frozen=True)
class Synthetic:
    """Options of a synthetic log in Criteo's shape: 13 counts, 26 categories of `table_rows` rows each."""

    rows: int = 100_000
    table_rows: int = 100_000
    zipf: float = 1.05
    locality: float = 0.5
    communities: int = 64
    signal: float = 0.35
    bias: float = -1.2
    seed: int = 0
    first_block: int = 0  # skip so many blocks of the endless log: test data of the same planted model

    def __post_init__(self) -> None:
        """Raises DataError for options that make no log."""
        for name, low, high in (
            ("rows", 1, 2**40),
            ("table_rows", 1, 2**31),
            ("communities", 1, 2**32),
            ("seed", 0, 2**32),
        ):
            if not low <= getattr(self, name) <= high:
                raise DataError(f"synthetic: {name}={getattr(self, name)}: want a whole number from {low} to {high}")
        for name, low, high in (("zipf", 0, 10), ("locality", 0, 1), ("signal", 0, 10), ("bias", -20, 20)):
            if not low <= getattr(self, name) <= high:  # false for nan, too
                raise DataError(f"synthetic: {name}={getattr(self, name)}: want a number from {low} to {high}")
        if not 0 <= self.first_block <= 2**40:
            raise DataError(f"synthetic: first_block={self.first_block}: want a whole number from 0 to {2**40}")

    @property
    def num_blocks(self) -> int:
        """Blocks of the log, the last of which may be cut short."""
        return -(-self.rows // BLOCK_ROWS)


@dataclass(frozen=True)
class Planted:
    """What a model that knew the planted probabilities would reach on the generated rows."""

    best_ne: float
    best_auc: float
    positive_rate: float


def block(options: Synthetic, number: int) -> tuple[Rows, np.ndarray]:
    """Block `number`: rows with `counts`: int64[n,13], `sparse`: int64[n,26], `label`: float32[n]; and each label's true probability."""
    n = min(BLOCK_ROWS, options.rows - number * BLOCK_ROWS)
    random = np.random.default_rng([options.seed, 1, options.first_block + number])
    community = random.integers(options.communities, size=n)
    counts = np.floor(random.lognormal(1.0, 1.2, size=(n, NUM_DENSE))).astype(np.int64)
    sparse = _ids(options, random, community)
    logit = _logit(options, np.log1p(counts), sparse)
    probability = 1 / (1 + np.exp(-logit))
    label = (random.random(n) < probability).astype(np.float32)
    return Rows(n, {"counts": counts, "sparse": sparse, "label": label}, {}), probability


def _ids(options: Synthetic, random: np.random.Generator, community: np.ndarray) -> np.ndarray:
    shape = (community.size, NUM_SPARSE)
    anywhere = zipf_ranks(random.random(shape), options.table_rows, options.zipf)
    part = max(1, options.table_rows // options.communities)
    near = community[:, None] * part + zipf_ranks(random.random(shape), part, options.zipf)
    local = random.random(shape) < options.locality
    ranks = np.where(local, np.minimum(near, options.table_rows - 1), anywhere)
    # Ranks become ids by a fixed shuffle of the residues, so that frequent ids are spread over the rows of a table.
    return (ranks * odd_step(options.table_rows) + np.arange(NUM_SPARSE) * 7919) % options.table_rows


def odd_step(rows: int) -> int:
    """A multiplier without a common factor with `rows`: multiplication is then a shuffle of the residues."""
    step = int(rows * 0.6180339887) | 1
    while np.gcd(step, rows) != 1:
        step += 2
    return step


def zipf_ranks(uniform: np.ndarray, count: int, exponent: float) -> np.ndarray:
    """Ranks int64[n] below `count`, for uniform[n] in [0, 1): P(rank r) falls as 1 / (r + 1)^exponent. Made by
    inverting the integral of the density.
    """
    if abs(exponent - 1) < 1e-9:
        ranks = np.exp(uniform * np.log(count + 1)) - 1
    else:
        power = 1 - exponent
        ranks = (1 + uniform * ((count + 1) ** power - 1)) ** (1 / power) - 1
    return np.minimum(ranks.astype(np.int64), count - 1)


def _logit(options: Synthetic, dense: np.ndarray, sparse: np.ndarray) -> np.ndarray:
    fields = np.arange(NUM_SPARSE)
    effects = _gaussian(options.seed, sparse, fields) @ np.full(NUM_SPARSE, options.signal)
    slopes = np.random.default_rng([options.seed, 2]).normal(0, 0.25, NUM_DENSE)
    left = np.stack([_gaussian(options.seed + 1 + k, sparse[:, 0], 0) for k in range(_FACTORS)], 1)
    right = np.stack([_gaussian(options.seed + 1 + k, sparse[:, 1], 1) for k in range(_FACTORS)], 1)
    return options.bias + effects + (dense - _MEAN_DENSE) @ slopes + options.signal * (left * right).sum(1)


def _gaussian(seed: int, ids: np.ndarray, field: int | np.ndarray) -> np.ndarray:
    """Nearly normal values, mean 0 and deviation 1, hashed from (seed, field, id): the sum of four 16-bit parts of a hash."""
    mixed = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= (np.atleast_1d(field).astype(np.uint64) + np.uint64(1 + 1000 * seed)) * np.uint64(0xC2B2AE3D27D4EB4F)
    for _ in range(2):
        mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0xD6E8FEB86659FD93)
    mixed ^= mixed >> np.uint64(32)
    parts = sum(((mixed >> np.uint64(16 * k)) & np.uint64(0xFFFF)).astype(np.float64) for k in range(4))
    return (parts / 65535.0 - 2.0) * np.sqrt(3.0)


def planted(options: Synthetic) -> Planted:
    """The best reachable figures over all rows."""
    labels, probabilities = zip(
        *((rows.fixed["label"], p) for rows, p in (block(options, b) for b in range(options.num_blocks))), strict=True
    )
    return _figures(np.concatenate(labels), np.concatenate(probabilities))


def _figures(label: np.ndarray, probability: np.ndarray) -> Planted:
    with np.errstate(divide="ignore"):  # the branch not taken may be log(0)
        loss = -np.mean(np.where(label > 0, np.log(probability), np.log1p(-probability)))
    rate = float(label.mean())
    return Planted(float(loss) / entropy(rate), auc(probability, label), rate)


def write_criteo(path: Path, options: Synthetic) -> Planted:
    """Write the log as Criteo TSV (.gz by its name), and `PATH.meta.json` beside it; nothing is left of a write that was cut short.

    What was written here before, and not changed since, is replaced. Raises DataError when the file cannot be written.
    """
    labels, probabilities = [], []
    try:
        meta = path.with_name(path.name + ".meta.json") if path.name else path
        place_to_write(meta, _is_meta)
        with new_file(path, _is_synthetic) as whole, _bytes_of(whole, path.suffix) as file:
            for number in range(options.num_blocks):
                rows, probability = block(options, number)
                file.write(_lines(rows))
                labels.append(rows.fixed["label"])
                probabilities.append(probability)
        figures = _figures(np.concatenate(labels), np.concatenate(probabilities))
        known = {name: value for name, value in asdict(figures).items() if math.isfinite(value)}
        document = {"options": asdict(options), "planted": known, "digest": _digest(path)}
        write_file(meta, json.dumps(document, indent=1).encode() + b"\n", _is_meta)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from error
    return figures


def _bytes_of(file: BinaryIO, suffix: str) -> AbstractContextManager[BinaryIO]:
    """`file`, or what compresses into it: the same bytes for the same rows, whatever the time and the file's name."""
    return cast(BinaryIO, gzip.GzipFile("", "wb", 1, file, mtime=0)) if suffix == ".gz" else nullcontext(file)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, lambda: blake2b(digest_size=16)).hexdigest()


def _is_synthetic(path: Path) -> bool:
    """Whether a file is a log that was written here: the file beside it knows its content."""
    return _meta(path.with_name(path.name + ".meta.json")).get("digest") == _digest(path)


def _is_meta(path: Path) -> bool:
    return _meta(path).keys() >= {"options", "planted", "digest"}


def _meta(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_file(path, most_bytes=1 << 20))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _lines(rows: Rows) -> bytes:
    """The rows as TSV: columns joined by numpy's string arithmetic, line by line in C."""
    columns = [rows.fixed["label"].astype(np.int64).astype(str)]
    columns += [rows.fixed["counts"][:, c].astype(str) for c in range(NUM_DENSE)]
    digits = np.array([f"{b:02x}" for b in range(256)])
    for c in range(NUM_SPARSE):
        ids = rows.fixed["sparse"][:, c]
        parts = [digits[(ids >> shift) & 0xFF] for shift in (24, 16, 8, 0)]
        columns.append(np.char.add(np.char.add(parts[0], parts[1]), np.char.add(parts[2], parts[3])))
    return ("\n".join(map("\t".join, zip(*(c.tolist() for c in columns), strict=True))) + "\n").encode()


TEST_BLOCK = 1 << 30  # where the log of test data begins, further on than any training data reaches


@dataclass(frozen=True)
class SyntheticSource:
    """The generator as a source: a chunk is a block, or a part of one."""

    options: Synthetic

    @property
    def name(self) -> str:
        """The format: there is no file."""
        return "synthetic:"

    def num_examples(self) -> int:
        """Rows of the log, exactly."""
        return self.options.rows

    def chunks(self, *, shard: int, num_shards: int, first: int, malformed: Malformed) -> Iterator[tuple[int, Rows]]:
        """See `Source`. No row is malformed."""
        num_parts = self._num_parts(num_shards)
        for number in range(first + (shard - first) % num_shards, self.options.num_blocks * num_parts, num_shards):
            rows, _ = block(self.options, number // num_parts)
            part = number % num_parts
            rows = rows.cut(rows.count * part // num_parts, rows.count * (part + 1) // num_parts)
            malformed.saw(rows.count, 0, str)
            dense = np.log1p(rows.fixed["counts"]).astype(np.float32)
            fixed = {"dense": dense, "sparse": rows.fixed["sparse"], "label": rows.fixed["label"]}
            yield number, Rows(rows.count, fixed, {})

    def place(self, *, number: int, row: int, num_shards: int) -> str:
        """The numbers of the chunk and of the row in it."""
        return f"{self.name} chunk {number}, row {row + 1}"

    def _num_parts(self, num_shards: int) -> int:
        """A short log is cut finer, so that shards are of one size though each makes whole blocks. One shard: not at all."""
        return 1 if num_shards == 1 else -(-8 * num_shards // self.options.num_blocks)


def open_synthetic(_: Path, values: UriOptions) -> Dataset:
    """A log that is made as it is read; the options are the fields of `Synthetic`. Raises DataError for one that is no
    number, or out of range.
    """
    given: dict[str, float] = {}
    for field in fields(Synthetic):
        if field.name not in values:
            continue
        try:
            given[field.name] = _TYPES[field.name](values[field.name])
        except ValueError as error:
            raise DataError(f"option {field.name}={values[field.name]}: want a number") from error
    options = Synthetic(**given)  # type: ignore[arg-type]
    return Dataset(SyntheticSource(options), click_schema(NUM_DENSE, (options.table_rows,) * NUM_SPARSE))


_TYPES: dict[str, type[int] | type[float]] = {name: type(value) for name, value in asdict(Synthetic()).items()}
FORMATS = (Format("synthetic", open_synthetic, tuple(_TYPES), is_made=True),)
