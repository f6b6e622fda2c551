"""torch.export behind one door: embedding calls kept whole, parameters without memory, one-line errors."""

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributions import Distribution
from torch.export import Dim, ExportedProgram, default_decompositions
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.modules import transformer
from torch.nn.modules.batchnorm import _NormBase

from htrain.errors import ModelError
from htrain.frontend.batch_casts import symbolic_casts
from htrain.frontend.batch_parts import BatchParts
from htrain.frontend.blame import Guards, noted_guards, place_of
from htrain.frontend.custom_functions import traced_functions
from htrain.frontend.drawn_picks import DrawnPicks
from htrain.frontend.dropouts import Dropouts
from htrain.frontend.formulas import Formulas
from htrain.frontend.gradient_rules import GradientRules
from htrain.frontend.keyed_features import captured_features
from htrain.frontend.keyed_lookups import captured_lookups
from htrain.frontend.known_values import KnownValues
from htrain.frontend.listed_parameters import ListedParameters
from htrain.frontend.masks import ChangedMaskError, SameMasks
from htrain.frontend.packed_sequences import noted_lengths, padded_sequences
from htrain.frontend.quiet import quiet
from htrain.frontend.sparse_products import SparseProducts, sparse_constants
from htrain.frontend.tensor_length import symbolic_lengths
from htrain.frontend.unchanged import unchanged
from htrain.frontend.whole_bags import whole_bags
from htrain.frontend.whole_layers import WholeLayers
from htrain.frontend.writes import without_writes
from htrain.ops.torch_ops import TORCH_OPS
from htrain.ops.user_ops import whole_user_ops

_KEPT = ("linear.default", "layer_norm.default", "gelu.default", "softmax.int", "log_softmax.int", "einsum.default", "matmul.default",
         "scaled_dot_product_attention.default", "silu.default", "mish.default", "hardswish.default", "hardsigmoid.default", "elu.default",
         "leaky_relu.default", "prelu.default", "softplus.default", "dropout.default", "embedding.default", "stack.default",
         "linalg_vector_norm.default", "var.correction", "var.dim", "std_mean.correction", "logsumexp.default", "batch_norm.default", "masked_fill.Scalar",
         "addmm.default", "baddbmm.default", "split.Tensor", "split_with_sizes.default", "unbind.int", "rsub.Scalar", "clamp.default",
         "detach.default", "bernoulli.default", "index_add.default", "rrelu.default", *TORCH_OPS.values())  # fmt: skip
_TRANSLATED = frozenset(
    {"flatten.using_ints", "unflatten.int", "reshape.default", "squeeze.dim", "squeeze.default", "transpose.int", "t.default", "square.default",
     "contiguous.default", "sym_size.int", "arange.default", "arange.start", "to.dtype", "to.device", "zeros.default", "zeros_like.default", "ones.default",
     "ones_like.default", "new_zeros.default", "new_ones.default", "full_like.default", "clamp_min.default", "repeat.default"}
)  # fmt: skip
SUPPOSED = "htrain_supposed"  # in the meta of a program's module: the lines that ask whether a mask picks anything, where the answer was yes
ASSERTED = "htrain_asserted"  # likewise: the lines that raise an error by what values are
OF_LENGTHS = "htrain_lengths"  # likewise: the lines that may ask how long the longest sequence of a batch is
_LARGEST = 1 << 31  # with no bound, torch asks for one where the number of elements would not be an int64
_FIXED = (
    "write it for any number of examples; if, range() and other functions of numpy than sqrt and log of the number (torch.arange for np.arange), a loop over "
    "a batch, its first few examples, and a shape with a number for the batch hold for one batch only"
)
_VALUES = (
    "an if, bool(), int(), float() or range() of a tensor, or of how many elements a mask picks, has no place in a net; use torch.where, or weights of 0 "
    "and 1; sums over what a mask picks are 0 where it picks nothing: divide them by max(len(picked), 1)"
)
_ANOTHER_WAY = f"its code goes another way by the values of a batch: {_VALUES}"
_NUMPY_OF_A_SYMBOL = ("of type SymInt", "of type SymFloat", "np.ndarray of type numpy.object_")
_NUMPY_OF_AN_INPUT = ("not a storage 'Listed'", ".numpy() is not supported", "'numpy.ndarray' and 'FakeTensor'")
_BY_VALUES = ("GuardOnDataDependentSymNode", "DataDependentOutputException", "PendingUnbackedSymbolNotFound")

