"""How a value is encoded for its way between devices: which ops, and what travels (HT 4.2)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from htrain.net.net import Attr, BatchDim, Blob
from htrain.net.placement import Encoding
from htrain.spec.options import Options


@dataclass(frozen=True)
class Codec:
    """The op that encodes a blob into `parts`, which travel, and the one that decodes them."""

    encode: str
    encode_attrs: Mapping[str, Attr]
    decode: str
    decode_attrs: Mapping[str, Attr]
    parts: tuple[Blob, ...]

    def num_bytes(self, batch_size: int) -> int:
        """Bytes that travel for a batch of `batch_size` examples."""
        return sum(part.num_bytes(batch_size) for part in self.parts)


def kept_elements(elements: int, share: float) -> int:
    """How many of `elements` a sparsified tensor keeps."""
    return min(elements, math.ceil(elements * share))


def codec_of(blob: Blob, encoding: Encoding) -> Codec:
    """The codec of a float32[B,...] blob."""
    name = f"{blob.name}/{encoding}"
    if encoding in ("bfloat16", "float16"):
        return Codec("Cast", {"to": encoding}, "Cast", {"to": "float32"}, (Blob(name, blob.shape, encoding),))
    parts = (Blob(name, blob.shape, "uint8"), Blob(f"{name}/ranges", (blob.shape[0], 2), "float32"))
    return Codec("QuantizeRows", {}, "DequantizeRows", {}, parts)


_LEAST_ROW = 16  # numbers; a row of int8 comes with 8 bytes


def weight_codec(name: str, shape: tuple[int, ...], dtype: str, share: float) -> Codec | None:
    """The codec of differences float32[*shape] of a weight; None where they travel as they are. What int8 would make longer is bfloat16."""
    if share < 1:
        kept = (kept_elements(math.prod(shape), share),)
        parts = (Blob(f"{name}/top_k", kept, "float32"), Blob(f"{name}/places", kept, "int32"))
        return (
            Codec("TopK", {"share": share}, "SpreadWhole", {"shape": shape}, parts)
            if 2 * kept[0] < math.prod(shape)
            else None
        )
    if dtype == "int8" and len(shape) > 1 and math.prod(shape[1:]) >= _LEAST_ROW:
        parts = (Blob(f"{name}/int8", shape, "uint8"), Blob(f"{name}/ranges", (shape[0], 2), "float32"))
        return Codec("QuantizeRows", {}, "DequantizeRows", {}, parts)
    return (
        Codec("Cast", {"to": "bfloat16"}, "Cast", {"to": "float32"}, (Blob(f"{name}/bfloat16", shape, "bfloat16"),))
        if dtype != "float32"
        else None
    )


def can_encode(blob: Blob, encoding: Encoding, options: Options) -> bool:
    """Whether a blob is float32 with the batch first, and becomes smaller."""
    inner = all(isinstance(d, int) for d in blob.shape[1:])
    if blob.dtype != "float32" or not blob.shape or blob.shape[0] != BatchDim() or not inner:
        return False
    return codec_of(blob, encoding).num_bytes(options.batch_size) < blob.num_bytes(options.batch_size)
