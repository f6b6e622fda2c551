"""Running statistics of a version: of groups that step together each has its own, which its role writes, and the launcher puts them together."""

from collections.abc import Mapping, Sequence

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from htrain.errors import PublishError
from htrain.executor.record.statistics import of_all_groups
from htrain.ops.batch_norm import variances_of
from htrain.plan.plan import Plan
from htrain.publishing.storage import Storage
from htrain.publishing.versions import FOLDER, Object, Part, digest_of, object_name

_NAME = object_name("statistics:0", 0)


def statistics_of_groups(plan: Plan) -> dict[str, str]:
    """The running means of a plan whose groups have their own, each with its variance; none where there are centres, or one group."""
    if plan.centers or plan.cluster.groups < 2:
        return {}
    return {mean: variance for variance, mean in variances_of(plan.train).items()}


def with_statistics_of_all(
    storage: Storage, version: str, pairs: Mapping[str, str], of_roles: Sequence[Sequence[Object]]
) -> list[Object]:
    """The objects of a version, those of each role together, with the statistics of `pairs` in one more object, of all groups. Raises PublishError.

    Requires: roles have written these behind all else. They stay in their objects, where no reader looks for them.
    """
    names = {*pairs, *pairs.values()}
    objects: list[Object] = []
    held: list[dict[str, torch.Tensor]] = []
    for of_role in of_roles:
        found: dict[str, torch.Tensor] = {}
        for each in of_role:
            others = [part for part in each.parts if part.parameter not in names]
            if len(others) == len(each.parts):
                objects.append(each)
                continue
            assert list(each.parts[: len(others)]) == others, f"{each.name} has statistics before other parts"
            tensors = _read(storage, version, each)
            found |= {part.parameter: tensors[str(at)] for at, part in enumerate(each.parts) if part.parameter in names}
            objects += [msgspec.structs.replace(each, parts=tuple(others))] if others else []
        held += [found] if found else []
    together = (held[0] | of_all_groups(pairs, held)) if held else {}
    return [*objects, *([_written(storage, version, together)] if together else [])]


def _read(storage: Storage, version: str, of: Object) -> dict[str, torch.Tensor]:
    place = f"{FOLDER}/{version}/{of.name}"
    content = storage.get(place)
    if digest_of(content) != of.digest:
        raise PublishError(f"{storage.address}/{place}: is not as it was written")
    try:
        tensors: dict[str, torch.Tensor] = load(content)
    except (SafetensorError, ValueError) as error:
        raise PublishError(f"{storage.address}/{place}: damaged: {error}") from error
    return tensors


def _written(storage: Storage, version: str, values: Mapping[str, torch.Tensor]) -> Object:
    content = save({str(at): value for at, value in enumerate(values.values())})
    storage.put(f"{FOLDER}/{version}/{_NAME}", content)
    parts = tuple(Part(name, 0, 0, len(value), listed=False) for name, value in values.items())
    return Object(_NAME, len(content), digest_of(content), parts)
