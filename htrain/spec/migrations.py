"""What plans of older versions say, in today's words. A migration is never changed: it is about documents that were written once."""

from collections.abc import Callable, Mapping
from typing import Any

Document = dict[str, Any]
OLDEST = 14


def migrated(document: Mapping[str, Any], version: int) -> Document:
    """The entries `cluster` and `options` of a plan's header, or one of these alone, as the newest version writes them.

    Requires: `version` is OLDEST or newer. Raises ValueError for a document that no htrain wrote.
    """
    found = dict(document)
    try:
        for step in range(version, NEWEST):
            for entry, change in _STEPS[step].items():
                if entry in found:
                    found[entry] = change(found[entry])
    except KeyError as error:
        raise ValueError(f"{entry}: {error} is missing") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{entry}: not as version {version} has it") from error
    return found


def _options_from_14(flat: Mapping[str, Any]) -> Document:
    """Options were one flat list, where 0 and -1 stood for words, and all strategies' entries were there whichever was chosen."""
    old = dict(flat)
    dense: Document = {"kind": old["dense_optimizer"], "lr": old["dense_lr"]}
    dense |= {
        "adagrad": {"eps": old["eps"]},
        "adam": {"eps": old["adam_eps"], "beta1": old["beta1"], "beta2": old["beta2"]},
    }.get(old["dense_optimizer"], {})
    sparse: Document = {"kind": old["sparse_optimizer"], "lr": old["sparse_lr"]}
    sparse |= {} if old["sparse_optimizer"] == "sgd" else {"eps": old["eps"]}
    dense_sync: Document = {"kind": old["dense_sync"]}
    dense_sync |= {
        "easgd": {"alpha": old["sync_alpha"] or "auto", "period": old["sync_period"]}, "allreduce": {"bucket_bytes": old["bucket_bytes"]},
    }.get(old["dense_sync"], {})  # fmt: skip
    sparse_sync: Document = {"kind": old["sparse_sync"], "store": old["table_store"]}
    if old["sparse_sync"] == "ps":
        sparse_sync |= {"row_dtype": old["row_dtype"], "row_gradient_dtype": old["row_gradient_dtype"]}
    return {
        **{name: old[name] for name in ("batch_size", "net_replicas", "loss", "seed", "prefetch", "bounded_staleness")},
        "dense_optimizer": dense,
        "sparse_optimizer": sparse,
        "numerics": {name: old[name] for name in ("fc_dtype", "fc_gradient_dtype", "fast_products")},
        "compression": {
            **{name: old[name] for name in ("activation_dtype", "gradient_dtype", "error_feedback", "compress")},
            "gradient_top_k": old["gradient_top_k"] or 1.0,
        },
        "fusions": {
            name: old[f"fuse_{name}"]
            for name in ("relu", "fields", "tables", "interaction", "pairs", "steps", "servers")
        },
        "dense_sync": dense_sync,
        "sparse_sync": sparse_sync,
        "cache": _cache_from_14(old),
    }


def _cache_from_14(old: Mapping[str, Any]) -> Document:
    tables = [list(pair) for pair in old["cache_tables"]]
    if old["cache"] == "het":
        return {
            "kind": "het", "capacity": old["cache_capacity"], "staleness": "unbounded" if old["cache_staleness"] == -1 else old["cache_staleness"],
            "policy": old["cache_policy"], "window": old["cache_window"] or 64, "tables": tables,
        }  # fmt: skip
    if old["cache"] == "lookahead":
        return {
            "kind": "lookahead", "window": old["cache_window"] or "auto", "sets": old["cache_sets"] or "auto", "ways": old["cache_ways"],
            "patch": old["cache_patch"], "average": old["cache_average"], "device": old["cache_device"], "tables": tables,
        }  # fmt: skip
    return {"kind": old["cache"]}


def _cluster_from_14(old: Mapping[str, Any]) -> Document:
    return {**old, "host_cores": old["host_cores"] or "own", "python_lock": bool(old["python_lock"])}


def _options_from_15(old: Mapping[str, Any]) -> Document:
    """Rounds were in the background, through dense PSs, and weights travelled as they are. Gradients of activations could be sparsified: the nets of such
    a plan say so, and the options no longer do."""
    found = dict(old)
    if found["dense_sync"]["kind"] == "easgd":
        found["dense_sync"] = {
            **found["dense_sync"],
            "mode": "background",
            "through": "dense_ps",
            "dtype": "float32",
            "top_k": 1.0,
        }
    found["compression"] = {
        name: value for name, value in found["compression"].items() if name not in ("gradient_top_k", "error_feedback")
    }
    return found


def _cluster_from_16(old: Mapping[str, Any]) -> Document:
    """What is found in an index cost nothing but bytes, and a sparse PS was one process."""
    return {**old, "core_key_nanoseconds": 60, "sparse_ps_processes": 1}


def _options_from_17(old: Mapping[str, Any]) -> Document:
    """Rates were constant, gradients were not clipped, and optimizers had no momentum, no weight decay, and accumulators that begin with zeros."""
    found = {**old, **{name: {"kind": "constant", "warmup": 0} for name in ("dense_schedule", "sparse_schedule")}}
    found["dense_clip"] = {"kind": "none"}
    for section in ("dense_optimizer", "sparse_optimizer"):
        found[section] = {**_NEW_IN_18.get(found[section]["kind"], {}), **found[section]}
    return found


_NEW_IN_18: Mapping[str, Document] = {
    "sgd": {"momentum": 0.0, "dampening": 0.0, "nesterov": False, "weight_decay": 0.0},
    "adagrad": {"initial_accumulator": 0.0, "weight_decay": 0.0},
    "rowwise_adagrad": {"initial_accumulator": 0.0},
    "adam": {"weight_decay": 0.0},
}


def _options_from_18(old: Mapping[str, Any]) -> Document:
    """Rows of tables had no weight decay, and all weights and tables the rate of their optimizer."""
    found: Document = {**old, "rates": []}
    for section in ("dense_optimizer", "sparse_optimizer"):
        lazy = {"lazy_weight_decay": 0.0} if found[section]["kind"] in ("sgd", "adagrad", "rowwise_adagrad") else {}
        found[section] = {**found[section], **lazy}
    return found


_STEPS: Mapping[int, Mapping[str, Callable[[Mapping[str, Any]], Document]]] = {
    14: {"cluster": _cluster_from_14, "options": _options_from_14},
    15: {"options": _options_from_15},
    16: {"cluster": _cluster_from_16},
    17: {"options": _options_from_17},
    18: {"options": _options_from_18},
    19: {},  # no plan had a net of evaluation: an older htrain would not see it
}
NEWEST = OLDEST + len(_STEPS)
