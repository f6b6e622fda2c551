"""What a worker has done, for the metrics (HET-GMP 7.2)."""

from dataclasses import dataclass, field

import numpy as np

from htrain.sync.territory import Ids

KINDS = ("rows", "gradients", "keys", "clocks")


@dataclass
class GmpCounts:
    """Distinct rows of batches: the worker's `own`, read from `replicas`, `fetched` for one batch from each owner [K]; `needed` of each owner, replicas among
    them, a row of the data once however many tables it is looked up in.

    `written` are the updates of rows, its own included. `intra_checks` are secondaries whose clock was checked, of which `intra_syncs` came anew;
    `inter_checks` are pairs of a sample's rows that were compared, for which `inter_syncs` secondaries came. `useless` ones of these had no update that had not
    been seen. `synced` secondaries came from each owner, for whatever reason. `bytes`[kind][K] went to and came from each owner.
    """

    num_workers: int
    own: int = 0
    written: int = 0
    replicas: int = 0
    intra_checks: int = 0
    intra_syncs: int = 0
    inter_checks: int = 0
    inter_syncs: int = 0
    useless: int = 0
    needed: Ids = field(default_factory=lambda: np.zeros(0, np.int64))
    fetched: Ids = field(default_factory=lambda: np.zeros(0, np.int64))
    synced: Ids = field(default_factory=lambda: np.zeros(0, np.int64))
    bytes: dict[str, Ids] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("needed", "fetched", "synced"):
            setattr(self, name, np.zeros(self.num_workers, np.int64))
        self.bytes = {kind: np.zeros(self.num_workers, np.int64) for kind in KINDS}
