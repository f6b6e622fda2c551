"""In which precision is computed and sent, and which ops are fused."""

from dataclasses import dataclass
from typing import Annotated, Literal

from htrain.spec.fields import Section, about

ActivationDtype = Literal["float32", "bfloat16", "int8"]
GradientDtype = Literal["float32", "bfloat16"]
RowDtype = Literal["float32", "bfloat16", "float16", "int8"]
FcDtype = Literal["auto", "float32", "bfloat16", "int8"]
FcGradientDtype = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True)
class Numerics(Section):
    """In which precision FCs compute, over float32 weights (HT 5.1, Model-B).

    With both `bfloat16`, what one FC hands the next is bfloat16, too. Both are `auto` for bfloat16 where the cluster's cores have been measured to
    gain by it and FCs are large enough, and float32 elsewhere.
    """

    fc_dtype: Annotated[
        FcDtype,
        about(
            "In which dtype FCs compute their forward pass; auto is bfloat16 where cores were measured to gain by it."
        ),
    ] = "auto"
    fc_gradient_dtype: Annotated[FcGradientDtype, about("In which dtype FCs compute their backward pass.")] = "auto"
    fast_products: Annotated[
        bool, about("Compute each matrix product with the library that is ahead on the role's CPU.")
    ] = True


@dataclass(frozen=True)
class Compression(Section):
    """How values travel between trainers and group PSs (HT 4.2).

    Values may be as short as `activation_dtype` in the forward pass and `gradient_dtype` in the backward pass. `compress` is `auto` where the cost model
    says for each value whether that pays. No gradient of an activation is sparsified: what one step leaves out is about other examples than the next's.
    """

    activation_dtype: Annotated[
        ActivationDtype, about("The shortest dtype in which activations travel between trainers and group PSs.")
    ] = "float32"
    gradient_dtype: Annotated[GradientDtype, about("The shortest dtype in which gradients of activations travel.")] = (
        "float32"
    )
    compress: Annotated[
        Literal["auto", "always", "never"],
        about("Whether values travel shorter where allowed: auto is where that pays."),
    ] = "auto"


@dataclass(frozen=True)
class Fusions(Section):
    """Ops that would hand large values to each other through memory are fused. Without fusions, one trainer has PyTorch's bits."""

    relu: Annotated[bool, about("An FC and its ReLU as one op.")] = True
    fields: Annotated[bool, about("The lookups of tables whose rows are stacked as one op.")] = True
    tables: Annotated[
        bool, about("The lookups of tables of one device, and their SGD steps, as one op each, id by id.")
    ] = True
    interaction: Annotated[
        bool, about("The products of pairs of features, of which those that are read are computed.")
    ] = True
    pairs: Annotated[bool, about("The gradient of these products and the steps of rows by it as one op.")] = True
    steps: Annotated[
        bool, about("The SGD step of an FC's weight and the product that makes its gradient as one op.")
    ] = True
    servers: Annotated[
        bool, about("All lookups, and all steps of rows, that one message to a PS is about as one op.")
    ] = True
