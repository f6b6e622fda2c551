"""Rules about the code itself that no linter has."""

import ast
import re
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import htrain

Public = tuple[ast.ClassDef | ast.FunctionDef, ast.ClassDef | None]
PACKAGE = Path(htrain.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
OF_OPS = (
    "ops",
    "transform",
    "frontend",
)  # a pass names the ops of its pattern; a frontend's nodes have types of their own


@cache
def tree_of(path: Path) -> ast.Module:
    """A module, parsed once for all rules."""
    return ast.parse(path.read_text())


def lists_of_types(tree: ast.AST) -> Iterator[int]:
    """The lines on which the `type` of something is looked for in a list, or by a part of its name."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Compare)
            and _is_type(node.left)
            and any(isinstance(o, ast.In | ast.NotIn) for o in node.ops)
        ):
            yield node.lineno
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("startswith", "endswith")
            and _is_type(node.func.value)
        ):
            yield node.lineno


def _is_type(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "type"


@pytest.mark.parametrize("line", ["op.type in NAMES", "op.type not in ('A', 'B')", "op.type.startswith('Sparse')"])
def test_a_list_of_ops_is_seen(line: str) -> None:
    assert list(lists_of_types(ast.parse(line))) == [1]


def test_no_module_but_those_of_ops_and_passes_has_a_list_of_ops() -> None:
    """What others must know of an op is a trait of it (docs/decisions/op-traits.md)."""
    others = [path for path in MODULES if path.relative_to(PACKAGE).parts[0] not in OF_OPS]
    assert [f"{path.relative_to(PACKAGE)}:{line}" for path in others for line in lists_of_types(tree_of(path))] == []


# Where a strategy may be named: its own three places, its ops, the tables of the spec, the words of older plans, and the public names; a client is HET's.
STRATEGIES = {
    "easgd": "easgd|elastic", "het": r"\bhet\b|Het(?![a-z])", "lookahead": "look_?-?ahead", "parameter_server": "parameter_?server",
    "table_servers": "table_?servers", "model_averaging": "model_?averag", "bmuf": "bmuf|block_?momentum", "gmp": "gmp",
}  # fmt: skip
ROOMS = (
    "strategies", "executor/strategies", "simulation/strategies", "sync", "ops",
    "spec/dense_sync.py", "spec/sparse_sync.py", "spec/cache.py", "spec/options.py", "spec/migrations.py",
    "__init__.py", "client",
)  # fmt: skip


def named_in(tree: ast.AST) -> Iterator[str]:
    """The names and texts of a module, but for what it documents."""
    documented = (
        node.body[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body
    )
    docs = {id(first.value) for first in documented if isinstance(first, ast.Expr)}
    for node in ast.walk(tree):
        for field in ("id", "attr", "name", "module"):
            if isinstance(value := getattr(node, field, None), str):
                yield value
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


@cache
def names_in_modules() -> dict[Path, list[str]]:
    """Those of each module in which no strategy may be named."""
    others = (path for path in MODULES if not str(path.relative_to(PACKAGE)).startswith(ROOMS))
    return {path: sorted(set(named_in(tree_of(path)))) for path in others}


@pytest.mark.parametrize("home", STRATEGIES)
def test_a_strategy_is_named_where_it_lives_and_nowhere_else(home: str) -> None:
    strangers = [
        f"{path.relative_to(PACKAGE)}: {name[:60]}"
        for path, names in names_in_modules().items()
        for name in names
        if re.search(STRATEGIES[home], name, re.IGNORECASE if home != "het" else 0)
    ]
    assert strangers == []


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


NAMES = {module_of(path) for path in MODULES}


def imported_by(path: Path) -> Iterator[str]:
    """What a module imports when it runs: by statements, and by names that are written out."""
    open_nodes: list[ast.AST] = [tree_of(path)]
    while open_nodes:
        node = open_nodes.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        open_nodes += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in NAMES else str(node.module) for name in inner)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "import_module":
            yield from (word.value for word in node.args if isinstance(word, ast.Constant))


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {module_of(path): {*imported_by(path)} & NAMES for path in MODULES}
    assert set(TopologicalSorter(graph).static_order()) == NAMES


ROOT = PACKAGE.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def layers(lines: Sequence[str]) -> list[set[str]]:
    """The rooms of each layer, the uppermost first: `a | b` are two of one layer."""
    return [{room.strip().rpartition(".")[2] for room in line.split("|")} for line in lines]


def test_the_page_draws_the_layers_that_are_checked() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    checked = [layers(contract["layers"]) for contract in contracts if contract["type"] == "layers"]
    drawings = re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert [layers([line for line in drawing.splitlines() if "▼" not in line]) for drawing in drawings] == checked


@pytest.mark.parametrize("folder", [PACKAGE, PACKAGE / "executor"], ids=lambda p: p.name)
def test_the_page_has_a_line_for_each_room(folder: Path) -> None:
    _, _, table = PAGE.partition(f"| room of `{folder.relative_to(ROOT)}/` | what it holds |\n")
    rows, _, _ = table.partition("\n\n")
    named = [room for row in rows.splitlines()[1:] for room in re.findall(r"`(\w+)`", row.split("|")[1])]
    there = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert sorted(named) == sorted(there - {"__init__"})


def arrays_copied_by_slices(tree: ast.AST) -> Iterator[int]:
    """The lines of Numba's loops in which a slice of an array becomes other than a constant."""
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and _is_compiled(node)]
    for node in (node for loop in loops for node in ast.walk(loop)):
        if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Constant | ast.UnaryOp):
            yield from (
                target.lineno for target in node.targets if isinstance(target, ast.Subscript) and _cuts(target.slice)
            )


