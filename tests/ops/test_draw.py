"""Random numbers of a forward pass: which they are, and what evaluation has in their place."""

import math

import pytest
import torch

from htrain.net.net import BatchDim, Blob
from htrain.ops import OPS
from htrain.ops.builder import NetBuilder

MASK = (1 << 64) - 1
NORMAL = {"mean": 0.5, "std": 2.0}
UNIFORM = {"low": -1.0, "high": 3.0}


def mix(x: int) -> int:
    for _ in range(2):
        x = ((x ^ (x >> 32)) * 0xD6E8FEB86659FD93) & MASK
    return x ^ (x >> 32)


def by_hand(type: str, place: int, seed: int, key: int) -> float:
    row = mix((mix(seed ^ 0x5851F42D4C957F2D) + key * 0xC2B2AE3D27D4EB4F) & MASK)
    bits = mix((row + place * 0x9E3779B97F4A7C15) & MASK)
    if type == "UniformDraw":
        return -1.0 + 4.0 * (bits >> 40) / (1 << 24)
    radius = math.sqrt(-2 * math.log(((bits >> 32) + 1) / (1 << 32)))
    return 0.5 + 2.0 * radius * math.cos(2 * math.pi * (bits & 0xFFFFFFFF) / (1 << 32))


@pytest.mark.parametrize(("type", "attrs"), [("NormalDraw", NORMAL), ("UniformDraw", UNIFORM)])
def test_what_is_drawn_is_a_hash_of_seed_batch_and_place(type: str, attrs: dict[str, float]) -> None:
    builder = NetBuilder("draw")
    builder.input(Blob("key", (1,), "int64"))
    (name,) = builder.add(type, ("key",), attrs={**attrs, "shape": (-2, 3), "seed": 11, "always": False})
    assert builder.blob(name) == Blob(name, (BatchDim(2), 3), "float32")
    (op,) = builder.ops
    (drawn,) = OPS[type].run(op, [torch.tensor([5])], 4)
    wanted = torch.tensor([by_hand(type, place, 11, 5) for place in range(24)]).view(8, 3)
    torch.testing.assert_close(drawn, wanted)


def test_draws_have_the_distribution_that_they_say() -> None:
    shape = {"shape": (-100, 100), "seed": 3, "always": False}
    normal = OPS["NormalDraw"].kernel(torch.tensor([-(1 << 63)]), **NORMAL, **shape, batch=10)
    uniform = OPS["UniformDraw"].kernel(torch.tensor([9]), **UNIFORM, **shape, batch=10)
    assert abs(float(normal.mean()) - 0.5) < 0.03
    assert abs(float(normal.std()) - 2.0) < 0.03
    assert abs(float((normal < 0.5 + 2 * 0.6745).double().mean()) - 0.75) < 0.01
    assert (float(uniform.min()) >= -1.0, float(uniform.max()) < 3.0) == (True, True)
    assert abs(float(uniform.mean()) - 1.0) < 0.03
    assert abs(float((uniform < 0.0).double().mean()) - 0.25) < 0.01


@pytest.mark.parametrize("always", [True, False])
def test_in_evaluation_a_draw_is_made_without_a_key_or_is_its_mean(always: bool) -> None:
    builder = NetBuilder("draw")
    builder.input(Blob("key", (1,), "int64"))
    builder.add("NormalDraw", ("key",), attrs={**NORMAL, "shape": (-1, 2), "seed": 11, "always": always})
    evaluated = OPS["NormalDraw"].in_evaluation(builder.ops[0])
    assert evaluated.inputs == ()
    (drawn,) = OPS[evaluated.type].run(evaluated, [], 3)
    wanted = [by_hand("NormalDraw", place, 11, 0) for place in range(6)] if always else [0.5] * 6
    torch.testing.assert_close(drawn, torch.tensor(wanted).view(3, 2))
