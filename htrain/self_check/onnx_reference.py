"""An ONNX file as onnx's own evaluator computes it; and gradients by another route than ours.

The evaluator has no gradients. It shows, on random weights, that the net computes what the file does; and the net's forward ops, which by
then are known to be right, are differentiated by autograd, which knows nothing of our gradient ops.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnx.helper import get_attribute_value
from onnx.numpy_helper import to_array
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_gru import GRU
from onnx.reference.ops.op_lstm import LSTM
from onnx.reference.ops.op_rnn import RNN_14 as RNN

from htrain.frontend.captured import Captured
from htrain.frontend.onnx_graph import concrete
from htrain.frontend.onnx_model import end_at, read_file, value_of_logit
from htrain.frontend.onnx_weights import array_of
from htrain.net.net import Attr, Net, Op, Tensor
from htrain.onnx_format.schemas import attributes_of
from htrain.ops import OPS
from htrain.ops.base import constant_of
from htrain.ops.user_ops import is_users
from htrain.self_check.check import Found, check
from htrain.self_check.evaluation import Evaluated
from htrain.self_check.lazy_tables import Leaf, read
from htrain.self_check.outcome import Gradient, Outcome, loss_of, summed_rows
from htrain.self_check.values import PERIOD, Table, Values
from htrain.spec.options import Options

Tensors = Mapping[str, torch.Tensor]


def check_file(captured: Captured, path: Path, logit: str, options: Options) -> Found:
    """Compare a captured ONNX file with what onnx's evaluator makes of it; as `htrain.self_check.check.check`."""
    reference = OnnxReference(captured, path, logit)
    inputs = {name: torch.zeros(concrete(blob.shape, reference.batch_size), dtype=getattr(torch, blob.dtype))
              for name in captured.net.inputs for blob in [captured.net.blobs[name]]}  # fmt: skip
    return check(captured, reference, inputs, options)


