"""How a value is encoded for its way between devices: which ops, and what travels (HT 4.2)."""

from collections.abc import Mapping
from dataclasses import dataclass

from htrain.net import Attr, BatchDim, Blob, Init, Parameter, numel
from htrain.ops.compress import kept_elements
from htrain.placement import Encoding
from htrain.spec.options import Options


@dataclass(frozen=True)
class Codec:
    """The op that encodes a blob into `parts`, which travel, and the one that decodes them; `residual` is what the encoder keeps
    from step to step, if anything."""

    encode: str
    encode_attrs: Mapping[str, Attr]
    decode: str
    decode_attrs: Mapping[str, Attr]
    parts: tuple[Blob, ...]
    residual: tuple[Parameter, ...] = ()

    def num_bytes(self, batch_size: int) -> int:
        return sum(part.num_bytes(batch_size) for part in self.parts)


def codec_of(blob: Blob, encoding: Encoding, options: Options) -> Codec:
    """The codec of a float32[B,...] blob."""
    name = f"{blob.name}/{encoding}"
    if encoding in ("bfloat16", "float16"):
        return Codec("Cast", {"to": encoding}, "Cast", {"to": "float32"}, (Blob(name, blob.shape, encoding),))
    if encoding == "int8":
        parts = (Blob(name, blob.shape, "uint8"), Blob(f"{name}/ranges", (blob.shape[0], 2), "float32"))
        return Codec("QuantizeRows", {}, "DequantizeRows", {}, parts)
    share = options.compression.gradient_top_k
    kept = (BatchDim(kept_elements(numel(blob.shape, 1), share), bound=True),)
    parts = (Blob(name, kept, "float32"), Blob(f"{name}/places", kept, "int32"))
    inner = tuple(d for d in blob.shape[1:] if isinstance(d, int))
    if encoding == "top_k":
        return Codec("TopK", {"share": share}, "SpreadTopK", {"shape": inner}, parts)
    shape = (options.batch_size, *inner)
    residual = Parameter(f"{name}:residual", shape, "float32", "state", Init("constant", (0.0,)))
    return Codec("TopKWithFeedback", {"share": share}, "SpreadTopK", {"shape": inner}, parts, (residual,))


def can_encode(blob: Blob, encoding: Encoding, options: Options) -> bool:
    """Whether a blob is float32 with the batch first, and becomes smaller."""
    inner = all(isinstance(d, int) for d in blob.shape[1:])
    if blob.dtype != "float32" or not blob.shape or blob.shape[0] != BatchDim() or not inner:
        return False
    return codec_of(blob, encoding, options).num_bytes(options.batch_size) < blob.num_bytes(options.batch_size)
