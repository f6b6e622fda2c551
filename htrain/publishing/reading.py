"""A reader of versions: what whoever serves a model holds of it (docs/how-to/publish.md)."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from htrain.errors import PublishError
from htrain.publishing.storage import Absent, Storage, storage_of
from htrain.publishing.versions import (
    FOLDER,
    ROWS,
    Object,
    Part,
    Unreadable,
    Version,
    Whole,
    absent_objects,
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

    A reader may begin before the run that publishes: where there is no version, or not even a folder, `refresh` returns False, and `version` stays None.

        import time

        import htrain

        model = htrain.Published("published/ads")  # or s3://bucket/models/ads
        while not (model.version and model.version.is_final):
            if model.refresh():
                print(f"{model.version.name}, after {model.version.examples} examples: serve model.parameters")
            time.sleep(1)
    """

    def __init__(self, address: str | Path) -> None:
        """Nothing is read yet: an address where nothing is may be one where a run will publish. Raises PublishError for one that cannot be used."""
        self._storage = storage_of(str(address))
        self.version: Version | None = None
        self.parameters: Mapping[str, torch.Tensor] = {}

    def refresh(self) -> bool:
        """Take the newest version that is whole; whether it is another than before. Where none is there yet, none is taken.

        What is damaged, or of another format, is passed over for an older version that is newer than the one that is here. Raises PublishError where there is
        none such, or the storage cannot be read: then all is as it was before.

            import htrain

            model = htrain.Published("published/ads")
            if model.refresh():
                print({name: tuple(values.shape) for name, values in model.parameters.items()})
        """
        for _ in range(_TRIES):
            look = _Look(self._storage, self.version.name if self.version else "")
            for chain in look.chains():
                try:
                    self._take(chain, look)
                    return True
                except (Absent, Unreadable) as error:
                    look.errors.append(error)
            if unreadable := [error for error in look.errors if not isinstance(error, Absent)]:
                raise unreadable[0]
            if look.has_reached or not look.errors:
                return False
        if self.version:
            raise look.errors[0]
        return False

    def _take(self, chain: Sequence[Version], look: "_Look") -> None:
        """Raises Absent or Unreadable, and PublishError where the storage cannot be read: then nothing is taken."""
        first, *others = chain
        if first.base:
            parameters = dict(self.parameters)
            contents = [
                tensors for version in chain for tensors in self._contents(version, look)
            ]  # all of it, before any row changes
        else:
            parameters = _allocated(first, self._storage.address)
            _fill(parameters, first, self._contents(first, look))
            contents = [tensors for version in others for tensors in self._contents(version, look)]
        for each, tensors in contents:
            _put(parameters, each, tensors)
        self.parameters, self.version = parameters, chain[-1]

    def _contents(self, version: Version, look: "_Look") -> Iterator[tuple[Object, Mapping[str, torch.Tensor]]]:
        """The same, and `look` knows of what is wrong with the version. Raises PublishError."""
        try:
            yield from self._read(version)
        except (Absent, Unreadable) as error:
            look.spoil(version.name, error)
            raise

    def _read(self, version: Version) -> Iterator[tuple[Object, Mapping[str, torch.Tensor]]]:
        """The tensors of a version's objects, one after another, checked. Raises PublishError."""
        for each in version.objects:
            place = f"{FOLDER}/{version.name}/{each.name}"
            content = self._storage.get(place)
            where = f"{self._storage.address}/{place}"
            if len(content) != each.num_bytes or digest_of(content) != each.digest:
                raise Unreadable(f"{where}: damaged: it is not as it was written")
            try:
                tensors = load(content)
            except (SafetensorError, ValueError) as error:
                raise Unreadable(f"{where}: damaged: {error}") from error
            for number, part in enumerate(each.parts):
                _check(part, str(number), tensors, version.parameters, where)
            yield each, tensors


class _Look:
    """One look at an address, for what is newer than the version that is `held`, "" for none.

    `errors` are what kept versions from being taken, `has_reached` whether the one that is held is still there, so that all newer ones have been looked at.
    """

    def __init__(self, storage: Storage, held: str) -> None:
        self.errors: list[PublishError] = []
        self.has_reached = False
        self._storage, self._held = storage, held
        self._versions: dict[str, Version | PublishError] = {}

    def chains(self) -> Iterator[list[Version]]:
        """What is to be read, in order, the newest version first: versions on top of the one that is held, or a full one and what is based on it. All are
        there, by name and size. Raises PublishError where the storage cannot be read."""
        for name in version_names(self._storage):
            if name == self._held:
                self.has_reached = True
                return
            try:
                chain = self._behind(name)
            except (Absent, Unreadable) as error:  # or one that it builds on: the one before may be whole
                self.errors.append(error)
                continue
            yield chain

    def spoil(self, name: str, error: PublishError) -> None:
        """A version has been found to be none: no other is to be read on top of it."""
        self._versions[name] = error

    def _behind(self, name: str) -> list[Version]:
        """A version, behind all that are to be read before it. Raises Absent or Unreadable where one is not whole."""
        found = [self._version(name)]
        seen = {name}
        while found[0].base and found[0].base != self._held:
            base = found[0].base
            if base in seen:
                raise Unreadable(f"{self._storage.address}: version {name} is based on itself")
            seen.add(base)
            found.insert(0, self._version(base))
        return found

    def _version(self, name: str) -> Version:
        """A version, read once a look."""
        if name not in self._versions:
            try:
                self._versions[name] = _whole_version(self._storage, name)
            except (Absent, Unreadable) as error:
                self.spoil(name, error)
        found = self._versions[name]
        if isinstance(found, PublishError):
            raise found
        return found


def _whole_version(storage: Storage, name: str) -> Version:
    """A version whose objects are there in their sizes. Raises Absent or Unreadable where it is none."""
    version = read_version(storage, name)
    for gone, is_there in absent_objects(storage, name, version.objects):
        place = f"{storage.address}/{FOLDER}/{name}/{gone}"
        if is_there:
            raise Unreadable(f"{place}: damaged: it is not as it was written")
        raise Absent(f"{place}: is not there")
    return version


def _allocated(version: Version, address: str) -> dict[str, torch.Tensor]:
    """Room for all parameters of a full version. Raises PublishError."""
    for name, whole in version.parameters.items():
        if whole.dtype not in _DTYPES:
            raise Unreadable(
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
            raise Unreadable(f"version {version.name} has not all of '{name}': {count:,} numbers are missing")


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
        raise Unreadable(f"{where}: damaged: part {key} does not fit into '{part.parameter}'")


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
