"""The tables of a plan in a training loop of one's own (docs/how-to/serve-tables.md).

    tables = htrain.client.connect("runs/tables")            # what `htrain serve plan/ --out runs/tables` serves
    embedding = htrain.client.HetEmbedding(tables, "user")   # in the place of nn.Embedding, in any module
    ...
    loss.backward(); optimizer.step(); tables.step()

It needs neither a plan nor a compiler, and is there for the first batch before its loops are compiled.
"""

from htrain.client.connecting import connect
from htrain.client.modules import HetEmbedding, HetEmbeddingBag
from htrain.client.tables import Tables

__all__ = ["HetEmbedding", "HetEmbeddingBag", "Tables", "connect"]
