"""A reader of versions: what whoever serves a model holds of it (docs/how-to/publish.md)."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from htrain.errors import PublishError
from htrain.publishing.storage import Absent, storage_of
from htrain.publishing.versions import (
    FOLDER,
    ROWS,
    Object,
    Part,
    Version,
    Whole,
    digest_of,
    read_version,
    version_names,
)

_TRIES = 5  # at versions that are removed, in favour of newer ones, while they are read
_DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16,
           "int64": torch.int64, "int32": torch.int32, "uint8": torch.uint8, "int8": torch.int8, "bool": torch.bool}  # fmt: skip


class Published:
    """The newest version at an address, as far as `refresh` has been called.

    `parameters` are those of the model under its own names, tables among them, as `torch.nn.Module.load_state_dict` takes them; a full version comes in new
    tensors, any other changes rows in place, once all of it has been read and found as it was written. For one thread, which nobody reads beside.

        import time

        import htrain

        model = htrain.Published("published/ads")  # or s3://bucket/models/ads
        while not (model.version and model.version.is_final):
            if model.refresh():
                print(f"{model.version.name}, after {model.version.examples} examples: serve model.parameters")
            time.sleep(1)
    """

    def __init__(self, address: str) -> None:
        """Raises PublishError for an address that cannot be used."""
        self._storage = storage_of(address)
        self.version: Version | None = None
        self.parameters: Mapping[str, torch.Tensor] = {}

    def refresh(self) -> bool:
        """Take the newest version that is whole; whether it is another than before. Where none is there yet, none is taken.

        Raises PublishError for what cannot be read, or is not as it was written: then all is as it was before.

            import htrain

            model = htrain.Published("published/ads")
            if model.refresh():
                print({name: tuple(values.shape) for name, values in model.parameters.items()})
        """
        for left in reversed(range(_TRIES)):
            try:
                chain = self._chain()
                if chain:
                    self._take(chain)
                return bool(chain)
            except Absent:
                if not left:
                    raise
        raise AssertionError

    def _chain(self) -> list[Version]:
        """What is to be read, in order: versions on top of the one that is here, or a full one and what is based on it."""
        missing: Absent | None = None
        for name in version_names(self._storage):
            if self.version and name == self.version.name:
                return []
            try:
                return self._behind(name)
            except Absent as error:  # not finished, or based on what has been removed: the one before may be whole
                missing = missing or error
        if missing and self.version:
            raise missing
        return []

    def _behind(self, name: str) -> list[Version]:
        """A version, behind all that are to be read before it. Raises Absent where one is not there."""
        found = [read_version(self._storage, name)]
        seen = {name}
        while found[0].base and not (self.version and found[0].base == self.version.name):
            base = found[0].base
            if base in seen:
                raise PublishError(f"{self._storage.address}: version {name} is based on itself")
            seen.add(base)
            found.insert(0, read_version(self._storage, base))
        return found

    def _take(self, chain: Sequence[Version]) -> None:
        first, *others = chain
        if first.base:
            parameters = dict(self.parameters)
            contents = [
                tensors for version in chain for tensors in self._contents(version)
            ]  # all of it, before any row changes
        else:
            parameters = _allocated(first, self._storage.address)
            _fill(parameters, first, self._contents(first))
            contents = [tensors for version in others for tensors in self._contents(version)]
        for each, tensors in contents:
            _put(parameters, each, tensors)
        self.parameters, self.version = parameters, chain[-1]

    def _contents(self, version: Version) -> Iterator[tuple[Object, Mapping[str, torch.Tensor]]]:
        """The tensors of a version's objects, one after another, checked. Raises PublishError."""
        for each in version.objects:
            place = f"{FOLDER}/{version.name}/{each.name}"
            content = self._storage.get(place)
            where = f"{self._storage.address}/{place}"
            if len(content) != each.num_bytes or digest_of(content) != each.digest:
                raise PublishError(f"{where}: damaged: it is not as it was written")
            try:
                tensors = load(content)
            except (SafetensorError, ValueError) as error:
                raise PublishError(f"{where}: damaged: {error}") from error
            for number, part in enumerate(each.parts):
                _check(part, str(number), tensors, version.parameters, where)
            yield each, tensors


def _allocated(version: Version, address: str) -> dict[str, torch.Tensor]:
    """Room for all parameters of a full version. Raises PublishError."""
    for name, whole in version.parameters.items():
        if whole.dtype not in _DTYPES:
            raise PublishError(
                f"{address}: version {version.name}: '{name}' is {whole.dtype}, which this htrain cannot hold"
            )
    return {name: torch.empty(whole.shape, dtype=_DTYPES[whole.dtype]) for name, whole in version.parameters.items()}


def _fill(
    parameters: Mapping[str, torch.Tensor],
    version: Version,
    contents: Iterator[tuple[Object, Mapping[str, torch.Tensor]]],
) -> None:
    """Put all of a full version into its parameters. Raises PublishError where it has not all of them."""
    missing = {name: tensor.numel() for name, tensor in parameters.items()}
    for each, tensors in contents:
        _put(parameters, each, tensors)
        for number, part in enumerate(each.parts):
            missing[part.parameter] -= tensors[str(number)].numel()
    for name, count in missing.items():
        if count:
            raise PublishError(f"version {version.name} has not all of '{name}': {count:,} numbers are missing")


def _check(part: Part, key: str, tensors: Mapping[str, torch.Tensor], wholes: Mapping[str, Whole], where: str) -> None:
    """Raises PublishError for a part that does not fit into the parameter that it is said to be of."""
    whole, values, rows = wholes.get(part.parameter), tensors.get(key), tensors.get(f"{key}{ROWS}")
    fits = whole is not None and values is not None and _DTYPES.get(whole.dtype) == values.dtype
    if fits and whole is not None and values is not None and whole.shape:
        fits = values.dim() == len(whole.shape) and len(values) == part.num_rows
        if part.listed:
            fits = fits and rows is not None and len(rows) == part.num_rows
            fits = (
                fits
                and rows is not None
                and (not len(rows) or 0 <= int(rows.min()) <= int(rows.max()) < whole.shape[0])
            )
        else:
            fits = fits and part.first_row + part.num_rows <= whole.shape[0]
        if len(whole.shape) > 1:
            fits = (
                fits and part.first_column + values.shape[1] <= whole.shape[1] and values.shape[2:] == whole.shape[2:]
            )
    if not fits:
        raise PublishError(f"{where}: damaged: part {key} does not fit into '{part.parameter}'")


def _put(parameters: Mapping[str, torch.Tensor], each: Object, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy an object's parts to where they belong."""
    for number, part in enumerate(each.parts):
        target, values = parameters[part.parameter], tensors[str(number)]
        if not target.dim():
            target.copy_(values)
            continue
        if target.dim() > 1:
            target = target[:, part.first_column : part.first_column + values.shape[1]]
        if part.listed:
            target[tensors[f"{number}{ROWS}"].long()] = values
        else:
            target[part.first_row : part.first_row + part.num_rows] = values
