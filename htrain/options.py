"""Options: how a plan trains. Each field is a flag of `htrain compile` and an entry of plan.yaml."""

import re
from dataclasses import asdict, dataclass
from typing import Literal

from msgspec import ValidationError, convert

from htrain.errors import UsageError

Loss = Literal["bce", "mse"]
DenseOptimizer = Literal["sgd", "adagrad", "adam"]
ActivationDtype = Literal["float32", "bfloat16", "int8"]
GradientDtype = Literal["float32", "bfloat16"]
RowDtype = Literal["float32", "bfloat16", "float16", "int8"]
FcDtype = Literal["auto", "float32", "bfloat16", "int8"]
FcGradientDtype = Literal["auto", "float32", "bfloat16"]
Compress = Literal["auto", "always", "never"]
SparseOptimizer = Literal["sgd", "adagrad", "rowwise_adagrad"]
DenseSync = Literal["easgd", "allreduce", "ps"]
SparseSync = Literal["ps", "allgather"]
Cache = Literal["none", "het", "lookahead"]
TableStore = Literal["memory", "mapped"]
CacheDevice = Literal["cpu", "cuda"]
CachePolicy = Literal["light-lfu", "lfu", "lru"]
UNBOUNDED = -1  # a cache_staleness without a bound


@dataclass(frozen=True)
class Options:
    """What a plan fixes besides placement.

    `net_replicas` is the number of concurrent net replicas per trainer (Hogwild). `sync_alpha` is EASGD's elastic rate, 0 for
    0.9 / groups; `sync_period` the steps of a group between two background rounds. With `prefetch`, a replica asks for the next batch's rows
    before the current step has ended, so those rows may miss that step's update. `bounded_staleness` holds dense staleness
    within trainers x net replicas (HT 3.1.1).

    Values that travel between trainers and group PSs may be as short as `activation_dtype` in the forward pass and `gradient_dtype` in
    the backward pass; of these gradients, `gradient_top_k` keeps the share that is largest in magnitude (0 keeps all), and with
    `error_feedback` the rest is added to the next step's, unless it ends in the rows of a table (HT 4.2).
    `compress` is `auto` where the cost model says for each value whether that pays, `always`, or `never`.
    Rows of tables leave a sparse PS as `row_dtype`, int8 with a range for each row, and their gradients come as `row_gradient_dtype`; those that
    a cache exchanges travel as they are. Tables and their optimizer's state stay fp32.

    FCs compute their forward pass in `fc_dtype`, over fp32 weights (HT 5.1, Model-B), and their backward pass in `fc_gradient_dtype`: with both
    bfloat16, what one FC hands the next is bfloat16 too. Both are `auto` for bfloat16 where the cluster's cores have been measured to gain by it and FCs are
    large enough, float32 elsewhere. Ops are fused that would otherwise hand large values through
    memory: with `fuse_relu` an FC and its ReLU, with `fuse_fields` the rows of tables that are stacked, with `fuse_tables` those of tables on the
    same device and their SGD steps, id by id, with `fuse_interaction` the products of pairs of features, of which only those that are read
    are computed, with `fuse_pairs` the gradient of these products and the steps of rows by it, with `fuse_steps` the SGD step of an FC's
    weight and the product that makes its gradient, and with `fuse_servers` the lookups, and the steps, of all tables that a message to a PS is about.
    With `fast_products`, other FCs and their gradients are by the library that is ahead on the role's CPU. Without all of these, one trainer has
    PyTorch's bits.

    `dense_sync` says how groups keep their dense replicas alike: `easgd`, in the background; `allreduce`, every step, one trainer with all
    dense weights per group (HET 3); or `ps`, where the trainers of one group fetch the weights from its group PSs for every step and
    send gradients back, without waiting for each other. `sparse_sync` is `ps`, tables on sparse PSs, or `allgather`: every trainer has them
    all and sends its gradients to all others. Tables and their optimizer state are in `memory`, or in files in the run's folder that are `mapped` into it:
    then they may be larger than a role's memory, of which they take what the machine has to spare. AllReduce takes gradients in buckets of
    about `bucket_bytes`.

    `cache` is `het` where trainers look rows up through a cache (HET 3). It holds `cache_capacity` rows, a share such as 10% of those of
    the cached tables or a number; `cache_staleness` is HET's s, -1 for no bound; `cache_tables` are pairs of a pattern and a capacity, or
    `none`, for tables that have a cache of their own, or none. A trainer reads `cache_window` batches ahead: rows that they will use are
    the last to leave; 0 is 64.

    `cache` is `lookahead` where a trainer brings the rows of the next `cache_window` batches into a set-associative cache beside its
    compute (cDLRM 3 to 5): the next prime of `cache_sets` sets of `cache_ways` for each table, which is held whole where it has
    no more rows than sets. 0 sets are as many as the window needs; a window of 0 is 500, or what the trainer's memory holds. With
    `cache_patch`, a prefetched row that has changed since it was read is put right; without, it is used as it is, as in the paper.
    With `cache_device` cuda, the cache and all of a trainer's steps are on its CUDA device.
    Several trainers have replicas of the same caches, and average the rows that they have changed every `cache_average` steps (6.1: lambda).
    """

    batch_size: int = 128
    net_replicas: int = 2
    loss: Loss = "bce"
    dense_optimizer: DenseOptimizer = "adagrad"
    sparse_optimizer: SparseOptimizer = "adagrad"
    dense_lr: float = 0.005
    sparse_lr: float = 0.02
    eps: float = 1e-10
    adam_eps: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999
    sync_alpha: float = 0.0
    sync_period: int = 8
    prefetch: bool = True
    bounded_staleness: bool = True
    seed: int = 0
    activation_dtype: ActivationDtype = "float32"
    gradient_dtype: GradientDtype = "float32"
    gradient_top_k: float = 0.0
    error_feedback: bool = True
    compress: Compress = "auto"
    row_dtype: RowDtype = "float32"
    row_gradient_dtype: GradientDtype = "float32"
    fc_dtype: FcDtype = "auto"
    fc_gradient_dtype: FcGradientDtype = "auto"
    fuse_relu: bool = True
    fuse_fields: bool = True
    fuse_tables: bool = True
    fuse_interaction: bool = True
    fuse_pairs: bool = True
    fuse_steps: bool = True
    fuse_servers: bool = True
    fast_products: bool = True
    dense_sync: DenseSync = "easgd"
    sparse_sync: SparseSync = "ps"
    table_store: TableStore = "memory"
    bucket_bytes: int = 1 << 20
    cache: Cache = "none"
    cache_capacity: str = "10%"
    cache_staleness: int = 100
    cache_policy: CachePolicy = "light-lfu"
    cache_window: int = 0
    cache_sets: int = 0
    cache_ways: int = 16
    cache_patch: bool = True
    cache_average: int = 1
    cache_device: CacheDevice = "cpu"
    cache_tables: tuple[tuple[str, str], ...] = ()

    @property
    def lockstep(self) -> bool:
        """Whether all trainers step together."""
        return self.dense_sync == "allreduce" or self.sparse_sync == "allgather"

    @property
    def window(self) -> int:
        """The most batches that a trainer reads ahead of the present one."""
        return {"none": 1, "het": self.cache_window or 64, "lookahead": self.cache_window or 500}[self.cache]

    @property
    def looks_ahead(self) -> bool:
        """Whether the next batch's rows are asked for before a step has ended; without staleness there is nothing to ask for ahead."""
        return self.prefetch and self.cache != "lookahead" and not (self.cache == "het" and self.cache_staleness == 0)


