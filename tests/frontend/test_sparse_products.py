"""Products with constant sparse matrices, as of graph convolutions, are trained as by PyTorch."""

import pytest
import torch
from torch import nn

from htrain.data import CRITEO
from htrain.errors import ModelError
from htrain.frontend.torch_model import capture
from htrain.self_check.capture import capture_model
from htrain.spec.options import Options

IDS = {"ids": torch.zeros(3, dtype=torch.int64)}
FORMS = {
    "sparse.mm": torch.sparse.mm,
    "matmul": torch.matmul,
    "@": lambda a, b: a @ b,
    "method": lambda a, b: a.mm(b),
    "moved": lambda a, b: torch.mm(a.to(b.device).detach().float(), b),
}


class Convolved(nn.Module):
    """LightGCN's: the rows of all nodes, those of their neighbours, and theirs, for the nodes of a batch."""

    def __init__(self, form: str, graph: torch.Tensor) -> None:
        super().__init__()
        self.nodes, self.top, self.form, self.graph = nn.Embedding(9, 4), nn.Linear(4, 1), form, graph

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        near = FORMS[self.form](self.graph, self.nodes.weight)
        far = FORMS[self.form](self.graph, near)
        return self.top(torch.stack([self.nodes.weight, near, far], 1).mean(1)[ids]).squeeze(1)


def graph() -> torch.Tensor:
    """With an entry that comes twice, and a node without neighbours."""
    rows, columns = torch.tensor([0, 0, 3, 5, 8, 8, 1]), torch.tensor([1, 1, 2, 0, 8, 3, 7])
    return torch.sparse_coo_tensor(
        torch.stack([rows, columns]), torch.arange(1.0, 8.0) / 7, (9, 9), check_invariants=True
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_graph_convolution_is_trained_as_by_pytorch(form: str, layout: torch.layout) -> None:
    module = Convolved(form, graph() if layout == torch.sparse_coo else graph().to_sparse_csr())
    model = capture_model(module, schema=CRITEO, example_inputs=IDS, logit="", label="")
    assert model.compare(Options()).notes == ()
    assert module.graph.layout == layout


def test_a_graph_may_be_a_buffer() -> None:
    module = Convolved("@", torch.zeros(()))
    del module.graph
    module.register_buffer("first", torch.ones(1))
    module.register_buffer("graph", graph())
    module.register_buffer("last", torch.ones(1))
    model = capture_model(module, schema=CRITEO, example_inputs=IDS, logit="", label="")
    assert model.compare(Options()).notes == ()
    assert list(dict(module.named_buffers())) == ["first", "graph", "last"]
    assert "graph" not in vars(module)


def test_a_graph_of_which_edges_are_dropped_is_refused_with_the_cure() -> None:
    class Dropped(Convolved):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            kept = torch.sparse_coo_tensor(self.graph._indices(), nn.functional.dropout(self.graph._values()), (9, 9))
            return self.top(torch.sparse.mm(kept, self.nodes.weight)[ids]).squeeze(1)

    with pytest.raises(ModelError, match=r"a sparse tensor that it makes itself, .* by F.dropout"):
        capture(Dropped("@", graph()), IDS)


def test_a_sparse_matrix_that_is_trained_is_refused() -> None:
    with pytest.raises(ModelError, match="a sparse tensor that is trained, or no matrices"):
        capture(Convolved("matmul", graph().coalesce().requires_grad_()), IDS)


def test_rows_are_added_at_places() -> None:
    class Added(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.top = nn.Embedding(9, 4), nn.Linear(3, 1)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            places = torch.tensor([2, 0, 2, 1])
            rows = self.rows(ids)
            return self.top(torch.ones(len(ids), 3).index_add(1, places, rows, alpha=0.5).square()).squeeze(1)

    assert capture_model(Added(), schema=CRITEO, example_inputs=IDS, logit="", label="").compare(Options()).notes == ()
