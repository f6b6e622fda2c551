"""Cache policies of the user's own: a score for each row, `register_policy`ed in a file, goes the same way as htrain's.

    # patient.py
    def patient(uses: int, idle: int, age: int) -> float:
        return uses / (1 + idle)

    htrain.register_policy("patient", patient)

`htrain compile ... --ops patient.py --cache het --cache-policy patient` takes it.
"""

import inspect
import sys

from htrain.errors import ModelError
from htrain.own.registry import file_of, path_of, record
from htrain.spec.policies import POLICIES, Score
from htrain.sync.scores import compiled


def register_policy(name: str, score: Score) -> None:
    """Make a policy of HET caches known: of the rows that may leave, those with the lowest `score` do first, of equal ones in no certain order.

    `score(uses, idle, age)` is a function of three whole numbers: how often a row was used, and how many steps of its trainer ago that was last, and for
    the first time. Numba compiles it: arithmetic, comparisons, `math`. It is called for every row of the cache whenever some have to leave. What is no number
    counts as the lowest.
    Requires: the caller is a file that can be imported again, as roles do. Raises ModelError for what cannot be a policy, and a name that is taken.

        # patient.py
        import htrain


        def patient(uses: int, idle: int, age: int) -> float:
            return uses / (1 + idle)


        htrain.register_policy("patient", patient)
    """
    caller = sys._getframe(1)
    path = file_of(caller, f"cache policy {name!r}")
    where = f"{path}: cache policy {name!r}"
    if not isinstance(name, str) or not (name.replace("-", "_").isidentifier() and name.isascii() and name.islower()):
        raise ModelError(f"{where}: want a word such as 'patient': small ASCII letters, digits, - and _")
    if name in POLICIES and path_of(_kind(name)) != path.resolve():
        whose = f"{path_of(_kind(name))} has registered it" if path_of(_kind(name)) else "htrain has one"
        raise ModelError(f"{where}: {whose}: choose another name")
    if not inspect.isfunction(score) or len(inspect.signature(score).parameters) != 3:
        raise ModelError(f"{where}: score is {score!r}, want a function of three numbers: score(uses, idle, age)")
    try:
        compiled(score)
    except Exception as error:  # Numba has many, none of which says more in its type
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ModelError(
            f"{where}: Numba cannot compile {score.__name__}(uses, idle, age): {' '.join(lines)[:300]}"
        ) from error
    POLICIES[name] = score
    record(_kind(name), path, caller)


def _kind(name: str) -> str:
    return f"cache.policy.{name}"