_ONE_AT_A_TIME = threading.RLock()  # what stands in for parts of torch during a capture does so in all threads


class _FixedBatchError(ModelError):
    """The model's code makes a number of the size of a batch."""


class _ByValuesError(ModelError):
    """The model's code, or torch's, asks for a number that depends on the values of a batch."""


def export(model: nn.Module, example_inputs: Mapping[str, torch.Tensor]) -> ExportedProgram:
    """The program of `model` with a free batch dimension, decomposed to the ops that the frontend translates.

    `model` may be on the meta device; it is left as it was. What forward() says about gradients is in the program
    (`htrain.frontend.gradient_rules`). Raises ModelError in one line when torch cannot capture it.
    """
    # One tensor that is given for two inputs, or that the model keeps, would be one input, or none.
    apart = {name: tensor.detach().clone() for name, tensor in example_inputs.items()}
    with _ONE_AT_A_TIME, sparse_constants(model), noted_lengths() as lines:
        program = _exported_at_last(model, apart)
    _name_inputs(program)
    program.graph_module.meta[OF_LENGTHS] = tuple(lines)
    return program


def _name_inputs(program: ExportedProgram) -> None:
    """The inputs have the names of forward()'s arguments, of which torch makes small letters: `Items`, and `A` beside `a`."""
    _, named = program.example_inputs
    given = dict(zip(program.graph_signature.user_inputs, named, strict=True))
    for node in program.graph.find_nodes(op="placeholder"):
        node.target = given.get(node.name, node.target)


def _exported_at_last(model: nn.Module, example_inputs: Mapping[str, torch.Tensor]) -> ExportedProgram:
    try:
        return _exported(model, example_inputs)
    except (_FixedBatchError, _ByValuesError) as error:
        try:
            return _exported_anew(model, example_inputs, error)
        except ChangedMaskError:
            raise
        except ModelError as again:
            got_further = isinstance(error, _ByValuesError) and not isinstance(again, _ByValuesError)
            raise (again if got_further else error) from None


def _exported_anew(model: nn.Module, example_inputs: Mapping[str, torch.Tensor], error: ModelError) -> ExportedProgram:
    """The program of a model that was not captured for `error`, with what answers the question that its code asks."""
    if isinstance(error, _FixedBatchError):
        with symbolic_casts(model):
            return _exported(model, example_inputs)
    try:
        return _exported_with_masks(model, example_inputs)
    except _ByValuesError:  # which may ask for int() of how many a mask picks
        with symbolic_casts(model):
            return _exported_with_masks(model, example_inputs)


def _exported_with_masks(model: nn.Module, example_inputs: Mapping[str, torch.Tensor]) -> ExportedProgram:
    with SameMasks() as masks:
        program = _exported(model, example_inputs)
    program.graph_module.meta[SUPPOSED] = tuple(masks.supposed)
    return program


