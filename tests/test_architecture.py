"""Rules about the code itself that no linter has."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import htrain

PACKAGE = Path(htrain.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
OF_OPS = ("ops", "transform", "frontend")  # a pass names the ops of its pattern; a frontend's nodes have types of their own


def lists_of_types(source: str) -> Iterator[int]:
    """The lines on which the `type` of something is looked for in a list, or by a part of its name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and _is_type(node.left) and any(isinstance(o, ast.In | ast.NotIn) for o in node.ops):
            yield node.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("startswith", "endswith") and _is_type(node.func.value):
            yield node.lineno


def _is_type(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "type"


@pytest.mark.parametrize("line", ["op.type in NAMES", "op.type not in ('A', 'B')", "op.type.startswith('Sparse')"])
def test_a_list_of_ops_is_seen(line: str) -> None:
    assert list(lists_of_types(line)) == [1]


def test_no_module_but_those_of_ops_and_passes_has_a_list_of_ops() -> None:
    """What others must know of an op is a trait of it (docs/decisions/op-traits.md)."""
    others = [path for path in MODULES if path.relative_to(PACKAGE).parts[0] not in OF_OPS]
    assert [f"{path.relative_to(PACKAGE)}:{line}" for path in others for line in lists_of_types(path.read_text())] == []
