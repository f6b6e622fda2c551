"""What became of one model, and the table and totals of all."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

BOUND = 1e-4  # by how much a loss may differ from PyTorch's, of its size
COLUMNS = {"one trainer": ("alone",), "1+1+1": ("roles",), "two groups": ("het", "allgather")}  # of which placements
_OP = re.compile(r"^(\S+) in .* cannot be compiled: (.*)$", re.DOTALL)
_CAPTURE = re.compile(r"^torch\.export cannot capture \S+: (.*?)(?: \(in .*\))?$", re.DOTALL)
_WIDTH = 100


@dataclass(frozen=True)
class Result:
    """`compiles`: yes, no, crash (of htrain: no error of its own) or skipped (the library itself cannot build or run it).

    `why` is the one line of a refusal, `equal` what the self-check says: yes, no, or why it could not compare. `trains` has, by a pair of optimizers and a
    placement, the largest relative difference of a step's loss from PyTorch's. Where that is beyond BOUND, `ulp` has what it is where PyTorch starts from
    the neighbouring floats, and `calmer` the share of the rates with which it is not; 0 for none that was tried.
    """

    library: str
    model: str
    compiles: str
    why: str = ""
    equal: str = ""
    trains: Mapping[str, float | str] = field(default_factory=dict)
    ulp: Mapping[str, float] = field(default_factory=dict)
    calmer: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    notes: Sequence[str] = ()
    text: str = ""

    def training(self, name: str) -> str:
        """What this training is to PyTorch's: `equal`; `chaotic`, which differs as PyTorch does from itself after a change of an ulp; or `differs`."""
        seen = self.trains[name]
        if isinstance(seen, str):
            return "differs"
        if seen <= BOUND:
            return "equal"
        return "chaotic" if seen <= 2 * self.ulp.get(name, 0.0) else "differs"

    def trained(self, placements: Collection[str]) -> str:
        """The same of all trainings in these placements: the worst of them; empty where there is none."""
        found = {self.training(name) for name in self.trains if name.split()[-1] in placements}
        return next((each for each in ("differs", "chaotic", "equal") if each in found), "")


def reason(result: Result) -> str:
    """The kind of a refusal: the op that is missing, or the start of what is said."""
    op = _OP.match(result.why)
    if op:
        return f"{op[1]}: {_short(op[2])}"
    capture = _CAPTURE.match(result.why)
    if capture:
        return f"torch.export: {_short(_nameless(capture[1]))}"
    return _short(_nameless(result.why))


def _nameless(text: str) -> str:
    """`text` without quoted names, sizes and symbols, which differ from model to model."""
    return re.sub(r"\b[us]\d+\b|\b\d+\b", "N", re.sub(r"'[^']*'|\"[^\"]*\"", "'..'", text))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _WIDTH else line[: _WIDTH - 2] + ".."


def reasons(results: Sequence[Result]) -> list[tuple[str, int, str]]:
    """Every kind of refusal, with how many models it stops and the first of these; the most frequent first."""
    stopped = [r for r in results if r.compiles in ("no", "crash")]
    counts = Counter(reason(r) for r in stopped)
    first: dict[str, str] = {}
    for r in stopped:
        first.setdefault(reason(r), f"{r.library} {r.model}")
    return [(kind, count, first[kind]) for kind, count in counts.most_common()]


def row(result: Result) -> str:
    """One line of the table."""
    compiles = "yes" if result.compiles == "yes" else f"{result.compiles}: {result.why}"
    trains = _trained(result) if result.trains else ""
    return f"{result.library:16} {result.model:32} {result.seconds:5.1f} s  {compiles:4} {result.equal:4} {trains}".rstrip()


def _trained(result: Result) -> str:
    """The trainings of a model: how many are equal and the largest difference of these, and each of the others."""
    equal = [name for name in result.trains if result.training(name) == "equal"]
    worst = max((seen for name, seen in result.trains.items() if name in equal), default=0.0)
    others = [_other(result, name) for name in result.trains if name not in equal]
    return "; ".join([f"{len(equal)} of {len(result.trains)} trainings equal, within {worst:.0e}", *others])


def _other(result: Result, name: str) -> str:
    seen = result.trains[name]
    if isinstance(seen, str):
        return f"{name}: {seen}"
    calmer = f"; equal at {result.calmer[name]:g} of the rates" if result.calmer.get(name) else ""
    return f"{name} {result.training(name)} by {seen:.0e} (an ulp {result.ulp.get(name, 0.0):.0e}{calmer})"


def totals(results: Sequence[Result], skipped: Mapping[str, str]) -> Iterator[str]:
    """A line for each library, and one for all."""
    libraries = list(dict.fromkeys(r.library for r in results))
    for library in libraries:
        yield _total(library, [r for r in results if r.library == library])
    if len(libraries) > 1:
        yield _total("all", results)
    for library, why in skipped.items():
        yield f"{library:16} skipped: {why}"


def _total(name: str, results: Sequence[Result]) -> str:
    tried = [r for r in results if r.compiles != "skipped"]
    compiled = [r for r in tried if r.compiles == "yes"]
    equal = sum(r.equal == "yes" for r in compiled)
    line = f"{name:16} {len(compiled)} of {len(tried)} compile, {equal} equal PyTorch"
    for words, placements in COLUMNS.items():
        line += _of_trained(words, [seen for r in compiled if (seen := r.trained(placements))])
    line += _of_all([(r, name) for r in compiled for name in r.trains])
    left = len(results) - len(tried)
    return line + (f"; {left} do not run in PyTorch" if left else "")


def _of_all(trainings: Sequence[tuple[Result, str]]) -> str:
    """How many trainings there are, and how many are chaotic, of how many models; of these trainings those that are PyTorch's at smaller rates."""
    chaotic = [(r, name) for r, name in trainings if r.training(name) == "chaotic"]
    if not chaotic:
        return f"; {len(trainings)} trainings" if trainings else ""
    models, calm = len({id(r) for r, _ in chaotic}), sum(r.calmer.get(name, 0.0) > 0 for r, name in chaotic)
    return f"; {len(trainings)} trainings, {len(chaotic)} chaotic of {models} models, {calm} of these equal at smaller rates"


def _of_trained(words: str, seen: Sequence[str]) -> str:
    """How many models train as PyTorch does in some placements, and how many of those do but for rounding."""
    if not seen:
        return ""
    chaotic = f" ({seen.count('chaotic')} chaotic)" if "chaotic" in seen else ""
    return f"; {words}: {seen.count('equal')} of {len(seen)}{chaotic}"
