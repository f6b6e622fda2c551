"""Products with constant sparse matrices, as of graph convolutions, are trained as by PyTorch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from htrain.data import CRITEO
from htrain.errors import ModelError
from htrain.frontend.torch_model import capture
from htrain.ops.draw import is_draw
from htrain.self_check.capture import capture_model
from htrain.spec.options import Options

Sparse = Any  # a sparse tensor, or what a capture has in its place
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


def test_a_graph_may_be_a_parameter_that_is_not_trained() -> None:
    module = Convolved("@", torch.zeros(()))
    del module.graph
    module.graph = nn.Parameter(graph(), requires_grad=False)
    model = capture_model(module, schema=CRITEO, example_inputs=IDS, logit="", label="")
    assert model.compare(Options()).notes == ()
    assert list(dict(module.named_parameters())) == ["graph", "nodes.weight", "top.weight", "top.bias"]
    assert "graph" not in model.captured.net.parameters


def kept_edges(graph: torch.Tensor) -> Sparse:
    """LightGCN's dropout of edges."""
    kept = (torch.rand(len(graph.values())) + 0.6).int().bool()
    places, values = graph.indices().t()[kept], graph.values()[kept] / 0.6
    return torch.sparse.FloatTensor(places.t(), values, graph.size())


def scaled_edges(graph: torch.Tensor) -> Sparse:
    """NGCF's dropout of edges."""
    random = 0.6
    random += torch.rand(graph._nnz()).to(graph.device)
    kept = torch.floor(random).type(torch.bool)
    dropped = torch.sparse.FloatTensor(graph._indices()[:, kept], graph._values()[kept], graph.shape).to(graph.device)
    return dropped * (1.0 / 0.6)


def dropped_values(graph: torch.Tensor) -> Sparse:
    return torch.sparse_coo_tensor(graph._indices(), F.dropout(graph._values()), (9, 9))


def softmax_of_kept(graph: torch.Tensor) -> Sparse:
    kept = torch.rand(graph._nnz()) < 0.6
    return torch.sparse.softmax(
        torch.sparse_coo_tensor(graph.indices()[:, kept], 300 * graph.values()[kept], (9, 9)), dim=1
    )


@pytest.mark.parametrize("drop", [kept_edges, scaled_edges, dropped_values, softmax_of_kept])
@pytest.mark.parametrize("always", [False, True])
def test_edges_of_a_graph_are_dropped_as_by_pytorch(drop: Callable[[torch.Tensor], Sparse], always: bool) -> None:
    class Dropped(Convolved):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            kept = drop(self.graph) if self.training or always else self.graph
            near = torch.sparse.mm(kept, self.nodes.weight)
            return self.top(
                torch.stack([self.nodes.weight, near, torch.sparse.mm(kept, near)], 1).mean(1)[ids]
            ).squeeze(1)

    model = capture_model(Dropped("@", graph().coalesce()), schema=CRITEO, example_inputs=IDS, logit="", label="")
    found = model.compare(Options())
    assert [note for note in found.notes if "in evaluation, too" not in note] == []
    assert any(is_draw(op) or op.type == "Dropout" for op in model.captured.net.ops)
    if drop is not dropped_values and not always:
        assert model.captured.evaluation is not None
        assert not any(map(is_draw, model.captured.evaluation.net.ops))


MATRICES: dict[str, Callable[[nn.Module], torch.Tensor]] = {
    "trained": lambda m: torch.sparse_coo_tensor(m.edges, m.entries, (9, 9)) @ m.nodes.weight,
    "from the right": lambda m: (m.nodes.weight.t() @ torch.sparse_coo_tensor(m.edges, m.entries, (9, 9))).t(),
    "of attention": lambda m: torch.sparse.mm(
        torch.sparse_coo_tensor(m.edges, (m.nodes.weight[m.edges[0]] * m.nodes.weight[m.edges[1]]).sum(1), (9, 9)), m.nodes.weight
    ),
    "transposed": lambda m: 2 * torch.sparse_coo_tensor(m.edges, m.entries, (9, 9)).coalesce().t() @ m.nodes.weight,
    "its softmax": lambda m: torch.sparse.mm(torch.sparse.softmax(torch.sparse_coo_tensor(m.edges, 200 * m.entries, (9, 9)), 1), m.nodes.weight),
    "its softmax by columns": lambda m: torch.sparse.mm(torch.sparse.softmax(torch.sparse_coo_tensor(m.edges, m.entries, (9, 9)), 0) / 3, m.nodes.weight),
    "dense": lambda m: torch.sparse_coo_tensor(m.edges, m.entries, (9, 9)).to_dense() @ m.nodes.weight,
    "a vector": lambda m: m.nodes.weight * (m.graph @ m.nodes.weight[:, 0])[:, None],
    "a vector from the left": lambda m: m.nodes.weight * (m.nodes.weight[:, 0] @ m.graph)[:, None],
    "constant, dense": lambda m: m.graph.to_dense() @ m.nodes.weight,
    "constant sums": lambda m: torch.sparse.sum(m.graph, 1).to_dense()[:, None] * m.nodes.weight,
    "constant softmax": lambda m: torch.sparse.softmax(m.graph + m.graph, 1) @ m.nodes.weight,
}  # fmt: skip


class Made(nn.Module):
    def __init__(self, matrix: Callable[[nn.Module], torch.Tensor]) -> None:
        super().__init__()
        self.nodes, self.top, self.graph, self.matrix = nn.Embedding(9, 4), nn.Linear(4, 1), graph().coalesce(), matrix
        self.entries = nn.Parameter(torch.rand(6))
        self.register_buffer("edges", self.graph.indices().clone())

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.top(self.matrix(self)[ids]).squeeze(1)


@pytest.mark.parametrize("matrix", MATRICES)
def test_a_sparse_matrix_that_forward_makes_is_trained_as_by_pytorch(matrix: str) -> None:
    model = capture_model(Made(MATRICES[matrix]), schema=CRITEO, example_inputs=IDS, logit="", label="")
    assert model.compare(Options()).notes == ()


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (lambda m: torch.sparse_coo_tensor(m.edges, m.entries) @ m.nodes.weight, "no matrix of a given size"),
        (lambda m: torch.sparse_coo_tensor(m.edges, m.entries, (9, 9)).sum() * m.nodes.weight, "asks for sum of a sparse"),
        (lambda m: (m.nodes.weight @ m.nodes.weight.T).to_sparse() @ m.nodes.weight, "makes of a dense one"),
        (lambda m: torch.sparse_coo_tensor(m.edges[:, torch.rand(6) < 0.5], m.entries, (9, 9)) @ m.nodes.weight, "another mask"),
    ],
)  # fmt: skip
def test_what_is_more_than_a_product_is_refused_with_the_cure(
    matrix: Callable[[nn.Module], torch.Tensor], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        capture(Made(matrix), IDS)


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
