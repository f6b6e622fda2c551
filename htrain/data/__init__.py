"""Readers: a data file in, batches of named arrays out."""

from htrain.data.batch import START, Batch, Position
from htrain.data.malformed import Malformed
from htrain.data.reader import Dataset
from htrain.data.schema import CRITEO, Input, Schema, click_schema
from htrain.data.source import open_data

__all__ = [
    "CRITEO",
    "START",
    "Batch",
    "Dataset",
    "Input",
    "Malformed",
    "Position",
    "Schema",
    "click_schema",
    "open_data",
]
