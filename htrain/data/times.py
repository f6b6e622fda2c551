"""Moments as ids: the hour, the weekday, the day of the month or the month of a column of times, each with a table of its own.

A column is of Arrow's timestamps or dates, of whole numbers since the epoch, or of text as ISO 8601 has it. A moment without a zone is one of UTC. Ids begin
at 1; 0 is a moment that is missing. Arrow, which knows the zones, knows no summer times after 2037.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from htrain.data.values import is_text, missing_words
from htrain.errors import DataError

Part = Literal["hour", "weekday", "day", "month"]
Unit = Literal["s", "ms", "us", "ns"]
ROWS: Mapping[str, int] = {"hour": 25, "weekday": 8, "day": 32, "month": 13}
_PARTS: Mapping[str, Callable[[pa.Array], pa.Array]] = {
    "hour": lambda times: pc.add(pc.hour(times), 1),
    "weekday": lambda times: pc.add(pc.day_of_week(times), 1),  # Monday is 1
    "day": pc.day,
    "month": pc.month,
}
_ZONED = r":[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"
_NUMBER = r"^[+-]?[0-9]{1,19}$"
_NANOSECONDS = r"(:[0-9]{2}\.[0-9]{6})[0-9]{1,3}"  # what Arrow takes for no time in microseconds
_TO_MICROSECONDS = len("2026-11-18T09:30:15.123456")
_MOST_SECONDS = 253_402_300_800  # from the epoch to the end of the year 9999
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_UTC = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Moments:
    """A column of times, and what of them a model gets: `parts`, in the zone `zone`; numbers are `unit`s since the epoch."""

    column: str
    parts: tuple[Part, ...]
    unit: Unit
    zone: str


def require_zone(zone: str, where: str) -> None:
    """Raises DataError for what is no name of a time zone."""
    try:
        ZoneInfo(zone)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{where}: '{zone}' is no time zone: want a name such as UTC or Europe/Oslo") from error


def is_time(kind: pa.DataType) -> bool:
    """Whether a column of this type can be one of times."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_moment = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    return bool(is_moment or pa.types.is_integer(kind) or is_text(kind) or pa.types.is_null(kind))


def parts_of(array: pa.Array, moments: Moments) -> tuple[np.ndarray, np.ndarray]:
    """int64[n,parts], and bool[n]: which of the column's values are no moments."""
    times, wrong = _moments(array, moments.unit)
    local = times.cast(pa.timestamp("us", moments.zone))
    columns = [pc.fill_null(_PARTS[part](local), 0).to_numpy(zero_copy_only=False) for part in moments.parts]
    return np.stack(columns, 1).astype(np.int64), wrong


def instants_of(array: pa.Array, unit: Unit) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Microseconds since the epoch, int64[n], and which of a column's values are missing, and which are no moments."""
    times, wrong = _moments(array, unit)
    missing = times.is_null().to_numpy(zero_copy_only=False) & ~wrong
    return pc.fill_null(times.cast(pa.int64()), 0).to_numpy(zero_copy_only=False), missing, wrong


def instant_of(text: str) -> int:
    """Microseconds since the epoch of a day or a time as ISO 8601 has it, one of UTC without a zone. Raises ValueError."""
    found = datetime.fromisoformat(text)
    since = (found if found.tzinfo else found.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    instant = since // timedelta(microseconds=1)
    if abs(instant) >= _MOST_SECONDS * 1_000_000:
        raise ValueError(f"{text} is in no year of four digits")
    return instant


def shown(instant: int) -> str:
    """Microseconds since the epoch as ISO 8601 has it: the day alone where it begins then; the number where it is in no year of four digits."""
    try:
        found = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=instant)
    except OverflowError:
        return f"{instant} us since the epoch"
    return found.isoformat().removesuffix("+00:00").removesuffix("T00:00:00")


def _moments(array: pa.Array, unit: str) -> tuple[pa.Array, np.ndarray]:
    """Moments in UTC, to the microsecond, null where one is missing, and which values are no moments."""
    kind, none = array.type, np.zeros(len(array), bool)
    if pa.types.is_timestamp(kind):
        return (array.cast(pa.timestamp("us"), safe=False) if kind.tz is None else array).cast(_UTC, safe=False), none
    if pa.types.is_date(kind):
        return array.cast(pa.timestamp("us")).cast(_UTC), none
    return _of_text(array, unit) if pa.types.is_string(kind) else _of_numbers(array, unit)


def _of_numbers(array: pa.Array, unit: str) -> tuple[pa.Array, np.ndarray]:
    """A number outside the years that have four digits is none."""
    whole = array if pa.types.is_integer(array.type) else array.cast(pa.int64())  # of a column in which all are missing
    numbers = pc.fill_null(whole, 0).to_numpy(zero_copy_only=False)
    most = min(_MOST_SECONDS * _PER_SECOND[unit], 2**63 - 1)
    wrong = (numbers >= most) | (numbers <= -most)
    missing = wrong | array.is_null().to_numpy(zero_copy_only=False)
    times = pa.array(numbers.astype(np.int64), pa.int64(), mask=missing).cast(pa.timestamp(unit))
    return times.cast(pa.timestamp("us"), safe=False).cast(_UTC), wrong


def _of_text(array: pa.Array, unit: str) -> tuple[pa.Array, np.ndarray]:
    """Each value as a number, a moment with a zone, or one without, whichever it is."""
    text = pc.utf8_trim_whitespace(array)
    text = pc.if_else(pc.is_in(text, value_set=missing_words()), None, text)
    if (pc.max(pc.binary_length(text)).as_py() or 0) > _TO_MICROSECONDS:
        text = pc.replace_substring_regex(text, _NANOSECONDS, r"\1")
    is_number, is_zoned = pc.match_substring_regex(text, _NUMBER), pc.match_substring_regex(text, _ZONED)
    found, wrong = np.zeros(len(text), np.int64), np.zeros(len(text), bool)
    for mask, read in (
        (is_number, lambda part: _all_of(_of_numbers(part.cast(pa.int64()), unit))),
        (is_zoned, lambda part: part.cast(_UTC)),
        (pc.invert(pc.or_(is_zoned, is_number)), lambda part: part.cast(pa.timestamp("us")).cast(_UTC)),
    ):
        places = np.flatnonzero(pc.fill_null(mask, False).to_numpy(zero_copy_only=False))
        if places.size:
            _read(text.take(pa.array(places)), places, read, found=found, wrong=wrong)
    missing = wrong | text.is_null().to_numpy(zero_copy_only=False)
    return pa.array(found, pa.int64(), mask=missing).cast(_UTC), wrong


def _all_of(numbers: tuple[pa.Array, np.ndarray]) -> pa.Array:
    """Moments of numbers. Raises ArrowInvalid where one is none."""
    times, wrong = numbers
    if wrong.any():
        raise pa.ArrowInvalid("out of range")
    return times


def _read(
    text: pa.Array, places: np.ndarray, read: Callable[[pa.Array], pa.Array], *, found: np.ndarray, wrong: np.ndarray
) -> None:
    """All at once where all are moments, else one half after the other."""
    try:
        found[places] = read(text).cast(pa.int64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        if len(text) == 1:
            wrong[places[0]] = True
            return
        half = len(text) // 2
        _read(text[:half], places[:half], read, found=found, wrong=wrong)
        _read(text[half:], places[half:], read, found=found, wrong=wrong)
