"""Formats of data, one a file, and `FORMATS`, the table of all of them by the name that URIs give them."""

from htrain.data.format import Format
from htrain.data.formats import criteo, graph, libsvm, packed, synthetic, tabular

FORMATS: dict[str, Format] = {
    format.name: format
    for module in (criteo, libsvm, tabular, synthetic, graph, packed)
    for format in module.FORMATS
}  # fmt: skip