_BOUNDS = {
    "batch_size": (1, 1 << 24), "net_replicas": (1, 1000), "sync_period": (1, 1_000_000_000), "seed": (0, 2**63 - 1), "bucket_bytes": (1, 2**40),
    "cache_staleness": (UNBOUNDED, 999_999_999), "cache_window": (0, 1_000_000), "cache_sets": (0, 999_999_999), "cache_ways": (1, 4096),
    "cache_average": (1, 1_000_000_000),
}  # fmt: skip
_ABOVE_ZERO = ("dense_lr", "sparse_lr", "eps", "adam_eps")
_SHARES = ("beta1", "beta2", "sync_alpha", "gradient_top_k")


def checked(options: Options) -> Options:
    """`options` itself. Raises UsageError naming the first field with a value that cannot work."""
    try:
        convert(asdict(options), Options)
    except ValidationError as error:
        raise UsageError(f"Options: {error}") from error
    for name, (least, most) in _BOUNDS.items():
        if not least <= getattr(options, name) <= most:
            small = f"is too small, want at least {least}" if getattr(options, name) < least else f"is too large, want at most {most:,}"
            raise UsageError(f"{flag_of(name)}: {getattr(options, name)} {small}")
    for name in _ABOVE_ZERO:
        if not 0 < getattr(options, name) < float("inf"):
            raise UsageError(f"{flag_of(name)}: {getattr(options, name)} must be a finite number above 0")
    for name in _SHARES:
        if not 0 <= getattr(options, name) < 1:
            raise UsageError(f"{flag_of(name)}: {getattr(options, name)} must be at least 0 and below 1")
    if options.fc_gradient_dtype == "bfloat16" and options.fc_dtype not in ("auto", "bfloat16"):
        raise UsageError("--fc-gradient-dtype: bfloat16 wants --fc-dtype bfloat16 too")
    capacity_rows(options.cache_capacity, 1, where="--cache-capacity")
    for pattern, capacity in options.cache_tables:
        if capacity != "none":
            capacity_rows(capacity, 1, where=f"--cache-table {pattern}={capacity}")
    return options


def flag_of(field: str) -> str:
    """The flag of a field: `--sync-period` of `sync_period`."""
    return "--cache-table" if field == "cache_tables" else "--" + field.replace("_", "-")


def parse_count(text: str) -> int:
    """A whole number from 0 on, in plain digits. Raises ValueError in words."""
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ValueError(f"'{text}' is not a whole number")
    return int(text)


def parse_staleness(text: str) -> int:
    """HET's s: a whole number, or `unbounded` (-1 says the same). Raises ValueError in words."""
    if text in ("unbounded", str(UNBOUNDED)):
        return UNBOUNDED
    try:
        return parse_count(text)
    except ValueError as error:
        raise ValueError(f"{error} or unbounded") from error


def capacity_rows(text: str, num_rows: int, *, where: str) -> int:
    """The rows that a cache over `num_rows` rows holds: `10%` of them, or `5000`. Raises UsageError beginning with `where`."""
    number = text.removesuffix("%")
    if not re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,9})?", number) or (number == text and "." in number) or not float(number):
        raise UsageError(f"{where}: '{text}' is not a capacity: want a share such as 10%, or a number of rows")
    if number == text:
        return min(int(number), num_rows)
    if float(number) > 100:
        raise UsageError(f"{where}: '{text}' is more than all rows")
    return max(1, round(float(number) / 100 * num_rows))
