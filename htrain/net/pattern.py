"""Patterns of ops: which op makes a blob, who reads it, and whether nobody else does.

A fusion reads as its pattern and what takes its place:

    pattern, changed = Pattern(net), Rewriting(net)
    for relu in pattern.ops("Relu"):
        if fc := pattern.only_for_one("FC", relu.inputs[0]):
            changed.put(fc, replace(fc, type="FCRelu", outputs=relu.outputs))
            changed.drop(relu)
    return changed.net()
"""

from htrain.net.net import Net, Op
from htrain.net.slices import makers, readers


class Pattern:
    """What stands around each op of a net. The ops that it takes and gives are the net's own."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self._makers = makers(net.ops)
        self._readers = readers(net.ops)
        self._places = {id(op): place for place, op in enumerate(net.ops)}

    def ops(self, type: str) -> list[Op]:
        """The ops of a type, in run order."""
        return [op for op in self.net.ops if op.type == type]

    def place(self, op: Op) -> int:
        """The position of an op in the net."""
        return self._places[id(op)]

    def maker(self, type: str, name: str) -> Op | None:
        """The op that makes a blob, if it is of that type."""
        op = self.net.ops[self._makers[name]] if name in self._makers else None
        return op if op is not None and op.type == type else None

    def readers(self, name: str) -> list[Op]:
        """The ops that read a blob, in order."""
        return [self.net.ops[place] for place in self._readers.get(name, ())]

    def is_for_one(self, name: str) -> bool:
        """Whether a blob has one reader, which is an op: it is no output of the net."""
        return len(self._readers.get(name, ())) == 1 and name not in self.net.outputs

    def only_reader(self, type: str, name: str) -> Op | None:
        """The one op that reads a blob, if it is of that type."""
        if not self.is_for_one(name):
            return None
        (op,) = self.readers(name)
        return op if op.type == type else None

    def only_for_one(self, type: str, name: str) -> Op | None:
        """The op that makes a blob with one reader, if it is of that type."""
        return self.maker(type, name) if self.is_for_one(name) else None

    def chain(self, name: str, *types: str) -> list[Op]:
        """The ops of these types that lead to a blob by their last inputs, the one that makes it first, each made for the next alone.

        Empty where one of them is not there.
        """
        found: list[Op] = []
        for type in types:
            op = self.only_for_one(type, name)
            if op is None:
                return []
            found.append(op)
            name = op.inputs[-1]
        return found
