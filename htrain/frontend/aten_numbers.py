"""ATen ops of single numbers that are several ops of htrain: a softplus of any sharpness, and rounding to decimals."""

from htrain.frontend.aten_forms import Call, Handler, argument
from htrain.frontend.translation import Translation

_SHARPNESS, _THRESHOLD = 1, 20  # as torch has them, and the op Softplus


def _softplus(t: Translation, call: Call) -> None:
    """log(1 + exp(beta * x)) / beta, and x itself where beta * x is above the threshold."""
    beta = float(argument(call, 1, "beta", _SHARPNESS))
    threshold = float(argument(call, 2, "threshold", _THRESHOLD))
    x, like = t.blob(call.args[0]), call.meta["val"]
    if (beta, threshold) == (_SHARPNESS, _THRESHOLD):
        t.add(call.node, "Softplus", (x,))
        return
    sharp = t.blob(beta, like=like)
    scaled = t.step(call.node, "Mul", (x, sharp))
    smooth = t.step(call.node, "Div", (t.step(call.node, "Softplus", (scaled,)), sharp))
    beyond = t.step(call.node, "Greater", (scaled, t.blob(threshold, like=like)))
    t.add(call.node, "Where", (beyond, x, smooth))


def _round_to_decimals(t: Translation, call: Call) -> None:
    """As torch does it, by a power of ten that is a whole number."""
    decimals = int(argument(call, 1, "decimals", 0))
    power = t.blob(float(10 ** abs(decimals)), like=call.meta["val"])
    there, back = ("Mul", "Div") if decimals > 0 else ("Div", "Mul")
    whole = t.step(call.node, "Round", (t.step(call.node, there, (t.blob(call.args[0]), power)),))
    t.add(call.node, back, (whole, power))


NUMBERS: dict[str, Handler] = {"softplus.default": _softplus, "round.decimals": _round_to_decimals}
