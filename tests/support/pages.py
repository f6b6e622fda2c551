"""The tables of a page, as a browser's parser sees them."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

_EMPTY = {"meta", "link", "input", "br", "col"}


@dataclass
class Cell:
    """A cell of a table: its text, and its attributes."""

    attributes: dict[str, str]
    text: str = ""

    @property
    def shade(self) -> float:
        """How dark a cell of a heat map is; 0 where nothing is said."""
        return float(self.attributes.get("style", "--s:0").removeprefix("--s:"))


@dataclass
class Table:
    """`lines` of cells, heads among them; `columns` are the classes of its columns, `rows` those of its lines."""

    attributes: dict[str, str]
    lines: list[list[Cell]] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)

    @property
    def body(self) -> list[list[Cell]]:
        """The lines that have cells which are no heads, each without its head."""
        lines = [[cell for cell in line if "scope" not in cell.attributes] for line in self.lines]
        return [line for line in lines if any("title" in cell.attributes for cell in line)]

    @property
    def texts(self) -> list[list[str]]:
        """The text of every cell."""
        return [[cell.text for cell in line] for line in self.lines]


class Page(HTMLParser):
    """Tables by their id or label, the text, captions of figures, and what is loaded; fails when tags do not close as they opened."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tables: list[Table] = []
        self.captions: list[str] = []
        self.ids: list[str] = []
        self.sources: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def table(self, name: str) -> Table:
        """The only table with this id or label."""
        (found,) = (t for t in self.tables if name in (t.attributes.get("id"), t.attributes.get("aria-label")))
        return found

    @property
    def labels(self) -> list[str]:
        """Of the heat maps, in their order."""
        return [table.attributes["aria-label"] for table in self.tables if "aria-label" in table.attributes]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.sources += [given[name] for name in ("src", "href") if name in given]
        self.ids += [given["id"]] if "id" in given else []
        if tag == "table":
            self.tables.append(Table(given))
        elif tag == "col":
            self.tables[-1].columns.append(given.get("class", ""))
        elif tag == "tr":
            self.tables[-1].lines.append([])
            self.tables[-1].rows.append(given.get("class", ""))
        elif tag in ("td", "th"):
            self.tables[-1].lines[-1].append(Cell(given))
        elif tag == "figcaption":
            self.captions.append("")
        if tag not in _EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open and "script" not in self.open:
            self.text += data
        if "figcaption" in self.open:
            self.captions[-1] += data
        if {"td", "th"} & set(self.open):
            self.tables[-1].lines[-1][-1].text += data
