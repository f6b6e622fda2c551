"""Rows are marked before they are stepped; a snapshot is of its moment, whatever is stepped while it is read."""

import gc
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import numpy as np
import pytest
import torch

from htrain.executor.engine import marks as marks_module
from htrain.executor.engine.context import Context
from htrain.executor.engine.engine import Engine
from htrain.executor.engine.marks import Cancelled, Marks, Snapshot
from htrain.executor.engine.program import build_program
from htrain.executor.transport.wire import bundle_of
from htrain.net.net import BatchDim, Blob, Init, Net, Op, Parameter
from htrain.ops.bundle import Bundle

ROWS, WIDTH, FIRST = 3000, 16, 70
RATE = {"lr": 0.5, "eps": 1e-8}
HERE = "sparse_ps:0"
ONE, MANY, BUNDLED = "one", "many", "bundled"
FORMS = (ONE, MANY, BUNDLED)
Store = dict[str, torch.Tensor]


def first_values(generator: torch.Generator) -> Store:
    store = {name: torch.randn(ROWS, WIDTH, generator=generator) for name in ("t", "u")}
    return store | {f"{name}.s": torch.rand(ROWS, generator=generator) for name in ("t", "u")}


def stepping(form: str, store: Store) -> Net:
    """A net that steps rows of both tables, in two ops or one, by inputs or what comes in a message each."""
    kinds = {name: "state" if name.endswith(".s") else "table" for name in store}
    parameters = {
        name: Parameter(name, tuple(tensor.shape), "float32", kinds[name], Init("zeros"), name[:-2] if kinds[name] == "state" else "")  # type: ignore[arg-type]
        for name, tensor in store.items()
    }  # fmt: skip
    some = BatchDim(1, bound=True)
    given = [Blob(f"{name}:ids", (some,), "int64") for name in "tu"]
    given += [Blob(f"{name}:rows", (some, WIDTH), "float32") for name in "tu"]
    ops: list[Op] = []
    if form == BUNDLED:
        ops += [
            Op("Recv", (), (blob.name,), {"peer": "trainer:0", "message": int(blob.dtype == "float32")}, HERE)
            for blob in given
        ]
    if form == ONE:
        ops += [
            Op("SparseRowWiseAdagrad", (name, f"{name}.s", f"{name}:ids", f"{name}:rows"), (), {**RATE, "first_row": first}, HERE)
            for name, first in (("t", FIRST), ("u", 0))
        ]  # fmt: skip
    else:
        attrs = {**RATE, "optimizer": "rowwise_adagrad", "first_rows": (FIRST, 0)}
        ops.append(Op("SparseStepTables", ("t", "u", "t.s", "u.s", *(blob.name for blob in given)), (), attrs, HERE))
    inputs = () if form == BUNDLED else tuple(blob.name for blob in given)
    return Net("steps", tuple(ops), inputs, (), {blob.name: blob for blob in given}, parameters)


class Stepper:
    """Steps rows by its own thread, each within its lock: who holds the locks of all is alone with the tables."""

    def __init__(self, engine: Engine, form: str, seed: int) -> None:
        self.lock = threading.Lock()
        self.stepped: list[tuple[set[int], set[int]]] = []  # rows of t and of u
        self._engine, self._form, self._draw = engine, form, np.random.default_rng(seed)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def step(self) -> None:
        rows = [np.unique((ROWS * self._draw.random(40) ** 3).astype(np.int64)) for _ in "tu"]
        ids = [torch.from_numpy(rows[0] + FIRST), torch.from_numpy(rows[1])]
        grads = [torch.from_numpy(self._draw.random((len(each), WIDTH), np.float32)) for each in ids]
        values = dict(zip(("t:ids", "u:ids", "t:rows", "u:rows"), (*ids, *grads), strict=True))
        state = self._engine.begin(Context(0, 0, 0, 0), "", 1, values if self._form != BUNDLED else {})
        ready = self._engine.start(state)
        if self._form == BUNDLED:
            self._engine.receive(state, bundle_of(("t:ids", "u:ids"), ids))
            ready = self._engine.receive(state, bundle_of(("t:rows", "u:rows"), grads))
        for stage in ready:
            self._engine.run(state, stage, lambda *_: None)
        self.stepped.append((set(rows[0].tolist()), set(rows[1].tolist())))

    def _loop(self) -> None:
        while not self._is_over.is_set():
            with self.lock:
                self.step()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()


@pytest.fixture
def steppers() -> Iterator[Callable[[Engine, str], Sequence[Stepper]]]:
    begun: list[Stepper] = []

    def begin(engine: Engine, form: str) -> Sequence[Stepper]:
        begun.extend(Stepper(engine, form, seed) for seed in range(3))
        return begun

    yield begin
    for each in begun:
        each.stop()


