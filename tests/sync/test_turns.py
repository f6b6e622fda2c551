"""Buckets have their turn in one order on all trainers, whatever order their values come in."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from htrain.sync.turns import Turn, Turns


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[list[list[str]], list[int], list[tuple[int, list[str]]]]:
    """Buckets, the steps, some of them left out, and messages: the first of each step in order of steps, the others any time later, some twice."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    buckets = [[f"g{bucket}_{n}" for n in range(size)] for bucket, size in enumerate(sizes)]
    steps = sorted(draw(st.sets(st.integers(0, 9), min_size=1, max_size=4)))
    messages: list[tuple[int, list[str]]] = []
    others: list[tuple[int, list[str]]] = []
    for step in steps:
        names = draw(st.permutations([name for bucket in buckets for name in bucket]))
        cuts = sorted(draw(st.sets(st.integers(1, len(names)), max_size=3)) | {0, len(names)})
        first, *rest = [(step, names[begin:end]) for begin, end in itertools.pairwise(cuts)]
        messages.append(first)
        others += [*rest, *draw(st.lists(st.sampled_from([first, *rest]), max_size=2))]
    for message in others:
        messages.insert(draw(st.integers(1 + [step for step, _ in messages].index(message[0]), len(messages))), message)
    return buckets, steps, messages


@given(arrivals())
def test_every_bucket_has_its_turn_once_in_order_as_soon_as_it_and_all_before_it_are_there(
    drawn: tuple[list[list[str]], list[int], list[tuple[int, list[str]]]],
) -> None:
    buckets, steps, messages = drawn
    turns = Turns(buckets)
    order = [Turn(step, bucket) for step in steps for bucket in range(len(buckets))]
    there: set[tuple[int, str]] = set()
    taken: list[Turn] = []
    for step, names in messages:
        taken += turns.came(step, names)
        there |= {(step, name) for name in names}
        due = 0
        while due < len(order) and all((order[due].step, name) in there for name in buckets[order[due].bucket]):
            due += 1
        assert taken == order[:due]
    assert taken == order
    assert turns.ended == steps[-1]
    assert turns.came(steps[0], buckets[0]) == []
