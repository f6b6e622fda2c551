"""Pieces of HTML. Whatever comes from a plan goes through `shown` here: a module's name is untrusted input."""

from collections.abc import Iterable, Sequence
from html import escape

from htrain.report.names import printable


def shown(text: object) -> str:
    """`text` as HTML text or attribute value: markup in it means nothing, and all of it is seen."""
    return escape(printable(text))


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
