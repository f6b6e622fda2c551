"""What is advised, as a cluster file has it: counts of hosts, how to train, and the cost model's constants as the
data has them."""

from dataclasses import fields
from typing import Any

import yaml

from htrain.advising.advice import Advice
from htrain.printable import one_line
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options
from htrain.spec.tree import KIND, document_of

_COUNTS = ("groups", "trainers", "group_ps", "sparse_ps")


def section_text(advice: Advice) -> str:
    """The text of a cluster file for `htrain compile --cluster`: what is not as by default, and how many hosts there
    are."""
    usual, options = Cluster(), document_of(advice.options)
    known = {f.name: getattr(advice.cluster, f.name) for f in fields(Cluster)}
    said = {name: value for name, value in known.items() if name in _COUNTS or value != getattr(usual, name)}
    lists = {"pin": dict(advice.cluster.pin), "together": [list(names) for names in advice.cluster.together]}
    said.update({name: value for name, value in lists.items() if name in said})
    document = {**said, "options": _unusual(options, document_of(Options()))}
    return f"# {_why(advice)}\n{yaml.safe_dump(document, sort_keys=False, width=160)}"


def _unusual(options: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    """Entries of the tree that are not as by default; of a section of another kind, all that it says, and of one of
    the same kind what differs."""
    found = {}
    for name, value in options.items():
        if value == usual[name]:
            continue
        if not isinstance(value, dict):
            found[name] = value
            continue
        alike = value.get(KIND) == usual[name].get(KIND)
        found[name] = {k: v for k, v in value.items() if v != (usual[name].get(k) if alike else [])}
        if alike and value.get(KIND):
            found[name] = {KIND: value[KIND], **found[name]}
    return found


def _why(advice: Advice) -> str:
    chosen, basis = advice.recommended, advice.basis
    if not advice.saves:
        return one_line(f"by htrain advise, of {basis.data}: no cache that was tried saves bytes of rows")
    saved = 1 - chosen.traffic.bytes_per_example / advice.uncached.bytes_per_example
    text = f"{chosen.share.hit_rate:.1%} of rows are in the cache, {saved:.1%} of the bytes of rows are saved"
    return one_line(f"by htrain advise, of {basis.data}: {text}")
