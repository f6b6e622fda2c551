"""What a forward net reads: the rows of every shard of a table, wherever it is."""

from pathlib import Path

from small_wide_deep import BATCH, model_of

from htrain.compiler.pipeline import compile_net
from htrain.executor.launch.forward import forward_net
from htrain.plan.plan import load_plan
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags


def test_shards_of_a_cached_table_are_read_in_row_order_whatever_a_server_has_of_them(
    tmp_path: Path,
) -> None:
    _, captured = model_of("wide_deep.py")
    options = with_flags(batch_size=BATCH, dense_sync="allreduce", cache="het")
    tables = [name for name, p in captured.net.parameters.items() if p.kind == "table"]
    cluster = this_machine(groups=1, trainers=1, group_ps=0, sparse_ps=2)
    plan = compile_net(captured, cluster, options, name="m", table_splits=dict.fromkeys(tables, 3))
    plan.save(tmp_path / "plan")
    net = forward_net(load_plan(tmp_path / "plan").train)
    lookups = [op for op in net.ops if op.type == "LookupShards"]
    assert lookups
    for op in lookups:
        rows = [net.parameters[name].first_row for name in op.inputs[:-1]]
        assert rows == sorted(rows) == list(op.attrs["bounds"])[:-1]  # type: ignore[arg-type]
