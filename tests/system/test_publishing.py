"""Versions that whole runs publish while they train, against the weights and tables that their checkpoints have in the end."""

import re
import threading
from pathlib import Path

import pytest
import torch
from drawn_plans import Drawn, data_of
from gmp_data import BATCH as GMP_BATCH
from gmp_data import FieldNet, drawn, examples_of, parts_of
from small_wide_deep import BATCH, DATA, small_plan
from stores import s3_store

import htrain
from htrain.errors import PublishError, UsageError
from htrain.executor.launch.forward import load_trained
from htrain.exporting.wholes import load_wholes
from htrain.plan.plan import Plan
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

PLANS = {
    "one process": ({}, {"sparse_ps": 0}),
    "shards and a dense PS": ({}, {"groups": 2, "trainers": 2, "group_ps": 1, "sparse_ps": 2, "dense_ps": 1}),
    "centres with groups": ({"sync_through": "groups"}, {"groups": 2, "trainers": 1, "group_ps": 2}),
    "no centre": ({"dense_sync": "allreduce"}, {"groups": 2}),
    "het": ({"cache": "het", "cache_capacity": "20%", "cache_staleness": 50}, {"sparse_ps": 2}),
    "look-ahead": ({"cache": "lookahead"}, {"sparse_ps": 1}),
    "gathered tables": ({"dense_sync": "allreduce", "sparse_sync": "allgather"}, {"groups": 2, "sparse_ps": 0}),
}


class Follower:
    """Reads versions again and again, beside a run, and keeps how many examples each had seen."""

    def __init__(self, address: str) -> None:
        self.model = htrain.Published(address)
        self.seen: list[int] = []
        self.error: Exception | None = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        try:
            while not self._ends.wait(0.02):
                self._look()
            self._look()
        except Exception as error:
            self.error = error

    def _look(self) -> None:
        if self.model.refresh():
            assert self.model.version is not None
            self.seen.append(self.model.version.examples)
            assert all(torch.isfinite(tensor).all() for tensor in self.model.parameters.values())

    def end(self) -> None:
        self._ends.set()
        self._thread.join(20)
        if self.error:
            raise self.error


def is_what_was_trained(model: htrain.Published, plan: Path, run: Path) -> bool:
    wholes = load_wholes(load_trained(plan, run, "center"))
    assert model.parameters.keys() == wholes.keys()
    return all(
        torch.equal(model.parameters[name], whole.values().reshape(whole.shape)) for name, whole in wholes.items()
    )


@pytest.mark.parametrize("kind", PLANS)
def test_who_follows_the_versions_of_a_run_ends_with_what_it_has_trained(kind: str, tmp_path: Path) -> None:
    flags, counts = PLANS[kind]
    plan = small_plan(with_flags(batch_size=BATCH, net_replicas=1, **flags), **counts)[1]  # type: ignore[arg-type]
    follow(plan, DATA, tmp_path)


def test_rows_that_a_partition_has_numbered_are_published_under_their_own_numbers(tmp_path: Path) -> None:
    parts = parts_of(tmp_path, 2)
    options = with_flags(
        batch_size=GMP_BATCH, dense_sync="allreduce", sparse_sync="gmp", partition=str(parts.partition), gmp_write="deferred"
    )  # fmt: skip
    model, arguments = drawn(FieldNet), ("sparse", "seen", "seen_length")
    inputs = {name: value for name, value in examples_of(parts.source).items() if name in arguments}
    cluster = this_machine(groups=2, trainers=1, group_ps=0)
    plan = htrain.compile(model, example_inputs=inputs, cluster=cluster, options=options, self_check=False)
    follow(plan, parts.packed, tmp_path)


@pytest.mark.parametrize("seed", range(2))
def test_a_drawn_plan_publishes_what_it_has_trained(seed: int, tmp_path: Path) -> None:
    plan = Drawn.of(seed)
    follow(plan.plan(), data_of(plan.model, tmp_path, 2000), tmp_path)


