"""What became of one model, and the table and totals of all."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

BOUND = 1e-4  # by how much a loss may differ from PyTorch's, of its size
_OP = re.compile(r"^(\S+) in .* cannot be compiled: (.*)$", re.DOTALL)
_CAPTURE = re.compile(r"^torch\.export cannot capture \S+: (.*?)(?: \(in .*\))?$", re.DOTALL)
_WIDTH = 100


@dataclass(frozen=True)
class Result:
    """`compiles`: yes, no, crash (of htrain: no error of its own) or skipped (the library itself cannot build or run it).

    `why` is the one line of a refusal, `equal` what the self-check says: yes, no, or why it could not compare. `trains` has, by optimizer, the
    largest relative difference of a step's loss from PyTorch's, and `ulp` what that is where PyTorch starts from the neighbouring floats.
    """

    library: str
    model: str
    compiles: str
    why: str = ""
    equal: str = ""
    trains: Mapping[str, float | str] = field(default_factory=dict)
    ulp: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    notes: Sequence[str] = ()
    text: str = ""

    def follows(self, optimizer: str) -> bool:
        """Whether this training is PyTorch's, up to what rounding alone does to it."""
        seen = self.trains[optimizer]
        return isinstance(seen, float) and seen <= max(BOUND, 2 * self.ulp.get(optimizer, 0.0))


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
    trains = " ".join(_trained(result, optimizer) for optimizer in result.trains)
    return f"{result.library:16} {result.model:32} {result.seconds:5.1f} s  {compiles:4} {result.equal:4} {trains}".rstrip()


def _trained(result: Result, optimizer: str) -> str:
    seen = result.trains[optimizer]
    if isinstance(seen, str):
        return f"{optimizer}: {seen}"
    ulp = f" (an ulp {result.ulp[optimizer]:.0e})" if optimizer in result.ulp else ""
    return f"{optimizer}{'' if result.follows(optimizer) else ' DIFFERS'} {seen:.0e}{ulp}"


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
    trained = [r for r in compiled if r.trains]
    line = f"{name:16} {len(compiled)} of {len(tried)} compile, {equal} equal PyTorch"
    if trained:
        line += f", {sum(all(map(r.follows, r.trains)) for r in trained)} of {len(trained)} train as PyTorch does"
    left = len(results) - len(tried)
    return line + (f"; {left} do not run in PyTorch" if left else "")
