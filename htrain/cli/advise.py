"""`htrain advise`: what cache a model wants on the user's own data."""

import time
from importlib import import_module
from pathlib import Path
from typing import Any

import click

import htrain
from htrain.cli.flags import (
    FilePath,
    PlanCommand,
    cluster_flags,
    cluster_of,
    json_flag,
    options_of,
    put,
    require_use,
    training_flags,
)
from htrain.cli.progress import Progress
from htrain.printable import as_word
from htrain.spec.settings import MOST_ACCESSES


class _List(click.ParamType):
    """Values with commas between them; `unbounded`, where it may be one, and otherwise texts or whole numbers."""

    name = "LIST"

    def __init__(self, numbers: bool) -> None:
        self._numbers = numbers

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "A,B,.."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        texts = [text.strip() for text in str(value).split(",")]
        if not self._numbers:
            return tuple(texts)
        for text in texts:
            if text != "unbounded" and not (text.isascii() and text.isdigit() and len(text) < 10):
                self.fail(f"'{text}': want numbers with commas between them, such as 1,8,64", param, ctx)
        return tuple(text if text == "unbounded" else int(text) for text in texts)


@click.command(cls=PlanCommand)
@click.argument("data")
@click.option("--model", required=True, help="The model, as htrain compile takes it.")
@click.option(
    "--cluster", "cluster_file", type=FilePath(), help="A cluster file: how many trainers, and how they train."
)
@click.option("--logit", default="", help="The output to train, where the model has several: its name or position.")
@click.option("--label", default="", help="The label input of an ONNX model that carries one. [default: label]")
@click.option("--epochs", default=1, type=click.IntRange(1, 1000), help="Passes over the data that training takes. [default: 1]")  # fmt: skip
@click.option("--capacities", type=_List(numbers=False), help="Capacities to try. [default: 0.5%,1%,2%,5%,10%,20%,50%]")
@click.option("--policies", type=_List(numbers=False), help="Policies to try. [default: light-lfu,lru,lfu]")
@click.option("--windows", type=_List(numbers=True), help="Windows to try, in batches. [default: 1,8,64]")
@click.option("--bounds", type=_List(numbers=True), help="Bounds of staleness to show. [default: 0,10,100,unbounded]")
@click.option("--exact", is_flag=True, help="Keep all rows, however many there are. [default: a sample of the rows]")
@click.option(
    "--out", type=FilePath(), help="Write what is recommended, as a cluster file for htrain compile --cluster."
)
@click.option("--rates", type=FilePath(), help="Write the rates of every setting, for htrain compile --rates.")
@click.option("--html", type=FilePath(), help="Write a page for a browser: the curves, and every figure.")
@cluster_flags
@training_flags
@json_flag
def advise(
    data: str, model: str, cluster_file: Path | None, logit: str, label: str, epochs: int, capacities: Any, policies: Any, windows: Any, bounds: Any,
    exact: bool, out: Path | None, rates: Path | None, html: Path | None, as_json: bool, **flags: Any
) -> None:  # fmt: skip
    """Say what cache MODEL wants on DATA.

    Hit rates by policy, capacity, window and staleness stand beside Belady's bound, bytes of an example, and the EPS
    that links allow. The data is read once. The knee is recommended, under --cache-staleness.

    \b
    htrain advise criteo:train.tsv --model models/dlrm.py --out advised.yaml --rates advised.rates --html advice.html
    htrain compile models/dlrm.py --data criteo:train.tsv --cluster advised.yaml --rates advised.rates --out plan/
    """
    cluster, options = cluster_of(cluster_file, flags, here=False), options_of(flags, cluster_file)
    require_use(options, cluster, cluster_file)
    files, pages = import_module("htrain.calibration.cluster_file"), import_module("htrain.report.advice_page")
    if out:
        files.require_writable(out)
    rates_file = import_module("htrain.advising.rates_file")
    if rates:
        rates_file.require_writable(rates)
    if html:
        pages.require_writable(html)
    values = {"capacities": capacities, "policies": policies, "windows": windows, "staleness": bounds}
    grid = import_module("htrain.advising.advice").Grid(**{name: value for name, value in values.items() if value})
    began, cpu = time.perf_counter(), time.process_time()
    with Progress() as progress:
        advice = htrain.advise(
            data, model=model, cluster=cluster, options=options, grid=grid, epochs=epochs, logit=logit, label=label,
            on_examples=progress.examples, on_step=progress.step, most_accesses="all" if exact else MOST_ACCESSES,
        )  # fmt: skip
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    if out:
        files.write_cluster(out, import_module("htrain.advising.section").section_text(advice))
    if rates:
        rates_file.write_rates(rates, advice)
    if html:
        pages.write_advice_page(advice, html)
    with_rates = f" --rates {as_word(rates)}" if rates and advice.saves else ""
    written = (
        [f"{out}: use it with: htrain compile {model} --data {data} --cluster {as_word(out)}{with_rates} ..."]
        if out
        else []
    )
    written += [f"{html}: open it in a browser"] if html else []
    report = import_module("htrain.report.advice")
    lines = [report.advice_text(advice), f"found in {seconds:.1f} s, {cpu:.1f} of CPU", *written]
    put({**report.advice_document(advice), "seconds": seconds}, "\n".join(lines), as_json)
