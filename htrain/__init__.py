"""htrain compiles a recommendation model into a placement plan for a CPU cluster, and trains it there.

    plan = htrain.compile("models/dlrm.py", data="criteo:train.tsv", cluster=htrain.Cluster(groups=2, trainers=2, group_ps=2))
    result = htrain.run(plan, data="criteo:train.tsv", out="runs/a")  # or the folder that plan.save has written
    print(htrain.evaluate("runs/a", data="criteo:test.tsv").auc)
    htrain.export("runs/a", to="onnx", out="model.onnx")

Options are a tree: `htrain.Options(batch_size=512, dense_optimizer=htrain.Adam(lr=0.001), cache=htrain.HetCache(capacity="5%", staleness=10))`.

Names are loaded when they are first used, so that `htrain --help` does not wait for torch.
"""

import gc
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from htrain.api import compile, simulate, size
    from htrain.data import Dataset, Input, Schema, click_schema, open_data
    from htrain.errors import Error
    from htrain.extending.policies import register_policy
    from htrain.extending.strategies import register_strategy
    from htrain.ops.base import Cost, OpDef, RowChange
    from htrain.ops.user_ops import register
    from htrain.plan.plan import Plan
    from htrain.preparing import advise, collisions, describe, features, pack, partition, vocabulary
    from htrain.publishing.reading import Published
    from htrain.report.runs.curves import Curves, curves
    from htrain.serving import serve
    from htrain.spec.cache import Cache, HetCache, LookAheadCache, NoCache
    from htrain.spec.clipping import ClipGlobalNorm, ClipNorm, ClipValue
    from htrain.spec.cluster import Cluster
    from htrain.spec.dense_sync import AllReduce, Bmuf, DenseSync, Easgd, InRounds, ModelAveraging, ParameterServer
    from htrain.spec.fields import about
    from htrain.spec.numerics import Compression, Fusions, Numerics
    from htrain.spec.optimizers import (
        Adagrad,
        Adam,
        AdamW,
        Ftrl,
        LazyMomentum,
        RowwiseAdagrad,
        RowwiseAdam,
        Sgd,
        SparseAdam,
    )
    from htrain.spec.options import Options
    from htrain.spec.schedules import ConstantRate, CosineDecay, LinearDecay, StepDecay
    from htrain.spec.settings import Elsewhere
    from htrain.spec.sparse_sync import AllGather, Gmp, SparseSync, TableServers
    from htrain.trained import export, predict
    from htrain.training import evaluate, run

__all__ = [
    "Adagrad", "Adam", "AdamW", "AllGather", "AllReduce", "Bmuf", "Cache", "ClipGlobalNorm", "ClipNorm", "ClipValue", "Cluster", "Compression",
    "ConstantRate", "CosineDecay", "Cost", "Curves", "Dataset", "DenseSync", "Easgd", "Elsewhere", "Error", "Ftrl", "Fusions", "Gmp", "HetCache",
    "InRounds", "Input", "LazyMomentum", "LinearDecay", "LookAheadCache", "ModelAveraging", "NoCache", "Numerics", "OpDef", "Options",
    "ParameterServer", "Plan", "Published", "RowChange", "RowwiseAdagrad", "RowwiseAdam", "Schema", "Sgd", "SparseAdam", "SparseSync", "StepDecay",
    "TableServers", "about", "advise", "click_schema", "collisions", "compile", "curves", "describe", "evaluate", "export", "features", "open_data",
    "pack", "partition", "predict", "register", "register_policy", "register_strategy", "run", "serve", "simulate", "size", "vocabulary",
]  # fmt: skip
__version__ = "0.1.0"

_HOMES = {
    "compile": "htrain.api",
    **dict.fromkeys(("Dataset", "Input", "Schema", "click_schema", "open_data"), "htrain.data"),
    "run": "htrain.training",
    "evaluate": "htrain.training",
    **dict.fromkeys(("predict", "export"), "htrain.trained"),
    "simulate": "htrain.api",
    "size": "htrain.api",
    **dict.fromkeys(
        ("advise", "partition", "pack", "features", "describe", "vocabulary", "collisions"), "htrain.preparing"
    ),
    "serve": "htrain.serving",
    **dict.fromkeys(("Curves", "curves"), "htrain.report.runs.curves"),
    "Cluster": "htrain.spec.cluster",
    "Options": "htrain.spec.options",
    **dict.fromkeys(
        ("Sgd", "Adagrad", "RowwiseAdagrad", "Adam", "AdamW", "SparseAdam", "RowwiseAdam", "LazyMomentum", "Ftrl"),
        "htrain.spec.optimizers",
    ),
    **dict.fromkeys(("ClipGlobalNorm", "ClipNorm", "ClipValue"), "htrain.spec.clipping"),
    **dict.fromkeys(("ConstantRate", "CosineDecay", "LinearDecay", "StepDecay"), "htrain.spec.schedules"),
    **dict.fromkeys(("Numerics", "Compression", "Fusions"), "htrain.spec.numerics"),
    **dict.fromkeys(("Easgd", "ModelAveraging", "Bmuf", "AllReduce", "ParameterServer"), "htrain.spec.dense_sync"),
    **dict.fromkeys(("TableServers", "AllGather", "Gmp"), "htrain.spec.sparse_sync"),
    **dict.fromkeys(("NoCache", "HetCache", "LookAheadCache"), "htrain.spec.cache"),
    "Elsewhere": "htrain.spec.settings",
    "Plan": "htrain.plan.plan",
    "Published": "htrain.publishing.reading",
    "Error": "htrain.errors",
    "Cost": "htrain.ops.base",
    "OpDef": "htrain.ops.base",
    "RowChange": "htrain.ops.base",
    "register": "htrain.ops.user_ops",
    "register_policy": "htrain.extending.policies",
    "register_strategy": "htrain.extending.strategies",
    "about": "htrain.spec.fields",
    "DenseSync": "htrain.spec.dense_sync",
    "InRounds": "htrain.spec.dense_sync",
    "SparseSync": "htrain.spec.sparse_sync",
    "Cache": "htrain.spec.cache",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'htrain' has no attribute '{name}'")
    collects = gc.isenabled()
    gc.disable()  # nothing of what is imported is garbage, and looking for some takes a fifth of the time
    try:
        value = getattr(import_module(_HOMES[name]), name)
    finally:
        if collects:
            gc.enable()
    globals()[name] = value
    return value