class OnnxReference:
    """The graph of the file up to the logit, with weights that are given at each run; tables of many rows repeat their first ones."""

    name = "onnx's evaluator"
    padding_rows: frozenset[int] = frozenset()

    def __init__(self, captured: Captured, path: Path, logit: str) -> None:
        self._captured = captured
        self.dense_bytes = sum(p.num_bytes for p in captured.net.parameters.values() if p.kind != "table")
        model, _ = read_file(path)
        value = value_of_logit(model.graph, logit)
        end_at(model.graph, value)
        self._output = str(value.name)
        sizes = {
            v.shape[0]
            for v in model.graph.inputs
            if v.name in captured.net.inputs and v.shape is not None and isinstance(v.shape[0], int)
        }
        self.batch_size = int(sizes.pop()) if sizes else 13
        self._given = {
            o.name: (name, o) for name, found in captured.origins.items() if _is_drawn(captured, name) for o in found
        }
        tables = {
            o: _padding_of(captured.net, name)
            for o, (name, _) in self._given.items()
            if captured.net.parameters[name].kind == "table"
        }
        _open(model.graph, set(self._given), tables)
        self._evaluator = ReferenceEvaluator(ir.to_proto(model), new_ops=[*_user_ops(model.graph), *_RECURRENT])

    def evaluated(self, values: Values, inputs: Mapping[str, torch.Tensor], captured: Captured) -> Evaluated:
        """The file's outputs: it does the same in evaluation. Raises what the evaluator raises."""
        return Evaluated(self._outputs(values, inputs))

    def check_follows(self, values: Values, later: Values, inputs: Mapping[str, torch.Tensor]) -> None:
        """A graph keeps nothing."""

    def check_stateless(self, values: Values, inputs: Tensors, other: Tensors | None) -> None:
        """A file keeps nothing."""

    def run(self, values: Values, inputs: Tensors, label: torch.Tensor, loss: str, *, probability: bool) -> Outcome:
        """The file's outputs, and gradients by autograd. Raises what the evaluator raises."""
        outputs = self._outputs(values, inputs)
        total = loss_of(outputs, label, loss, probability=probability)
        return Outcome(float(total), outputs, self._gradients(values, inputs, label, loss, probability=probability))

    def _outputs(self, values: Values, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        for name, found in self._captured.origins.items():
            if name in values.tables and found and values.tables[name].zero_rows != self._first(values, found[0].name):
                raise ValueError(f"'{name}' is stored with a table of another padding row")
        feeds = {name: value.numpy() for name, value in inputs.items()}
        for tensor, (name, origin) in self._given.items():
            value = self._held(values.tables[name], name) if name in values.tables else values.dense[name]
            feeds[tensor] = (value.t() if origin.transposed else value).numpy()
        with np.errstate(all="ignore"):
            (result,) = self._evaluator.run([self._output], feeds)
        return torch.from_numpy(np.asarray(result)).reshape(-1).float()

    def _first(self, values: Values, tensor: str) -> frozenset[int]:
        """The rows of zeros of the table for which a tensor of the file is given."""
        return values.tables[self._given[tensor][0]].zero_rows

    def _held(self, table: Table, name: str) -> torch.Tensor:
        """A table as the evaluator reads it: its rows, or of many those that repeat, and behind them its padding row."""
        padding = _padding_of(self._captured.net, name)
        ids = torch.arange(min(table.num_rows, PERIOD))
        rows = table.base[ids] if table.num_rows > PERIOD else table.rows(ids)
        if padding < 0 or table.num_rows <= PERIOD:
            return rows
        return torch.cat([rows, table.rows(torch.tensor([padding]))])

    def _gradients(
        self, values: Values, inputs: Tensors, label: torch.Tensor, loss: str, *, probability: bool
    ) -> dict[str, Gradient]:
        """Of the forward net's kernels, by autograd."""
        net = self._captured.net
        trained = {name for name, p in net.parameters.items() if p.trained}
        dense = {name: value.clone().requires_grad_(name in trained) for name, value in values.dense.items()}
        leaves: dict[str, list[Leaf]] = {}
        known: dict[str, torch.Tensor] = {**dense, **inputs}
        with torch.enable_grad():
            for op in net.ops:
                if op.type == "Embedding":
                    table = op.inputs[0]
                    leaf, places = read(values.tables[table], known[op.inputs[1]])
                    leaves.setdefault(table, []).append(leaf)
                    results = OPS[op.type].run(op, [leaf[1], places], len(label))
                    padded = torch.eq(known[op.inputs[1]], int(str(op.attrs["padding_idx"]))).unsqueeze(-1)
                    results = tuple(torch.where(padded, rows.detach(), rows) for rows in results)
                elif op.type == "EmbeddingBag":
                    table, ids, *weights = op.inputs
                    leaf, places = read(values.tables[table], known[ids])
                    leaves.setdefault(table, []).append(leaf)
                    results = (_pooled(op, leaf[1][places], known[ids], *(known[name] for name in weights)),)
                elif op.type == "Detach":  # behind a padding row of a weight
                    results = (known[op.inputs[0]].detach(),)
                else:
                    results = OPS[op.type].run(op, [known[name] for name in op.inputs], len(label))
                known.update(zip(op.outputs, results, strict=True))
            total = loss_of(known[net.outputs[0]].reshape(-1).float(), label, loss, probability=probability)
            if total.requires_grad:
                total.backward()
        found: dict[str, Gradient] = {name: leaf.grad for name, leaf in dense.items() if leaf.grad is not None}
        for name in leaves.keys() & trained:
            parts = [(ids, rows.grad) for ids, rows in leaves[name] if rows.grad is not None]
            found.update({name: summed_rows(parts)} if parts else {})
        return found


def _pooled(op: Op, rows: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    """The sums or means of the rows[B,W,D] of bags, but for those of the padding row."""
    kept = torch.ne(ids, int(str(op.attrs["padding_idx"]))).unsqueeze(-1).to(rows.dtype)
    summed = (rows * kept if weights is None else rows * kept * weights.unsqueeze(-1)).sum(1)
    return summed / kept.sum(1).clamp(min=1) if op.attrs["mode"] == "mean" else summed


def _user_ops(graph: ir.Graph) -> list[type[OpRun]]:
    """What the evaluator runs for the ops of the user's own: their kernels, which are the only words on what they do."""
    found = {
        (node.domain, node.op_type): node.op_type
        for node in graph
        if node.domain not in ("", "ai.onnx") and is_users(node.op_type)
    }
    return [type(name, (_UserOp,), {"op_domain": domain}) for (domain, _), name in found.items()]


class _UserOp(OpRun):
    """A node of a user's op."""

    def _run(self, *inputs: np.ndarray, **_: object) -> tuple[np.ndarray, ...]:
        given = {a.name: get_attribute_value(a) for a in self.onnx_node.attribute}
        attributes = {
            name: _attribute(given[name], kind)
            for name, kind in attributes_of(self.onnx_node.op_type).items()
            if name in given
        }
        outputs = OPS[self.onnx_node.op_type].run(
            Op(self.onnx_node.op_type, (), (), attributes),
            [torch.from_numpy(np.array(x)) for x in inputs],
            len(inputs[0]),
        )
        return tuple(y.numpy() for y in outputs)


def _of_lengths(op: type[OpRun]) -> type[OpRun]:
    """A recurrent op that goes by `sequence_lens`, which the evaluator's own leaves out: each example by itself, for its steps; and that knows Relu."""

    def _run(self: Any, x: np.ndarray, *operands: Any, **attributes: Any) -> tuple[np.ndarray, ...]:
        if len(operands) < 4 or operands[3] is None:
            return op._run(self, x, *operands, **attributes)
        if attributes.get("layout"):  # x[B,T,I], states[B,D,H] and y[B,T,D,H]
            states = [state if state is None else state.swapaxes(0, 1) for state in operands[4:]]
            y, *ends = _run(self, x.swapaxes(0, 1), *operands[:4], *states, **{**attributes, "layout": 0})
            return np.moveaxis(y, 2, 0), *(end.swapaxes(0, 1) for end in ends)
        weights, begins = operands[:3], operands[4:]
        found = []
        for i, length in enumerate(operands[3].tolist()):
            began = [state if state is None else state[:, i : i + 1] for state in begins]
            y, *ends = op._run(self, x[: max(length, 1), i : i + 1], *weights, None, *began, **attributes)
            behind = np.zeros((len(x) - len(y), *y.shape[1:]), y.dtype)
            parts = [np.concatenate([y, behind]), *ends]
            found.append(parts if length else [np.zeros_like(part) for part in parts])
        return tuple(np.concatenate(parts, axis=-2) for parts in zip(*found, strict=True))

    def choose_act(self: Any, name: str, *numbers: float) -> Any:
        if name.lower() == "relu":
            return lambda x: np.maximum(x, 0)
        return op.choose_act(self, name.capitalize(), *numbers)

    return type(op.__name__.partition("_")[0], (op,), {"op_domain": "", "_run": _run, "choose_act": choose_act})


_RECURRENT = tuple(map(_of_lengths, (GRU, LSTM, RNN)))


def _attribute(value: Any, kind: type) -> Attr:
    if kind is Tensor:
        return constant_of(torch.from_numpy(to_array(value).copy()))
    plain: Attr = kind(value.decode() if isinstance(value, bytes) else value)
    return plain


def _is_drawn(captured: Captured, name: str) -> bool:
    """Whether a parameter has other values at every run; what is frozen keeps those of the file."""
    parameter = captured.net.parameters[name]
    return parameter.trained or parameter.kind == "table"


def _padding_of(net: Net, table: str) -> int:
    """The row of a table that no lookup steps, -1 for none: zeros, as it may start, are read for its id alone."""
    return max(
        (row for op in net.ops if table in op.inputs and isinstance(row := op.attrs.get("padding_idx"), int)),
        default=-1,
    )


def _open(graph: ir.Graph, given: set[str], tables: Mapping[str, int]) -> None:
    """Take out what is given at each run; ids become those of a table of `PERIOD` rows, where it has more. `tables` have each its padding row, -1 for none."""
    for node in list(graph):
        if node.op_type == "Constant" and str(node.outputs[0].name) in given:
            graph.remove(node)
    period = ir.Value(name="htrain_period", const_value=ir.tensor(np.array(PERIOD, np.int64)))
    for name in given & graph.initializers.keys():
        value = graph.initializers[name]
        if name in tables and value.shape is not None and int(value.shape[0]) > PERIOD:
            _repeat(graph, value, period, tables[name])
        del graph.initializers[name]
    for value in graph.initializers.values():
        value.const_value = ir.tensor(np.array(array_of(value)), name=value.name)  # the evaluator reads no other files


def _repeat(graph: ir.Graph, table: ir.Value, period: ir.Value, padding: int) -> None:
    """Every lookup in `table` by its ids modulo `PERIOD`, by `PERIOD` itself where the id is the padding row's."""
    if period.name not in graph.initializers:
        graph.register_initializer(period)
    row = ir.Value(name=f"{table.name}_htrain_padding", const_value=ir.tensor(np.array(padding, np.int64)))
    graph.register_initializer(row)
    for use in list(table.uses()):
        lookup, ids = use.node, use.node.inputs[1]
        wide = ir.node("Cast", [ids], attributes={"to": ir.DataType.INT64})
        short = ir.node("Mod", [wide.outputs[0], period])
        padded = ir.node("Equal", [wide.outputs[0], row])
        found = ir.node("Where", [padded.outputs[0], period, short.outputs[0]])
        nodes = (wide, short, padded, found)
        for i, node in enumerate(nodes):
            node.outputs[0].name = f"{lookup.outputs[0].name}_htrain_{i}"
        (lookup.graph or graph).insert_before(lookup, nodes)  # which may be within a loop
        lookup.replace_input_with(1, found.outputs[0])
