"""The parameters of a checkpoint, by their names in a plan's nets: mapped from the files of the roles that own them."""

from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError

from htrain.errors import CheckpointError
from htrain.executor.record.checkpoint import Manifest
from htrain.executor.record.layout import Layout
from htrain.executor.record.role_file import role_values, verified_role
from htrain.executor.record.statistics import of_all_groups
from htrain.net.names import DENSE_PS, GROUP, SPARSE_PS, Role
from htrain.spec.centres import centre_name


def load_parameters(
    layout: Layout, wanted: Collection[str], folder: Path, *, manifest: Manifest, replica: str
) -> dict[str, torch.Tensor]:
    """Every parameter of these names, mapped from the files of the roles that own it; of groups without centres, whose weights are alike, running statistics
    are those of all (`of_all_groups`). Raises CheckpointError."""
    group = _group(layout, replica)
    found: dict[str, torch.Tensor] = {}
    for role in sorted(manifest.files):
        found.update(_read(folder, manifest, role, centres_at(role, layout.centers) if group < 0 else {}))
    for role in sorted(role for role in manifest.files if serves(role, group)):
        missing = set(wanted) - found.keys()
        if Role.parse(role).kind == DENSE_PS:
            # What it keeps for its rounds beside a centre may be called as a state of the weight's optimizer is.
            missing &= layout.centers.keys()
        found.update(_read(folder, manifest, role, {name: name for name in missing}))
    missing = set(wanted) - found.keys()
    if missing:
        raise CheckpointError(f"{folder}: holds no value of '{min(missing)}'")
    if replica == "center" and not layout.centers and layout.groups > 1:
        found |= _statistics(layout, wanted, folder, manifest)
    return found


def _statistics(layout: Layout, wanted: Collection[str], folder: Path, manifest: Manifest) -> dict[str, torch.Tensor]:
    """Those of the wanted parameters that are running statistics, of all groups. Raises CheckpointError."""
    pairs = {mean: variance for variance, mean in layout.variances.items() if not {mean, variance}.isdisjoint(wanted)}
    held: dict[int, dict[str, torch.Tensor]] = {}
    for role in sorted(manifest.files):
        if (group := Role.parse(role).group) is not None:
            of_group = held.setdefault(group, {})
            of_group |= _read(folder, manifest, role, {name: name for pair in pairs.items() for name in pair})
    return {name: value for name, value in of_all_groups(pairs, list(held.values())).items() if name in wanted}


def _read(folder: Path, manifest: Manifest, role: str, names: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """Of the parameters `names[name]` those that the file of a role has, mapped from it, by name."""
    if not names:
        return {}
    try:
        with role_values(folder, manifest, role) as held:
            wanted = [name for name in sorted(names) if names[name] in held.names]
            if wanted:
                verified_role(folder, manifest, role)
            return {name: held.of(names[name]) for name in wanted}
    except (SafetensorError, OSError) as error:
        path = verified_role(folder, manifest, role)  # says more of a file that is damaged
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def centres_at(role: str, centers: Mapping[str, str]) -> dict[str, str]:
    """What a role of a group may have of the centres, where these are with groups: the parameter of each weight's."""
    host = Role.parse(role).host
    if host.kind != GROUP:
        return {}
    return {name: centre_name(name, of) for name, of in centers.items() if of == str(host)}


def _group(layout: Layout, replica: str) -> int:
    """The group whose dense replica to read; -1 for the centre."""
    if replica == "center":
        return -1 if layout.centers else 0
    kind, _, number = replica.partition(":")
    if kind != "group" or not (number.isascii() and number.isdigit()) or int(number) >= layout.groups:
        raise CheckpointError(f"'{replica}': want center, or group:N with N below {layout.groups}")
    return int(number)


def serves(role: str, group: int) -> bool:
    """Whether a role's parameters belong to the replica: sparse PSs always, dense PSs for the centre, a group's own for a group.

    What the centre lacks (weights that are not trained) comes from group 0, whose roles sort behind `dense_ps`.
    """
    of = Role.parse(role)
    if of.kind == SPARSE_PS:
        return True
    if of.kind == DENSE_PS:
        return group < 0
    return of.group == max(group, 0)
