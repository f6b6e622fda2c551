"""The models of TorchRec: dense numbers and a KeyedJaggedTensor of some features, of one id or of several."""

from collections.abc import Callable, Iterator

from torch import nn
from torchrec.models.deepfm import SimpleDeepFMNN
from torchrec.models.dlrm import DLRM, DLRM_DCN, DLRM_Projection
from torchrec.models.experimental.transformerdlrm import DLRM_Transformer
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from htrain.data.schema import Schema
from htrain.frontend.keyed_features import keyed
from library_models.case import Case, Ids, Numbers, drawn

INPUTS = {"dense_features": Numbers(3), "f1": Ids(1, 50), "f2": Ids(1, 60), "f3": Ids(3, 70), "f4": Ids(2, 80)}
ROWS = {"f1": 50, "f2": 60, "f3": 70, "f4": 80}


def collection() -> EmbeddingBagCollection:
    """A table for each feature; one takes the mean of its ids' rows."""
    return EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(
                name=f"table_{name}",
                embedding_dim=8,
                num_embeddings=rows,
                feature_names=[name],
                pooling=PoolingType.MEAN if name == "f4" else PoolingType.SUM,
            )
            for name, rows in ROWS.items()
        ]
    )


def cases() -> Iterator[Case]:
    """Every model of torchrec.models, with the argument of its features as htrain gives it."""
    dense, over = [16, 8], [16, 1]
    makers: dict[str, Callable[[], nn.Module]] = {
        "DLRM": lambda: DLRM(collection(), 3, dense, over),
        "DLRM_DCN": lambda: DLRM_DCN(collection(), 3, dense, over, dcn_num_layers=2, dcn_low_rank_dim=4),
        "DLRM_Projection": lambda: DLRM_Projection(collection(), 3, dense, over, [8, 16], [8, 16]),
        "DLRM_Transformer": lambda: DLRM_Transformer(collection(), 3, dense, over, nhead=2, ntransformer_layers=2),
        "SimpleDeepFMNN": lambda: SimpleDeepFMNN(3, collection(), hidden_layer_size=16, deep_fm_dimension=8),
    }
    example = drawn(INPUTS, 6)
    for name, make in makers.items():
        yield Case("torchrec", name, lambda make=make: keyed(make(), example, Schema(()))[0], INPUTS)
