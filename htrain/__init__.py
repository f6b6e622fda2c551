"""htrain compiles a recommendation model into a placement plan for a CPU cluster, and trains it there.

    plan = htrain.compile("models/dlrm.py", data="criteo:train.tsv", cluster=htrain.Cluster(groups=2, trainers=2, group_ps=2))
    plan.save(Path("plan"))
    result = htrain.run("plan", data="criteo:train.tsv", out="runs/a")
    print(htrain.evaluate("runs/a", data="criteo:test.tsv").auc)

Names are loaded when they are first used, so that `htrain --help` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from htrain.api import compile, evaluate, run, simulate, size
    from htrain.cluster import Cluster
    from htrain.errors import Error
    from htrain.ops.base import Cost, OpDef
    from htrain.ops.user_ops import register
    from htrain.options import Options
    from htrain.plan import Plan

__all__ = ["Cluster", "Cost", "Error", "OpDef", "Options", "Plan", "compile", "evaluate", "register", "run", "simulate", "size"]
__version__ = "0.1.0"

_HOMES = {
    "compile": "htrain.api",
    "run": "htrain.api",
    "evaluate": "htrain.api",
    "simulate": "htrain.api",
    "size": "htrain.api",
    "Cluster": "htrain.cluster",
    "Options": "htrain.options",
    "Plan": "htrain.plan",
    "Error": "htrain.errors",
    "Cost": "htrain.ops.base",
    "OpDef": "htrain.ops.base",
    "register": "htrain.ops.user_ops",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'htrain' has no attribute '{name}'")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
