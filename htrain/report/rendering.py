"""Templates filled with values. What comes from a plan or a run is untrusted: wherever it is put, it is made printable and escaped here."""

from base64 import b64encode
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from htrain.errors import Error
from htrain.executor.record.progress import duration
from htrain.files import has_seal, place_to_write, sealed, write_file
from htrain.report.names import called, printable
from htrain.sizes import bandwidth_text, memory_text, traffic_text


def rendered(template: str, **values: object) -> str:
    """The text of a template in htrain/report/templates/, with `values` by their names."""
    script = _asset("script.js")
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    return (
        _environment()
        .get_template(template)
        .render(**values, policy=policy, style=Markup(_asset("style.css")), script=Markup(script))
    )


def require_page(path: Path, error: type[Error]) -> None:
    """Raises `error` for a place to which `write_page` would write no page, before the work is done."""
    try:
        place_to_write(path, has_seal)
    except OSError as found:
        raise error(f"{path}: cannot be written: {found.strerror or found}") from found


def write_page(path: Path, page: Callable[[], str], error: type[Error]) -> None:
    """Write what `page` makes to `path`: whole, or not at all; an older page there is replaced, and nothing else.

    Raises `error` for a place that cannot be written, before the page is made.
    """
    try:
        place_to_write(path, has_seal)
        write_file(path, sealed(page(), "<!-- {} -->"), has_seal)
    except OSError as found:
        raise error(f"{path}: cannot be written: {found.strerror or found}") from found


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("htrain.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_seen,
    )
    environment.filters.update(
        called=called,
        count=_count,
        duration=duration,
        memory=memory_text,
        number=_number,
        percent=_percent,
        rate=bandwidth_text,
        traffic=traffic_text,
    )
    return environment


def _seen(value: object) -> object:
    """A value as a template puts it out: in one line, and without characters that do not show; what a macro made of it
    is HTML already.
    """
    return value if isinstance(value, Markup) else printable(value)


@cache
def _asset(name: str) -> str:
    """A file of ours that the page holds as it is."""
    return files("htrain.report").joinpath("templates", name).read_text(encoding="utf-8")


def _number(value: float, decimals: int = 0) -> str:
    return f"{value:,.{decimals}f}"


def _percent(share: float, decimals: int = 1) -> str:
    return f"{share:.{decimals}%}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")
