"""How the page looks, in light and dark, and its script: filter and sort of a table. All of it works from a file, offline."""

from base64 import b64encode
from hashlib import sha256

CSS = """
:root{color-scheme:light dark;--ink:#1b2330;--dim:#5a6675;--paper:#fff;--card:#f5f7fa;--line:#dbe1e9;--cool:#2f6db5;--warm:#c2410c;
--soft:#fdeee5;--fold:#eef4fb;--heat:47,109,181}
@media(prefers-color-scheme:dark){:root{--ink:#e5e9ef;--dim:#9aa6b6;--paper:#12161c;--card:#1a2029;--line:#333d4a;--cool:#74aef0;
--warm:#f4905c;--soft:#33221a;--fold:#1d2836;--heat:116,174,240}}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;color:var(--ink);background:var(--paper);
margin:0 auto;max-width:1384px;padding:28px 24px 60px}
h1{font-size:15px;font-weight:600;margin:0;color:var(--dim)}
h2{font-size:19px;margin:40px 0 4px}
h3{font-size:14px;margin:14px 0 4px}
p{margin:4px 0;max-width:110ch}
.dim{color:var(--dim)}
.headline{font-size:25px;line-height:1.35;margin:6px 0 10px}
.headline b{font-weight:650}
.hot{color:var(--warm)}
code,.mono,td.mono{font-family:ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:13px}
.cards{display:flex;flex-wrap:wrap;gap:10px;margin:16px 0 6px}
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:8px 14px;min-width:118px}
.card b{display:block;font-size:18px;font-weight:600;font-variant-numeric:tabular-nums}
.card span{color:var(--dim);font-size:12.5px}
.columns{display:flex;flex-wrap:wrap;gap:8px 40px;align-items:flex-start}
table{border-collapse:collapse;width:100%;margin:8px 0}
th{font-size:12.5px;font-weight:600;color:var(--dim);white-space:nowrap}
td,th{text-align:left;padding:4px 10px;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:anywhere}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
#devices td{vertical-align:middle;white-space:nowrap}
#devices td.wide{width:22%}
tr.busiest td:first-child{font-weight:650;color:var(--warm)}
.badge{background:var(--warm);color:var(--paper);border-radius:9px;font-size:11px;font-weight:600;padding:1px 8px;margin-left:8px}
.share{display:flex;gap:8px;align-items:center;font-size:13px}
.share span{width:54px;text-align:right;font-variant-numeric:tabular-nums}
.track{background:var(--card);border:1px solid var(--line);height:16px;border-radius:4px;flex:1;min-width:60px;overflow:hidden}
.fill{background:var(--cool);height:100%}
.fill.hot{background:var(--warm)}
.scroll{overflow-x:auto}
.tall{overflow:auto;max-height:720px;border:1px solid var(--line);border-radius:8px}
.tall table{margin:0}
.tall th{position:sticky;top:0;background:var(--card);z-index:1}
#decisions th{cursor:pointer}
#decisions th[data-way]::after{content:" \\25b4"}
#decisions th[data-way="-1"]::after{content:" \\25be"}
#decisions td:nth-child(-n+3){white-space:nowrap}
#decisions td:first-child{white-space:normal;min-width:220px}
input,button{font:inherit;font-size:13.5px;color:inherit;background:var(--paper);border:1px solid var(--line);border-radius:6px;padding:4px 10px}
input{width:300px}
button{cursor:pointer;background:var(--card)}
.tools{display:flex;flex-wrap:wrap;gap:6px;align-items:center;margin:8px 0}
.settings{columns:4 260px;column-gap:32px;font-size:13px;margin:8px 0}
.settings div{display:flex;justify-content:space-between;gap:12px;border-bottom:1px solid var(--line);padding:1px 0;break-inside:avoid}
.settings b{font-weight:500;overflow-wrap:anywhere;text-align:right}
summary{cursor:pointer;margin:8px 0;color:var(--dim)}
.matrix{width:auto;font-size:12px}
.matrix td,.matrix th{padding:3px 7px;border:1px solid var(--line);text-align:right;font-variant-numeric:tabular-nums;font-size:12px;white-space:nowrap}
.matrix th:first-child{text-align:left}
.legend i{display:inline-block;width:26px;border-top:2px solid;vertical-align:middle;margin:0 6px 0 14px}
.legend i:first-child{margin-left:0}
svg{display:block;margin:8px 0}
svg text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:var(--ink)}
svg .name{font-family:ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace}
svg .note{font-size:10.5px;fill:var(--dim)}
svg .lane{fill:var(--card);stroke:var(--line)}
svg .lane.hot{stroke:var(--warm);stroke-width:2}
svg .lane-name{font-weight:600}
svg .lane-name.hot{fill:var(--warm)}
svg .box rect{fill:var(--paper);stroke:var(--dim)}
svg .box.many rect{fill:var(--fold);stroke:var(--cool)}
svg path{fill:none}
svg .sent path{stroke:var(--warm);stroke-width:1.4}
svg .kept path{stroke:var(--cool);stroke-width:1.2;opacity:.8}
svg .sent:hover path,svg .kept:hover path{stroke-width:3.5;opacity:1}
svg .head-sent{fill:var(--warm)}
svg .head-kept{fill:var(--cool)}
svg .bytes{font-size:10.5px;fill:var(--warm);paint-order:stroke;stroke:var(--card);stroke-width:3px}
@media print{.tall{max-height:none;overflow:visible}.tools{display:none}}
"""

SCRIPT = """
const table = document.getElementById('decisions'), input = document.getElementById('wanted'), count = document.getElementById('shown');
const rows = [...table.tBodies[0].rows];
function filter() {
  const words = input.value.toLowerCase().split(/\\s+/).filter(Boolean);
  let left = 0;
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every(word => text.includes(word));
    left += !row.hidden;
  }
  count.textContent = left + ' of ' + rows.length;
}
input.addEventListener('input', filter);
for (const button of document.querySelectorAll('button[data-word]'))
  button.addEventListener('click', () => { input.value = input.value === button.dataset.word ? '' : button.dataset.word; filter(); });
const order = new Intl.Collator('en', {numeric: true});
[...table.tHead.rows[0].cells].forEach((head, column) => head.addEventListener('click', () => {
  const way = head.dataset.way === '1' ? -1 : 1;
  for (const other of table.tHead.rows[0].cells) delete other.dataset.way;
  head.dataset.way = way;
  rows.sort((a, b) => way * order.compare(a.cells[column].textContent, b.cells[column].textContent));
  table.tBodies[0].append(...rows);
}));
filter();
"""


def policy() -> str:
    """The page's Content-Security-Policy: nothing is loaded, and no script runs but SCRIPT."""
    digest = b64encode(sha256(SCRIPT.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
