"""What a trainer keeps of the batches that its replicas have."""

from htrain.data import Position
from htrain.executor.roles.handed import Handed


def test_a_trainer_that_nobody_is_to_follow_alone_keeps_nothing_of_its_batches() -> None:
    """Behind look-ahead caches nobody says that batches have ended: they would be kept as long as the run lasts."""
    handed = Handed(Position(0, 0, 0), keeps=False)
    for row in range(1, 1000):
        assert not handed.hand(Position(0, 0, row))
        handed.taken(Position(0, 0, row))
    assert handed.num_kept == 0
    assert handed.position == Position(0, 0, 999)
    assert not handed.is_behind