def _is_compiled(function: ast.FunctionDef) -> bool:
    return any("njit" in ast.unparse(decorator) for decorator in function.decorator_list)


def _cuts(index: ast.expr) -> bool:
    return any(isinstance(part, ast.Slice) for part in (index.elts if isinstance(index, ast.Tuple) else [index]))


def test_no_loop_copies_arrays_by_slices() -> None:
    """Numba compiles the words of an error for it, for 1.5 s, in each process; and a loop of one's own copies four to ten times as fast."""
    assert [
        *arrays_copied_by_slices(ast.parse("@njit(cache=True)\ndef f(a, b):\n    a[:2] = 0.0\n    a[1:, 2] = b"))
    ] == [4]
    assert not [
        f"{path.relative_to(ROOT)}:{line}" for path in MODULES for line in arrays_copied_by_slices(tree_of(path))
    ]


def test_loops_that_are_kept_on_disk_are_compiled_once() -> None:
    """Numba's own cache is written by several processes at a time."""
    text = {path: path.read_text() for path in MODULES}
    assert not [
        path
        for path in MODULES
        if "cache=True" in text[path] and re.search(r"^from numba import .*\bnjit", text[path], re.MULTILINE)
    ]


def sizes_of_functions() -> list[int]:
    """Lines of each function of the package, without its docstring."""
    found = [node for path in MODULES for node in ast.walk(tree_of(path)) if isinstance(node, ast.FunctionDef)]
    return sorted((node.end_lineno or 0) - node.lineno + 1 - lines_of_docstring(node) for node in found)


def lines_of_docstring(node: ast.FunctionDef) -> int:
    first = node.body[0]
    return (first.end_lineno or 0) - first.lineno + 1 if ast.get_docstring(node) else 0


def test_what_is_decoded_by_types_is_decoded_by_one_thread_at_a_time() -> None:
    """msgspec crashes where two threads meet a type in the same moment."""
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in MODULES
        if path.name != "decoding.py"
        for node in ast.walk(tree_of(path))
        if (isinstance(node, ast.Call) and _decodes_by_type(node))
        or (isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("msgspec")
        and {"convert", "decode", "Decoder"} & {name.name for name in node.names})
    ]  # fmt: skip
    assert found == []


def _decodes_by_type(call: ast.Call) -> bool:
    """msgspec's own `decode` or `convert` with a type, or a decoder of one."""
    words = ast.unparse(call.func).split(".")
    typed = len(call.args) > 1 or any(keyword.arg == "type" for keyword in call.keywords)
    return words[0] == "msgspec" and (words[-1] == "Decoder" or (words[-1] in ("decode", "convert") and typed))


def test_functions_are_short() -> None:
    sizes = sizes_of_functions()
    assert sizes[len(sizes) * 9 // 10] <= 15
    assert sizes[-1] <= 53


def public_names(body: Sequence[ast.stmt], owner: ast.ClassDef | None = None) -> Iterator[Public]:
    """The classes and functions of a module that others may use, each with the class that it is in."""
    for node in body:
        overload = isinstance(node, ast.FunctionDef) and "overload" in map(ast.unparse, node.decorator_list)
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_") and not overload:
            yield node, owner
            if isinstance(node, ast.ClassDef):
                yield from public_names(node.body, node)


def is_command(node: ast.ClassDef | ast.FunctionDef) -> bool:
    """Whether it is a command of click's: its docstring is what users see."""
    return any("command" in ast.unparse(decorator) for decorator in node.decorator_list)


def raises(node: ast.AST) -> bool:
    """Whether a function itself raises something, other than what it has caught."""
    inner = [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.FunctionDef | ast.ClassDef)]
    return any((isinstance(child, ast.Raise) and child.exc is not None) or raises(child) for child in inner)


@cache
def all_public_names() -> dict[Path, list[Public]]:
    """Those of each module."""
    return {path: list(public_names(tree_of(path).body)) for path in MODULES}


def undocumented(room: str) -> Iterator[str]:
    """The public names of a room that do not say what they are, or what they raise; an override is documented where it is declared."""
    found = all_public_names()
    declared = {node.name for names in found.values() for node, owner in names if owner and ast.get_docstring(node)}
    declared |= {"convert", "get_metavar", "invoke"}  # of click
    for path, names in found.items():
        for node, owner in names if path.relative_to(PACKAGE).parts[0] == room else ():
            text = ast.get_docstring(node) or ""
            overrides = owner is not None and bool(owner.bases) and node.name in declared
            if not text and not overrides:
                yield f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name} has no docstring"
            elif text and raises(node) and "aises" not in text and not is_command(node):
                yield f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name} does not say what it raises"


@pytest.mark.parametrize("room", sorted({path.relative_to(PACKAGE).parts[0] for path in MODULES}))
def test_public_names_say_what_they_are_and_what_they_raise(room: str) -> None:
    assert list(undocumented(room)) == []


def test_calls_with_many_arguments_name_them() -> None:
    """Of six or more that stand by their place alone there are few: BLAS, operators of torch, comparisons of shapes."""
    lines = sum(path.read_text().count("\n") for path in MODULES)
    calls = [node for path in MODULES for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)]
    assert 1000 * sum(len(call.args) >= 6 for call in calls) / lines < 0.5