def _exported(model: nn.Module, example_inputs: Mapping[str, torch.Tensor]) -> ExportedProgram:
    batch = Dim("batch", min=2, max=_LARGEST)
    shapes = {
        name: {0: Dim(f"{name}_count", min=2, max=_LARGEST) if is_bag(name, example_inputs) else batch}
        for name in example_inputs
    }
    guards, listed = Guards(), ListedParameters(model)
    try:
        with (
            unchanged(model),
            _without_memory(model),
            _norms_named_once(model),
            _unseeded(),
            whole_bags(),
            whole_user_ops(),
            symbolic_lengths(),
            padded_sequences(),
            captured_features(),
            captured_lookups(),
            _unchecked_distributions(),
            _masks_as_given(),
            noted_guards() as guards,
            quiet(),
        ):
            program, known = _traced(model, example_inputs, shapes)
            if listed.are_constants_of(program):  # else to follow what each function is given would be for nothing
                program, known = _traced(model, example_inputs, shapes, listed)
            if guards.by_values:
                raise _ByValuesError(f"{_cannot(model)}: {_ANOTHER_WAY}{guards.by_values[0]}")
            moved = without_writes(program)
            if moved is None or not _is_plain(program):
                program = program.run_decompositions(_decompositions())
            known.require_unchanged({*program.graph_signature.buffers_to_mutate.values(), *(moved or ())})
            program.graph_module.meta[ASSERTED] = tuple(known.asserted)
            return program
    except ModelError:
        raise
    except (Exception, SystemExit) as error:  # a forward() that calls sys.exit()
        why = _one_line(error)
        place = guards.fixing[0] if guards.fixing and _FIXED in why else place_of(model, error)
        kind = _FixedBatchError if _FIXED in why else _ByValuesError if _VALUES in why else ModelError
        raise kind(f"{_cannot(model)}: {why}{place}{_scripted(model)}") from error


def _scripted(model: nn.Module) -> str:
    """What is said beside an error of a model with a module of torch.jit, which may be why."""
    names = [path for path, module in model.named_modules() if isinstance(module, torch.jit.ScriptModule)]
    return f"; module '{names[0]}' is of torch.jit: give the nn.Module that it was made of" if names else ""


def _traced(
    model: nn.Module,
    example_inputs: Mapping[str, torch.Tensor],
    shapes: Mapping[str, Any],
    listed: ListedParameters | None = None,
) -> tuple[ExportedProgram, KnownValues]:
    """What torch makes of a module whose functions are followed. Raises ModelError for what cannot be followed, and torch's own errors."""
    with (
        torch.enable_grad(),
        GradientRules(),
        WholeLayers(),
        SparseProducts(),
        DrawnPicks(),
        BatchParts(),
        Dropouts(),
        Formulas(),
        traced_functions(),
        KnownValues(model) as known,
        listed or nullcontext(),
    ):
        program = torch.export.export(model, (), dict(example_inputs), dynamic_shapes=dict(shapes), strict=False)
    return program, known


def _cannot(model: nn.Module) -> str:
    return f"torch.export cannot capture {type(model).__name__}"


def _is_plain(program: ExportedProgram) -> bool:
    """Whether the frontend translates each op as it is. To decompose a program traces it anew, which takes longer than it took to export it."""
    return all(node.op != "call_function" or _is_plain_op(node.target) for node in program.graph.nodes)


def _is_plain_op(target: Any) -> bool:
    if not isinstance(target, OpOverload):
        return getattr(target, "__module__", "") in ("_operator", "math")  # of sizes, and parts of tuples
    if target.namespace not in ("aten", "htrain") or target._schema.is_mutable:
        return False
    name = f"{target.overloadpacket.__name__}.{target._overloadname}"
    if name in _TRANSLATED or name in _KEPT:
        return True
    return not target._can_decompose() and target not in _usual_table()


def is_bag(name: str, inputs: Mapping[str, torch.Tensor]) -> bool:
    """Whether an input holds the lists of all examples one after another: it has a `NAME_offsets` beside it."""
    return f"{name}_offsets" in inputs


