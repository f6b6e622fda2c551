"""Pieces of HTML. Whatever comes from a plan goes through `shown` here: a module's name is untrusted input."""

from collections.abc import Iterable, Sequence
from html import escape

from htrain.report.names import printable


def shown(text: object) -> str:
    """`text` as HTML text or attribute value: markup in it means nothing, and all of it is seen."""
    return escape(printable(text))


def size_text(num_bytes: float) -> str:
    """Bytes in a few digits: 208 B, 2.1 kB, 14.3 MB."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= 0.9995 * factor:
            return f"{num_bytes / factor:,.{1 if num_bytes < 99.95 * factor else 0}f} {unit}"
    if num_bytes == int(num_bytes) or num_bytes >= 9.95:
        return f"{num_bytes:.0f} B"
    return f"{num_bytes:.{'1f' if num_bytes >= 0.95 else '1g'}} B"


def memory_text(num_bytes: int) -> str:
    """Bytes of memory: 158.7 MiB."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:,.1f} {unit}"
    return f"{num_bytes} B"


def bar(share: float, *, kind: str) -> str:
    """A bar of `share` 0 to 1 of its track, with the share in figures; `kind` is its class."""
    width = min(100.0, max(0.0, 100 * share))
    return (
        f'<div class="share"><div class="track"><div class="fill {kind}" style="width:{width:.1f}%"></div></div>'
        f"<span>{share:.1%}</span></div>"
    )


def table(name: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = ()) -> str:
    """A table with id `name`; cells are HTML already; columns that `numbers` names stand to the right."""
    kind = [' class="n"' if head in numbers else "" for head in heads]
    head = "".join(f"<th{k}>{shown(h)}</th>" for h, k in zip(heads, kind, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{k}>{cell}</td>" for cell, k in zip(row, kind, strict=True)) + "</tr>\n" for row in rows
    )
    return f'<table id="{name}"><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>\n'
