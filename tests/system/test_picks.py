"""Masks that pick elements by the values of a batch, and places that are looked for: losses are trained as by PyTorch, whoever holds the weights."""

import math
from pathlib import Path

import pytest
from harness import losses_of, own_losses, relative_differences
from picking import BATCH, EXAMPLE, LOSSES, ROWS, Sequence

from htrain.compiler.pipeline import compile_net
from htrain.frontend.torch_model import capture
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags
from tests.system.test_equivalence import scatter

STEPS = 14
CLICKS = f"synthetic:?rows={STEPS * BATCH - 3}&table_rows={ROWS}&communities=4"  # the last batch is smaller
OPTIONS = with_flags(
    batch_size=BATCH, net_replicas=1, loss="own", dense_optimizer="sgd", sparse_optimizer="sgd", dense_lr=0.05, sparse_lr=0.1
)  # fmt: skip


# Of each kind: lookups of what was picked, what is put back, distinct items, other examples, another way, and places in two dimensions.
TRAINED = (
    "items_looked_up_behind",
    "put_back",
    "distinct_items",
    "those_in_batch",
    "clicked_examples",
    "some_if_any",
    "rows_and_places",
)


@pytest.mark.parametrize("name", TRAINED)
def test_what_a_mask_picks_is_trained_as_by_pytorch(name: str, tmp_path: Path) -> None:
    model = Sequence(LOSSES[name])
    wanted = own_losses(model, CLICKS, OPTIONS)
    assert all(math.isfinite(loss) for loss in wanted)
    tagger = scatter(len(name), trainer_may_hold_weights=True)
    captured, cluster = capture(model, EXAMPLE, own_loss=True), this_machine(group_ps=2, sparse_ps=1)
    plan = compile_net(captured, cluster, OPTIONS, name="picks", solver="rules", tagger=tagger)
    assert max(relative_differences(losses_of(plan, tmp_path / "plan", CLICKS), wanted)) <= 1e-5