def follow(plan: Plan, data: str, folder: Path, address: str = "") -> None:
    address = address or str(folder / "store")
    plan.save(folder / "plan")
    follower = Follower(address)
    try:
        result = htrain.run(
            folder / "plan", data=data, out=folder / "run", hosting="threads", epochs=2,
            publish=address, publish_every=0.05, publish_full_every=3,
        )  # fmt: skip
    finally:
        follower.end()
    assert follower.seen == sorted(follower.seen)
    assert len(follower.seen) > 1
    assert follower.model.version is not None
    assert follower.model.version.is_final
    assert follower.model.version.examples == result.totals.examples
    assert is_what_was_trained(follower.model, folder / "plan", folder / "run")
    anew = htrain.Published(address)
    assert anew.refresh()
    assert all(torch.equal(anew.parameters[name], tensor) for name, tensor in follower.model.parameters.items())


def test_an_address_where_nothing_can_be_written_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    small_plan(with_flags(batch_size=BATCH), sparse_ps=1)[1].save(tmp_path / "plan")
    (tmp_path / "file").write_text("")
    for address, said in ((tmp_path / "file", "Not a directory"), ("nowhere://x", "fsspec has no driver for nowhere:")):
        with pytest.raises(PublishError, match=re.escape(said)):
            htrain.run(tmp_path / "plan", data=DATA, out=tmp_path / "run", hosting="threads", publish=str(address))
        assert not (tmp_path / "run").exists()


def test_versions_may_go_into_the_run_folder_and_a_folder_that_is_refused_gets_none(tmp_path: Path) -> None:
    small_plan(with_flags(batch_size=BATCH), sparse_ps=1)[1].save(tmp_path / "plan")
    run = tmp_path / "run"
    for wanted in ({"out": run}, {"resume": run, "epochs": 2}):
        htrain.run(tmp_path / "plan", data=DATA, hosting="threads", publish=str(run / "published"), **wanted)  # type: ignore[arg-type]
    model = htrain.Published(str(run / "published"))
    assert model.refresh()
    assert is_what_was_trained(model, tmp_path / "plan", run)
    with pytest.raises(UsageError, match="already holds a run"):
        htrain.run(tmp_path / "plan", data=DATA, out=run, hosting="threads", publish=str(tmp_path / "other"))
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("said", [{"publish_every": 20.0}, {"publish_full_every": 3}])
def test_what_is_said_of_versions_where_none_are_published_is_an_error(said: dict[str, float], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--publish-(full-)?every has no effect without --publish: name where"):
        htrain.run(tmp_path / "plan", data=DATA, out=tmp_path / "run", **said)  # type: ignore[arg-type]


def test_a_resumed_run_goes_on_with_the_numbers_and_begins_with_a_full_version(tmp_path: Path) -> None:
    small_plan(with_flags(batch_size=BATCH), sparse_ps=1)[1].save(tmp_path / "plan")
    publish = str(tmp_path / "store")
    htrain.run(tmp_path / "plan", data=DATA, out=tmp_path / "run", hosting="threads", publish=publish)
    one = htrain.Published(publish)
    assert one.refresh()
    htrain.run(tmp_path / "plan", data=DATA, resume=tmp_path / "run", hosting="threads", publish=publish, epochs=1)
    assert one.refresh()
    assert one.version is not None
    assert (one.version.number, one.version.base) == (2, "")
    assert is_what_was_trained(one, tmp_path / "plan", tmp_path / "run")


def test_versions_go_to_an_object_store_and_come_from_it(tmp_path: Path) -> None:
    flags, counts = PLANS["shards and a dense PS"]
    plan = small_plan(with_flags(batch_size=BATCH, net_replicas=1, **flags), **counts)[1]  # type: ignore[arg-type]
    with s3_store():
        follow(plan, DATA, tmp_path, address="s3://logs/models/ads")
