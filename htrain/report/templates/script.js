const table = document.getElementById('decisions'), input = document.getElementById('wanted'), count = document.getElementById('shown');
const rows = [...table.tBodies[0].rows];
function filter() {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
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
