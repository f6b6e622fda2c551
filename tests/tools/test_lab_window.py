"""The part of a run that is measured, out of what a run writes while it goes."""

import json
from pathlib import Path
from typing import Any

import pytest
from lab_window import DEVICES, SETTLING_SECONDS, EnoughError, Window
from netlab import Traffic


class Links:
    """Stands for a lab: every look finds 1,000 bytes more on the first network, and 10 on the second."""

    def __init__(self) -> None:
        self.looks = 0
        self.limited_after: list[int] = []

    def traffic(self, device: str) -> dict[str, Traffic]:
        self.looks += device == DEVICES[0]
        num_bytes = self.looks * (1000 if device == DEVICES[0] else 10)
        return {"h0": Traffic("h0", num_bytes, 2 * num_bytes, self.looks)}

    def limit(self) -> None:
        self.limited_after.append(self.looks)


def window(folder: Path, **changes: Any) -> tuple[Window, Links]:
    links = Links()
    settings = {"warm_examples": 300, "most_seconds": 10.0, "least_examples": 200, **changes}
    return Window(links, folder / "metrics.jsonl", **settings), links  # type: ignore[arg-type]


def say(folder: Path, seconds: float, examples: int, cpu: float = 0.0) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"role": "trainer:0:0", "cpu_seconds": cpu, "examples": examples}) + "\n")
        file.write(json.dumps({"role": "run", "seconds": seconds, "examples": examples}) + "\n")


def test_links_are_limited_when_caches_are_warm_and_what_follows_is_measured(tmp_path: Path) -> None:
    seen, links = window(tmp_path)
    seen()  # the run has written nothing yet
    for seconds, examples in ((1.0, 0), (2.0, 100), (3.0, 200), (4.0, 320)):
        say(tmp_path, seconds, examples)
        seen()
    assert len(links.limited_after) == 1
    say(tmp_path, 4.0 + SETTLING_SECONDS, 330)  # not settled
    seen()
    assert not seen.limited
    say(tmp_path, 11.0, 340, cpu=5.0)
    say(tmp_path, 16.0, 440, cpu=6.0)
    seen()
    say(tmp_path, 22.0, 560, cpu=9.0)
    with pytest.raises(EnoughError):
        seen()
    assert (seen.seconds_passed, seen.examples) == (11.0, 220)
    assert seen.grown("cpu_seconds") == 4.0
    assert seen.free_seconds == pytest.approx(1.0 / 120)  # from 200 examples to 320
    carried = seen.carried("h0"), seen.carried("h0", DEVICES[1])
    assert [(each.received, each.sent) for each in carried] == [(2000, 4000), (20, 40)]
    assert len(links.limited_after) == 1


def test_it_goes_on_until_there_are_examples_enough(tmp_path: Path) -> None:
    seen, _ = window(tmp_path, least_examples=10_000)
    for seconds, examples in ((1.0, 400), (20.0, 500), (60.0, 900), (300.0, 10_400)):
        say(tmp_path, seconds, examples)
        seen()
    say(tmp_path, 301.0, 10_500)
    with pytest.raises(EnoughError):
        seen()


def test_half_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    seen, _ = window(tmp_path)
    say(tmp_path, 1.0, 100)
    whole = (tmp_path / "metrics.jsonl").read_text()
    (tmp_path / "metrics.jsonl").write_text(whole[:-9])
    seen()
    assert not seen.free
    (tmp_path / "metrics.jsonl").write_text(whole)
    seen()
    assert [moment.examples for moment in seen.free] == [100]
