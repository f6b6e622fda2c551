"""What a run shows: pinned lines, and a terminal left clean."""

import errno
import math
import re
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from htrain.executor.record.progress import Progress, count, decimal, duration, line
from htrain.executor.record.totals import RunTotals

SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"

TOTALS = RunTotals(
    seconds=12.34,
    examples=150_000,
    steps=1172,
    eps=12_345.0,
    loss=0.5,
    ne=0.91234,
    window_loss=0.48766,
    window_ne=0.89876,
    staleness={0: 10, 3: 2},
    sync_rounds=4,
    malformed=0,
    bytes_sent={"group_ps": 1_234_000_000, "trainer": 2_000},
    cpu_share={"group_ps": 0.5, "trainer": 1.871},
    memory_bytes={"group_ps": 3_400_000_000, "trainer": 640_000_000},
)
LINE = "12.3 s  150,000 of 1,000,000 examples  12.3k EPS  loss 0.4877  NE 0.8988 (lifetime 0.9123)  staleness <= 3"
TABLE = """\
role      CPU  memory    sent    sent/s
group_ps  50%  3.2 GiB  1.2 GB  100.0 MB
trainer  187%  610.4 MiB  2.0 kB  162 B"""


def terminal() -> Console:
    return Console(file=StringIO(), force_terminal=True, color_system=None, width=130, height=40, legacy_windows=False)


def plain() -> Console:
    return Console(file=StringIO(), force_terminal=False, width=40)


