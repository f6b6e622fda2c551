"""A small wide & deep of the zoo, with values, and plans of it."""

import functools
from pathlib import Path

import torch
from torch import nn

from htrain.compiler.pipeline import compile_net
from htrain.data import click_schema
from htrain.frontend.captured import Captured
from htrain.frontend.load import load_model
from htrain.frontend.torch_model import capture
from htrain.plan.plan import Plan
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options

BATCH, ROWS = 16, 40
DATA = f"synthetic:?rows={BATCH * 50}&table_rows={ROWS}&communities=4"
MODELS = Path(__file__).parents[2] / "models"


@functools.cache
def model_of(name: str) -> tuple[nn.Module, Captured]:
    """A model of the zoo over tables of ROWS rows, and its capture."""
    torch.manual_seed(0)
    loaded = load_model(str(MODELS / name), click_schema(13, (ROWS,) * 26))
    model = loaded.module.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.0, 0.08)
    return model, capture(model, loaded.example_inputs)


def small_plan(options: Options, **counts: int) -> tuple[nn.Module, Plan]:
    """Wide & deep for workers that hold all dense weights; one of them, and one sparse PS, unless `counts` say otherwise."""
    model, captured = model_of("wide_deep.py")
    cluster = this_machine(**{"trainers": 1, "group_ps": 0, "sparse_ps": 1, **counts})
    return model, compile_net(captured, cluster, options, name="wide_deep")