def _one_line(error: BaseException) -> str:
    """What torch says, in words that help."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if any("Constraints violated" in line or ("batch" in line and "specializ" in line) for line in lines):
        return f"the model's code fixes the batch dimension: {_FIXED}"
    if isinstance(error, TypeError) and any(words in line for line in lines for words in _NUMPY_OF_A_SYMBOL):
        return f"the model's code fixes the batch dimension: {_FIXED}"
    if type(error).__name__ in _BY_VALUES:
        return _ANOTHER_WAY
    if any(words in line for line in lines for words in _NUMPY_OF_AN_INPUT):
        return "forward() makes a numpy array of what depends on its inputs, which no graph holds: use torch's functions for it, or have it be an input"
    taken = re.search(r"attribute '(\w+)' already exists", lines[0] if lines else "")
    if taken:
        return (
            f"it has a parameter, buffer or module of the name '{taken[1]}', which torch keeps for its own: rename it"
        )
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"


@cache
def _usual_table() -> Mapping[Any, Any]:
    return _decompositions()


def _decompositions() -> dict:
    table = default_decompositions()
    for name in _KEPT:
        packet, _, overload = name.partition(".")
        if hasattr(torch.ops.aten, packet):
            table.pop(getattr(getattr(torch.ops.aten, packet), overload), None)
    return table


@contextmanager
def _norms_named_once(model: nn.Module) -> Iterator[None]:
    """Within, a module with a batch norm that a model has under two names, as a tower of users and items, is registered under the first alone: torch traces no
    program whose buffers change under two names. Where code finds it stays the same, but in containers."""
    seen: set[int] = set()
    moved: list[tuple[nn.Module, str, nn.Module]] = []
    for owner in list(model.modules()):
        for name, child in list(owner._modules.items()):
            is_found = not isinstance(owner, nn.Sequential | nn.ModuleList | nn.ModuleDict)
            if child is not None and id(child) in seen and is_found and _has_norm(child):
                moved.append((owner, name, child))
            seen.add(id(child))
    orders = [(owner._modules, dict(owner._modules)) for owner, _, _ in moved]
    for owner, name, child in moved:
        del owner._modules[name]
        vars(owner)[name] = child
    try:
        yield
    finally:
        for owner, name, _ in moved:
            vars(owner).pop(name, None)
        for modules, before in orders:
            modules.clear()
            modules.update(before)


def _has_norm(module: nn.Module) -> bool:
    return any(isinstance(part, _NormBase) for part in module.modules())


@contextmanager
def _unseeded() -> Iterator[None]:
    """Within, who seeds what torch draws by is refused: a net draws other numbers for each batch."""
    before, own = torch.manual_seed, threading.get_ident()

    def seeded(seed: int) -> torch.Generator:
        if threading.get_ident() != own:
            return before(seed)
        raise ModelError(
            f"forward() calls torch.manual_seed({seed}), and would draw the same for each batch, where a net draws anew: draw it once, in __init__, and "
            "register it as a buffer"
        )

    torch.manual_seed = seeded
    try:
        yield
    finally:
        torch.manual_seed = before


@contextmanager
def _without_memory(model: nn.Module) -> Iterator[None]:
    """Parameters and buffers on the meta device stand in as tensors of the CPU that hold no memory."""
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    saved: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    stand_ins: dict[int, torch.Tensor] = {}
    for module in model.modules():
        spaces: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for space in spaces:
            for name, tensor in space.items():
                if tensor is not None and tensor.is_meta:
                    saved.append((space, name, tensor))
    try:
        for space, name, tensor in saved:
            if id(tensor) not in stand_ins:  # tied parameters stay tied
                stand_ins[id(tensor)] = _stand_in(tensor, mode)
            space[name] = stand_ins[id(tensor)]
        yield
    finally:
        for space, name, tensor in saved:
            space[name] = tensor


def _stand_in(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    with mode:
        empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    return nn.Parameter(empty, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


@contextmanager
def _unchecked_distributions() -> Iterator[None]:
    """Within, torch.distributions do not look whether the numbers of a batch are such as they want, by an if."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


@contextmanager
def _masks_as_given() -> Iterator[None]:
    """Within, nn.Transformer and its parts do not compare their masks with a causal one, by an if: they use what they are given."""
    before = getattr(transformer, "_detect_is_causal_mask", None)
    if before is None:  # torch's own, which a later one may do without
        yield
        return
    transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: is_causal is True
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = before
