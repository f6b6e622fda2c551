"""The Python API of plans: compile, simulate, size. The CLI's commands are these."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from htrain.advising.rates_file import read_rates
from htrain.compiler.fc_search import choose_splits
from htrain.compiler.lowering import NO_FC_SPLITS, NO_SPLITS
from htrain.compiler.pipeline import compile_net
from htrain.data import CRITEO, Dataset, open_data
from htrain.errors import UsageError
from htrain.executor.host.ahead import compiling
from htrain.executor.launch.inputs import check_inputs
from htrain.extending.rules import load_tagger
from htrain.given import is_in_memory, require_data, words
from htrain.in_memory import open_memory
from htrain.net.placement import Split
from htrain.ops.cache_rates import NO_RATES, Rates
from htrain.plan.check import check_plan
from htrain.plan.plan import Plan, load_plan
from htrain.self_check.capture import NO_INPUTS, capture_model, require_parameters
from htrain.simulation.cache_rates import MOST_BATCHES, RatesOf, require_cache, simulate_at, source_of
from htrain.simulation.compression import faster
from htrain.simulation.predicted import with_steady_state
from htrain.simulation.result import Simulated
from htrain.sizing.search import Candidate
from htrain.sizing.search import size as search_size
from htrain.spec.arguments import require_arguments
from htrain.spec.cluster import Cluster, this_machine, validated
from htrain.spec.compatibility import compatible
from htrain.spec.effects import given_counts, require_counts, require_effect
from htrain.spec.options import Options
from htrain.spec.settings import SchemaOf, Workers
from htrain.spec.tree import checked, given
from htrain.tagging import search_loops
from htrain.tagging.place import Solver, by_rules


def compile(
    model: str | Path | nn.Module,
    *,
    cluster: Cluster | None = None,
    options: Options = Options(),  # noqa: B008  frozen
    data: Any = "",
    schema: SchemaOf = "",
    example_inputs: Mapping[str, torch.Tensor] = NO_INPUTS,
    logit: str | int = "",
    label: str = "",
    table_splits: Mapping[str, int] = NO_SPLITS,
    fc_splits: Mapping[str, Split] | Literal["auto"] = "auto",
    rules: str = "",
    solver: Solver = "greedy",
    time_limit_seconds: float = 60.0,
    self_check: bool = True,
    rates: str | Path | Rates = "",
) -> Plan:
    """Compile a model to a plan for `cluster`, by default one of local processes on this machine.

    `model` is an `nn.Module`, a file with a `build` function (`models/dlrm.py`, `models/dcn.py:build_v1`), `package.module:factory`, or
    an ONNX file. `data` sizes the tables of a model that is built from a schema: FORMAT:PATH, or, with its `schema`, a table in memory or batches of one, as
    for `htrain.pack`, of which nothing but the schema is read. `example_inputs`, for a module, are its forward()'s
    arguments by name, with the batch first. `fc_splits` says which FCs are cut, by module; `auto` cuts those that the cost model finds
    worth it. `rules` names rules of your own (see
    `htrain.extending.rules`). `logit` names the output to train where there are several. `solver` says how the placement
    is found: by `rules` alone, with `greedy` refinement, or by the integer program (`ilp`, `cbc`) within `time_limit_seconds`.
    `rates` are those at which the plan's caches ask for rows, or the file with them that `htrain advise` has written; the prediction counts with them.
    With `self_check`, loss and gradients of what was captured are compared with the model's own on a small random batch.
    Raises ModelError, PlacementError, DataError, ClusterError.

        from pathlib import Path

        import htrain

        cluster = htrain.Cluster(groups=1, trainers=2, group_ps=1, sparse_ps=2)
        plan = htrain.compile("models/wide_deep.py", data="packed:train.packed", cluster=cluster)
        print(f"{plan.predicted_eps:,.0f} examples a second are predicted")
        plan.save(Path("plan"))
    """
    cluster = cluster or this_machine()
    _require_model("compile", model)
    require_arguments(
        "compile", cluster=cluster, options=options, data=words(data), example_inputs=example_inputs, logit=logit, label=label, table_splits=table_splits,
        fc_splits=fc_splits, rules=rules, solver=solver, time_limit_seconds=time_limit_seconds, self_check=self_check,
    )  # fmt: skip
    _require_effect(cluster, options)
    known = _rates_in(rates, cluster, options)
    dataset = _dataset(data, schema)
    with compiling(() if solver == "rules" else search_loops.LOOPS):
        found = capture_model(
            model,
            schema=dataset.schema if dataset else CRITEO,
            example_inputs=example_inputs,
            logit=logit,
            label=label,
            loss=options.loss,
        )
        require_parameters(found.captured.net, options, cluster, table_splits)
        captured = found.checked(options) if self_check else found.captured
        if fc_splits == "auto":
            fc_splits = choose_splits(captured, cluster, options, table_splits=table_splits)
        compile_with = partial(
            compile_net, captured, cluster, name=found.name, tagger=load_tagger(rules) if rules else by_rules, table_splits=table_splits,
            fc_splits=fc_splits, solver=solver, time_limit_seconds=time_limit_seconds, rates=known,
        )  # fmt: skip
        plan = _apart_from(model, with_steady_state(faster(compile_with, options)))
    if dataset:
        check_inputs(plan, dataset)  # --data that the plan cannot be trained on has no other effect for some models
    return plan


def _dataset(data: Any, schema: SchemaOf) -> Dataset | None:
    """Data by its address or in memory, of which nothing has been read; None where there is none. Raises UsageError and DataError."""
    require_data("compile", schema, data=data)
    if is_in_memory(data):
        return open_memory("compile", data, schema)
    return open_data(data) if data else None


def _apart_from(model: str | Path | nn.Module, plan: Plan) -> Plan:
    """The plan with values in memory of its own: the caller may train the module, or load others into it, before the plan is saved."""
    if not isinstance(model, nn.Module):
        return plan
    return replace(plan, values={name: value.clone() for name, value in plan.values.items()})


def _rates_in(rates: str | Path | Rates, cluster: Cluster, options: Options) -> Rates:
    if isinstance(rates, Rates):
        return rates
    require_arguments("compile", rates=rates)
    return read_rates(Path(rates), cluster, options) if str(rates) else NO_RATES


def _require_model(function: str, model: object) -> None:
    if not isinstance(model, str | Path | nn.Module) or not str(model):
        raise UsageError(
            f"{function}: model: is {model!r}, want an nn.Module, the path of a file, or package.module:factory"
        )


def _require_effect(cluster: Cluster, options: Options) -> None:
    """Raises UsageError or ClusterError for what cannot be, cannot run together, or would change nothing."""
    cluster = validated(vars(cluster), where="the cluster")
    require_effect(checked(options), cluster, given(options))
    require_counts(options, cluster, given_counts(cluster))
    compatible(cluster, options)


def size(
    model: str | Path | nn.Module,
    *,
    eps: float,
    cluster: Cluster = Cluster(),  # noqa: B008  frozen
    options: Options = Options(),  # noqa: B008  frozen
    data: str = "",
    example_inputs: Mapping[str, torch.Tensor] = NO_INPUTS,
    logit: str | int = "",
    label: str = "",
    fc_splits: Mapping[str, Split] | Literal["auto"] = NO_FC_SPLITS,
    most_groups: int = 32,
    workers: Workers = "auto",
    trace: str = "",
    zipf: float | Literal["none"] = "none",
    trace_batches: int = MOST_BATCHES,
    on_try: Callable[[Candidate], None] = lambda candidate: None,
) -> Candidate:
    """The fewest hosts of `cluster`'s kinds that reach `eps` in simulation; see `htrain.sizing.search.size`. What rows caches ask for is found as
    `simulate` finds it. Raises UsageError where the number of workers is not to be searched, and what `compile` does.

        import htrain

        found = htrain.size("models/wide_deep.py", data="packed:train.packed", eps=50_000.0, most_groups=2)
        print(f"{found.hosts} hosts, {found.plan.cluster.groups} groups, {found.found.eps:,.0f} examples a second")
    """
    _require_model("size", model)
    require_arguments(
        "size", cluster=cluster, options=options, data=data, example_inputs=example_inputs, logit=logit, label=label, fc_splits=fc_splits, eps=eps,
        most_groups=most_groups, workers=workers, trace=trace, zipf=zipf, trace_batches=trace_batches,
    )  # fmt: skip
    if options.sparse_sync.beside:
        raise UsageError(
            f"size searches how many workers it takes, {options.holder.words} has as many as its partition: htrain compile a plan for each partition, and "
            "htrain simulate it"
        )
    rates_of = _rates_of(options, trace, zipf, trace_batches)
    require_effect(checked(options), validated(vars(cluster), where="the cluster"), given(options), searched=True)
    schema = open_data(data).schema if data else CRITEO
    found = capture_model(
        model, schema=schema, example_inputs=example_inputs, logit=logit, label=label, loss=options.loss
    )
    captured = found.captured
    require_parameters(captured.net, options, cluster, NO_SPLITS)

    def compile_for(cluster: Cluster, options: Options) -> Plan:
        splits = choose_splits(captured, cluster, options, table_splits=NO_SPLITS) if fc_splits == "auto" else fc_splits
        return compile_net(captured, cluster, options, name=found.name, fc_splits=splits)

    return search_size(
        compile_for,
        cluster,
        options,
        eps=eps,
        most_groups=most_groups,
        workers=workers,
        rates_of=rates_of,
        on_try=on_try,
    )


def simulate(
    plan: Plan | str | Path,
    *,
    steps: int = 40,
    workers: Workers = "auto",
    seed: int = 0,
    python_lock: bool = True,
    trace: str = "",
    zipf: float | Literal["none"] = "none",
    trace_batches: int = MOST_BATCHES,
    on_rates: Callable[[Rates], None] = lambda rates: None,
) -> Simulated:
    """Simulate a plan, or the plan of a folder, on its cluster; see `htrain.simulation.run.simulate`.

    What rows its caches ask for is found by playing their decisions over batches of ids (`htrain.simulation.cache_rates.rates_of`), and told to
    `on_rates`: over the data `trace`, `FORMAT:PATH`, or ids drawn by a Zipf law of exponent `zipf`, `trace_batches` of each trainer at most. With neither,
    the rates that it was compiled with are taken, or the plan's cluster says it by `distinct_percent` and `cache_hit_percent`.
    Raises UsageError for a plan without a cache, of which neither says anything, and for both.

        import htrain

        found = htrain.simulate("plan", steps=20)
        device, what, share = found.bottleneck
        print(f"{found.eps:,.0f} examples a second; {what} of {device} is busy for {share:.0%} of the time")
    """
    require_arguments(
        "simulate", steps=steps, workers=workers, seed=seed, python_lock=python_lock, trace=trace, zipf=zipf, trace_batches=trace_batches
    )  # fmt: skip
    if not isinstance(plan, Plan):
        require_arguments("simulate", plan=plan)
    loaded = plan if isinstance(plan, Plan) else check_plan(load_plan(Path(plan)))
    rates = loaded.known_rates(_rates_of(loaded.options, trace, zipf, trace_batches, seed)(loaded))
    if rates.caches:
        on_rates(rates)
    return simulate_at(loaded, rates, steps=steps, workers=workers, seed=seed, python_lock=python_lock)


def _rates_of(
    options: Options, trace: str, zipf: float | Literal["none"], trace_batches: int, seed: int = 0
) -> RatesOf:
    """Raises UsageError for what says nothing of these options."""
    source = source_of(trace, zipf, seed)
    if source:
        require_cache(options.holder, source)
    elif trace_batches != MOST_BATCHES:
        raise UsageError(
            f"--trace-batches {trace_batches} has no effect: there are no batches to look at (--trace or --zipf)"
        )
    return RatesOf(source, trace_batches)