def wait_for_steps(threads: Sequence[Stepper], count: int) -> None:
    wanted, deadline = [len(each.stepped) + count for each in threads], time.monotonic() + 20
    while any(len(each.stepped) < least for each, least in zip(threads, wanted, strict=True)):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def read_whole(snapshot: Snapshot, name: str) -> torch.Tensor:
    data = b"".join(bytes(piece) for piece in snapshot.whole(name))
    return torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(snapshot.tensors[name].shape)


def read_changed(snapshot: Snapshot, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of rows, and the rows."""
    numbers: list[memoryview] = []
    data = b"".join(bytes(piece) for piece in snapshot.changed(name, numbers))
    rows = torch.from_numpy(np.frombuffer(b"".join(map(bytes, numbers)), np.int32).astype(np.int64))
    values = torch.from_numpy(np.frombuffer(data, np.float32).copy())
    return rows, values.reshape(len(rows), *snapshot.tensors[name].shape[1:])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chunk_bytes", [64, 1 << 14, 4 << 20])
def test_snapshots_are_of_their_moment_while_others_step(
    steppers: Callable[[Engine, str], Sequence[Stepper]], monkeypatch: pytest.MonkeyPatch, form: str, chunk_bytes: int
) -> None:
    monkeypatch.setattr(marks_module, "_CHUNK_BYTES", chunk_bytes)
    store = first_values(torch.Generator().manual_seed(1))
    marks, draw = Marks(least_bytes=0), random.Random(chunk_bytes)
    marks.epoch = 251  # so that they begin anew meanwhile
    threads = steppers(Engine(build_program(stepping(form, store), store, marks=marks)), form)
    moments: dict[str, Store] = {}
    since: dict[str, list[int]] = {}  # how many steps each thread had made
    fresh = 0
    for number in range(12):
        wait_for_steps(threads, 3)
        base = draw.choice([*moments, ""])
        with ExitStack() as rest:
            for each in threads:
                rest.enter_context(each.lock)
            now = {name: tensor.clone() for name, tensor in store.items()}
            steps = [len(each.stepped) for each in threads]
            snapshot = marks.cut(f"c{number}", base)
        assert snapshot.tensors.keys() == store.keys()
        wait_for_steps(threads, 3)
        if snapshot.is_whole:
            assert all(torch.equal(read_whole(snapshot, name), now[name]) for name in store)
        else:
            fresh += 1
            for place, table in enumerate("tu"):
                stepped = set[int]().union(
                    *(rows[place] for each, begin, end in zip(threads, since[base], steps, strict=True) for rows in each.stepped[begin:end])
                )  # fmt: skip
                for name in (table, f"{table}.s"):
                    rows, values = read_changed(snapshot, name)
                    assert sorted(rows.tolist()) == sorted(stepped)
                    assert snapshot.num_rows(name) == len(stepped)
                    assert torch.equal(moments[base][name].index_copy(0, rows, values), now[name])
        snapshot.close()
        if number == 4:
            assert marks.epoch <= 5, "they have begun anew"
            moments.clear()
        moments[f"c{number}"], since[f"c{number}"] = now, steps
    assert fresh


def test_who_reads_a_snapshot_that_nobody_waits_for_is_told() -> None:
    store = first_values(torch.Generator().manual_seed(1))
    marks = Marks(least_bytes=0)
    build_program(stepping(ONE, store), store, marks=marks)
    snapshot = marks.cut("c")
    pieces = snapshot.whole("t")
    snapshot.cancel()
    with pytest.raises(Cancelled):
        next(pieces)
    snapshot.close()
    assert marks.snapshot is None


def test_rows_that_were_not_worth_marks_where_they_are_stepped_have_none_though_another_net_has_more() -> None:
    """Their steps mark nothing: what has changed would be missed."""
    store = first_values(torch.Generator().manual_seed(1))
    net = stepping(ONE, store)
    least = store["t"].nbytes + 1
    by_itself = Marks(least_bytes=least)
    by_itself.stepping(("t",), ("t.s",), store)
    cache = Parameter("cache", (1,), "float32", "cache", Init("zeros"))
    by_itself.hear_of(Net("served", (), (), (), {}, {**net.parameters, "cache": cache}), {**store, "cache": object()})
    assert not by_itself.told()
    by_ops = Marks(least_bytes=least)
    small = Net("small", net.ops[:1], net.inputs, (), net.blobs, {name: net.parameters[name] for name in ("t", "t.s")})
    build_program(small, store, marks=by_ops)
    build_program(net, store, marks=by_ops)
    assert by_ops.told().keys() == {"u", "u.s"}
    the_other_way = Marks(least_bytes=least)
    build_program(net, store, marks=the_other_way)
    build_program(small, store, marks=the_other_way)
    assert the_other_way.told().keys() == {"t", "t.s", "u", "u.s"}


def test_tables_that_are_stepped_by_one_list_of_ids_have_marks_each() -> None:
    store = first_values(torch.Generator().manual_seed(1))
    net = stepping(MANY, store)
    attrs = net.ops[0].attrs
    op = Op("SparseStepTables", ("t", "u", "t.s", "u.s", "ids", "ids", "t:rows", "u:rows"), (), attrs, HERE)
    marks = Marks(least_bytes=0)
    marks.hear_of(Net(net.name, (op,), (), (), {}, net.parameters), store)
    marks.cut("whole").close()
    for is_bundled in (True, False):
        touching = marks.touching(op, is_bundled=is_bundled)
        assert touching
        names, touch = touching
        ids = [torch.tensor([FIRST + 3 + is_bundled])] * len(names)
        touch(*([Bundle.of(names, ids)] if is_bundled else ids))
    snapshot = marks.cut("changed", "whole")
    found = {name: sorted(read_changed(snapshot, name)[0].tolist()) for name in "tu"}
    assert found == {"t": [3, 4], "u": [FIRST + 3, FIRST + 4]}
    snapshot.close()


def test_a_step_that_meets_a_snapshot_which_is_closed_marks_its_rows_and_nothing_is_kept_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has looked for one just before."""
    store = first_values(torch.Generator().manual_seed(1))
    marks = Marks(least_bytes=0)
    before_step = marks.stepping(("t", "u"), ("t.s", "u.s"), store)
    closed = marks.cut("whole")
    before_step(np.array([1]))
    kept = [weakref.ref(each) for each in closed._kept.values()]
    closed.close()
    gc.collect()
    assert kept
    assert all(each() is None for each in kept)
    with monkeypatch.context() as late:
        late.setattr(marks, "snapshot", closed)
        before_step(np.array([5, ROWS + 7]))
    snapshot = marks.cut("changed", "whole")
    assert {name: read_changed(snapshot, name)[0].tolist() for name in "tu"} == {"t": [1, 5], "u": [7]}
    snapshot.close()


@pytest.mark.parametrize("op", [
    Op("Relax", ("t", "x"), (), {}, HERE),
    Op("HetPush", ("server", "t", "t.s", "ids", "x"), (), {}, HERE),
])  # fmt: skip
def test_a_table_that_something_writes_to_without_a_word_is_not_told_of(op: Op) -> None:
    store = first_values(torch.Generator().manual_seed(1))
    marks = Marks(least_bytes=0)
    net = stepping(ONE, store)
    build_program(net, store, marks=marks)
    assert marks.told().keys() == {"t", "t.s", "u", "u.s"}
    marks.hear_of(net.with_ops((*net.ops, op)), store)
    assert marks.told().keys() == {"u", "u.s"}


def test_what_steps_rows_by_itself_says_so() -> None:
    store = first_values(torch.Generator().manual_seed(1))
    marks = Marks(least_bytes=0)
    cache = Parameter("cache", (1,), "float32", "cache", Init("zeros"))
    net = stepping(ONE, store)
    before_step = marks.stepping(("t", "u"), ("t.s", "u.s"), store)
    marks.hear_of(Net("served", (), (), (), {}, {**net.parameters, "cache": cache}), {**store, "cache": object()})
    assert marks.told().keys() == {"t", "t.s", "u", "u.s"}
    marks.cut("whole").close()
    before_step(np.array([5, ROWS + 7, ROWS + 8]))
    snapshot = marks.cut("changed", "whole")
    assert {name: snapshot.num_rows(name) for name in store} == {"t": 1, "t.s": 1, "u": 2, "u.s": 2}
    assert read_changed(snapshot, "u")[0].tolist() == [7, 8]
    snapshot.close()


def test_what_serves_caches_writes_to_tables_by_itself() -> None:
    store = first_values(torch.Generator().manual_seed(1))
    marks = Marks(least_bytes=0)
    net = stepping(ONE, store)
    cache = Parameter("cache", (1,), "float32", "cache", Init("zeros"))
    marks.hear_of(
        Net(net.name, net.ops, net.inputs, (), net.blobs, {**net.parameters, "cache": cache}),
        {**store, "cache": object()},
    )
    assert not marks.told()


def test_a_table_that_nothing_steps_is_told_of_and_small_ones_are_not_worth_it() -> None:
    store = first_values(torch.Generator().manual_seed(1))
    net = stepping(ONE, store)
    marks = Marks(least_bytes=0)
    some = Net(net.name, net.ops[:1], net.inputs, (), net.blobs, net.parameters)
    build_program(some, store, marks=marks)
    assert marks.told().keys() == {"t", "t.s", "u"}
    little = Marks()
    build_program(net, store, marks=little)
    assert not little.told()
