"""Who publishes what: the share that each role has of a model's parameters."""

import msgspec


class Held(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A parameter that a role publishes: `name` there, and which part it is of the model's parameter `whole`, of this kind."""

    name: str
    whole: str
    kind: str
    first_row: int
    first_column: int


class Publishing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What roles are told of publishing: the address, and what each of them has of the model."""

    address: str
    shares: dict[str, list[Held]]