def written(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def words(text: str) -> list[list[str]]:
    return [row.split() for row in text.splitlines()]


def test_line_shows_the_run_at_a_glance() -> None:
    assert line(TOTALS, 1_000_000) == LINE


def test_a_goal_that_lies_behind_is_left_out() -> None:
    """A run that goes on with fewer epochs than it has had has more examples than it would read now."""
    assert line(TOTALS, TOTALS.examples - 1) == LINE.replace(" of 1,000,000", "")
    assert line(TOTALS, TOTALS.examples) == LINE.replace("1,000,000", "150,000")


def test_line_leaves_out_a_total_that_is_not_known_and_counts_malformed_rows() -> None:
    text = line(replace(TOTALS, malformed=1234), 0)
    assert text.startswith("12.3 s  150,000 examples  ")
    assert text.endswith("staleness <= 3  1,234 malformed rows")


def test_where_a_malformed_row_stands_is_told_once() -> None:
    console = plain()
    with Progress(console, 0) as progress:
        for seconds, malformed in ((0.0, 0), (1.0, 2), (2.0, 3)):
            example = "a.tsv:7: has 2 columns, want 40" if malformed else ""
            progress.update(replace(TOTALS, seconds=seconds, malformed=malformed, malformed_example=example))
    told = [text for text in written(console).splitlines() if "a.tsv" in text]
    assert told == ["2 malformed rows left out, such as a.tsv:7: has 2 columns, want 40"]


def test_what_is_not_known_yet_is_a_dash() -> None:
    text = line(replace(TOTALS, window_loss=math.nan, window_ne=math.nan, ne=math.inf), 0)
    assert "loss -  NE - (lifetime -)" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999, "999"), (999.6, "1.0k"), (12_345, "12.3k"), (999_949, "999.9k"), (999_960, "1.0M"), (2e9, "2.0G"), (3e18, "3000.0P")],
)  # fmt: skip
def test_counts_have_one_decimal_and_the_unit_that_fits(value: float, text: str) -> None:
    assert count(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (59.94, "59.9 s"), (59.96, "0:01:00"), (3725, "1:02:05"), (360_000, "100:00:00")],
)
def test_durations_become_hours_minutes_and_seconds_after_a_minute(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_decimals_have_four_digits() -> None:
    assert (decimal(0.123456), decimal(-2.0), decimal(math.nan)) == ("0.1235", "-2.0000", "-")


# Without a terminal


def test_plain_output_is_a_line_every_five_seconds_of_the_run() -> None:
    console = plain()
    with Progress(console, 1_000_000) as progress:
        for tenths in range(0, 121, 5):
            progress.update(replace(TOTALS, seconds=tenths / 10))
    assert [text.split("  ")[0] for text in written(console).splitlines()] == ["0.0 s", "5.0 s", "10.0 s"]


def test_plain_lines_hold_no_control_codes_and_are_not_wrapped() -> None:
    console = plain()
    with Progress(console, 1_000_000) as progress:
        progress.update(TOTALS)
        progress.note("checkpoint runs/a/[b]/examples_000000150000")
    assert written(console) == f"{LINE}\ncheckpoint runs/a/[b]/examples_000000150000\n"


class Unread(StringIO):
    """A pipe whose reader has gone."""

    def write(self, text: str, /) -> int:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_run_goes_on_where_nobody_reads_what_it_shows(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """rich would end the process, and lead its standard output, which is a document, to /dev/null."""
    led: list[int] = []
    monkeypatch.setattr("os.dup2", lambda old, new: led.append(new))
    with Progress(Console(file=Unread(), force_terminal=is_terminal, legacy_windows=False), 1_000_000) as progress:
        progress.update(TOTALS)
        progress.note("checkpoint runs/a/examples_000000150000")
        progress.update(replace(TOTALS, seconds=60.0))
    assert led == []


# On a terminal


def show_until_ctrl_c(console: Console) -> None:
    with Progress(console, 1_000_000) as progress:
        progress.update(TOTALS)
        raise KeyboardInterrupt


def pictures(console: Console) -> list[list[list[str]]]:
    """The words of each line of each picture that was drawn."""
    erased = re.split(r"(?:\x1b\[\?25[lh]|\x1b\[2K|\x1b\[1A|\r)+", written(console))
    return [words(picture) for picture in erased if picture.strip()]


def test_terminal_shows_line_bar_roles_and_note() -> None:
    console = terminal()
    with Progress(console, 1_000_000) as progress:
        progress.update(TOTALS)
        progress.note("checkpoint runs/a/examples_000000150000")
    rows = pictures(console)[-1]
    assert rows == [LINE.split(), ["━" * 9], *words(TABLE), ["checkpoint", "runs/a/examples_000000150000"]]


def test_terminal_shows_no_bar_when_the_total_is_not_known() -> None:
    console = terminal()
    with Progress(console, 0) as progress:
        progress.update(TOTALS)
    assert "150,000 examples" in written(console)
    assert "━" not in written(console)


def test_new_totals_replace_the_old_ones() -> None:
    console = terminal()
    with Progress(console, 0) as progress:
        progress.update(TOTALS)
        before = len(written(console))
        progress.update(replace(TOTALS, examples=777))
    assert "777 examples" in written(console)[before:]
    assert "150,000 examples" not in written(console)[before:]
    assert "\x1b[1A" in written(console)[before:]


def test_ctrl_c_leaves_a_clean_terminal() -> None:
    console = terminal()
    with pytest.raises(KeyboardInterrupt):
        show_until_ctrl_c(console)
    text = written(console)
    assert text.count(HIDE_CURSOR) == 1
    after = text.rpartition(SHOW_CURSOR)[2]
    erased = after.count("\x1b[2K")
    assert erased >= 5
    assert after.replace("\x1b[2K", "").replace("\x1b[1A", "").strip("\r\n") == ""


def test_note_before_the_first_totals_is_shown_with_them() -> None:
    console = terminal()
    with Progress(console, 0) as progress:
        progress.note("resumed")
        progress.update(TOTALS)
    assert pictures(console)[-1][-1] == ["resumed"]


def test_role_that_ran_no_time_has_no_rate() -> None:
    console = terminal()
    with Progress(console, 0) as progress:
        progress.update(replace(TOTALS, seconds=0.0))
    assert ["trainer", "187%", "610.4", "MiB", "2.0", "kB", "0", "B"] in words(written(console))


def test_standard_output_stays_the_callers(capsys: pytest.CaptureFixture[str]) -> None:
    console = terminal()
    with Progress(console, 0) as progress:
        progress.update(TOTALS)
        print('{"a": 1}')
    assert capsys.readouterr().out == '{"a": 1}\n'
    assert '{"a": 1}' not in written(console)


class Gone(StringIO):
    """A terminal that is gone, a log on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_cannot_be_shown_is_left_out(is_terminal: bool) -> None:
    console = Console(file=Gone(), force_terminal=is_terminal, width=130, height=40)
    with Progress(console, 1_000_000) as progress:
        progress.update(TOTALS)
        progress.note("checkpoint at 150,000 examples")
        progress.update(replace(TOTALS, seconds=60.0))
