"""Arrays by address, for loops over many tensors at once: Numba takes no list of arrays without copying it."""

from numba import carray, njit
from numba.core import types
from numba.extending import intrinsic


@intrinsic
def _as_pointer(typing_context, address, number):  # type: ignore[no-untyped-def]
    """An integer as a pointer to numbers like `number`."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.inttoptr(arguments[0], context.get_value_type(types.CPointer(number)))

    return types.CPointer(number)(address, number), generate


@njit(inline="always")
def array_at(address, shape, number):  # type: ignore[no-untyped-def]
    """The array of numbers like `number` at an address. Its memory must be kept by the caller."""
    return carray(_as_pointer(address, number), shape)  # type: ignore[call-arg]


