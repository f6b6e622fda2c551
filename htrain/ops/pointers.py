"""Arrays by address, for loops over many tensors at once: Numba takes no list of arrays without copying it. And rows asked for ahead of their use."""

from llvmlite import ir
from numba import carray, njit
from numba.core import cgutils, types
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


@intrinsic
def _prefetch(typing_context, address):  # type: ignore[no-untyped-def]
    """Ask for the cache line at an address."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(ask, [pointer, number(0), number(3), number(1)])  # to read, into every level of cache, data
        return context.get_dummy_value()

    return types.void(address), generate


@njit(inline="always")
def prefetch_row(table, row, num_bytes):  # type: ignore[no-untyped-def]
    """Ask for a row of `num_bytes` of the table at an address, to be in the cache some iterations later.

    Nothing is read: a row outside the table does no harm.
    """
    for at in range(table + row * num_bytes, table + (row + 1) * num_bytes, 64):
        _prefetch(at)  # type: ignore[call-arg]
