"""What one example looks like: the named inputs of a model, their dtypes and widths, and how many rows each id may address.

A schema stands between a data file and a model: readers fill its inputs, the zoo sizes its tables from it, and the frontend
makes example inputs from it. `B` is the batch size.

| kind     | arrays of a batch                                                                            |
|----------|----------------------------------------------------------------------------------------------|
| `dense`  | `name`: float32[B,width]                                                                     |
| `ids`    | `name`: int64[B,width], column c below `rows[c]`                                             |
| `padded` | `name`: int64[B,width], 0 after the end of the list; `name_length`: int64[B]                 |
| `bag`    | `name`: int64[N], the lists of all examples one after another; `name_offsets`: int64[B], starts |

The label is `label`: float32[B].
"""

from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["dense", "ids", "padded", "bag"]


@dataclass(frozen=True)
class Input:
    """One named input of a model.

    `columns` are the source columns' names, `rows` the number of rows that ids may address: one per column for `ids`,
    one in all for `padded` and `bag`, empty for `dense`. `tables` names the embedding table of each entry of `rows`;
    columns that name the same table share it. `width` is the number of columns, or the padded length; for a `bag`, the
    mean length. Where columns have vocabularies, `vocabularies` are their digests, "" for a column that has none, and `extends`, where some extend others, the
    digests of these. `meanings` say of each column what becomes of its values, in words, as far as that is known: two columns that are not read alike have
    other words.
    """

    name: str
    kind: Kind
    width: int
    columns: tuple[str, ...] = ()
    rows: tuple[int, ...] = ()
    tables: tuple[str, ...] = ()
    vocabularies: tuple[str, ...] = ()
    meanings: tuple[str, ...] = ()
    extends: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Schema:
    """The inputs of an example, in order. The label is not one of them."""

    inputs: tuple[Input, ...]

    def input(self, name: str) -> Input:
        """The input called `name`. Raises KeyError where there is none."""
        for candidate in self.inputs:
            if candidate.name == name:
                return candidate
        raise KeyError(f"no input {name!r}; the schema has {', '.join(self.names)}")

    def is_like(self, other: "Schema") -> bool:
        """Whether rows of both may stand behind each other. What is said of one alone, as older packed data says less, is no difference."""
        return self.names == other.names and all(map(_are_alike, self.inputs, other.inputs))

    @property
    def vocabularies(self) -> dict[str, str]:
        """The digests of the vocabularies, by input and column, such as `sparse.user`."""
        each = ((item, zip(item.columns, item.vocabularies, strict=False)) for item in self.inputs)
        return {f"{item.name}.{column}": digest for item, pairs in each for column, digest in pairs if digest}

    @property
    def extends(self) -> dict[str, tuple[str, ...]]:
        """The digests of the vocabularies that a column's extends, whose values have the same rows in it, by input and column."""
        each = ((item, zip(item.columns, item.extends, strict=False)) for item in self.inputs)
        return {f"{item.name}.{column}": digests for item, pairs in each for column, digests in pairs if digests}

    @property
    def meanings(self) -> dict[str, tuple[tuple[str, str], ...]]:
        """The columns of each input of which it is known what becomes of their values, and this, in their order."""
        return {
            item.name: tuple(zip(item.columns, item.meanings, strict=False)) for item in self.inputs if item.meanings
        }

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs' names, in order."""
        return tuple(i.name for i in self.inputs)


def _are_alike(one: Input, other: Input) -> bool:
    is_known = bool(one.meanings and other.meanings)
    one, other = (replace(item, meanings=item.meanings if is_known else (), extends=()) for item in (one, other))
    return one == other


def modulo(rows: int) -> str:
    """The meaning of ids, of numbers or of text that is hashed, that find their row by a division."""
    return f"ids modulo {rows}"


def click_schema(num_dense: int, rows: tuple[int, ...], *, tables: tuple[str, ...] = ()) -> Schema:
    """The schema of a click log: `dense`: float32[B,num_dense] (left out when 0) and `sparse`: int64[B,len(rows)].

    Column c of `sparse` is called `C{c+1}` and addresses a table of `rows[c]` rows, its own unless `tables` says otherwise.

        import htrain

        schema = htrain.click_schema(13, (1000, 500))
        print([(item.name, item.columns) for item in schema.inputs])
    """
    names = tuple(f"C{c + 1}" for c in range(len(rows)))
    dense = Input("dense", "dense", num_dense, tuple(f"I{c + 1}" for c in range(num_dense)))
    sparse = Input(
        "sparse", "ids", len(rows), columns=names, rows=rows, tables=tables or names, meanings=tuple(map(modulo, rows))
    )
    return Schema((dense, sparse) if num_dense else (sparse,))


CRITEO = click_schema(13, (100_000,) * 26)
