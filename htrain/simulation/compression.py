"""Whether encoded values pay in the end (HT 4.2): the cost model chose them, and the simulation, in which steps wait for each other, decides.

The cost model sees the busiest device alone. Converting takes time in every step, too, which more bytes on a link that has room do not.
"""

from collections.abc import Callable
from dataclasses import replace

from htrain.net.net import COMPRESS
from htrain.plan.plan import Plan
from htrain.simulation.run import simulate
from htrain.spec.options import Options

_STEPS = 12
_PAYS = 1.01  # encoding rounds, and twelve steps tell no smaller differences apart


def faster(compile_with: Callable[[Options], Plan], options: Options) -> Plan:
    """The plan; under `compress` `auto` one without encoded values where that is simulated to be within 1 % as fast, with a note that says so."""
    plan = compile_with(options)
    if options.compression.compress != "auto" or not any(op.module == COMPRESS for op in plan.train.ops):
        return plan
    plain = compile_with(replace(options, compression=replace(options.compression, compress="never")))
    with_it, without = (simulate(each, steps=_STEPS).eps for each in (plan, plain))
    figures = f"{with_it:,.0f} EPS simulated with encoded values, {without:,.0f} without"
    chosen = plan if with_it > _PAYS * without else replace(plain, options=options)
    verdict = "they pay" if chosen is plan else "none is encoded"
    return replace(chosen, notes=(*chosen.notes, f"{figures}: {verdict}"))
