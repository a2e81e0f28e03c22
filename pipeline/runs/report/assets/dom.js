// What every part of the page is made with. Foreign text comes in by `textContent` alone.

const data = JSON.parse(document.getElementById("data").textContent);

/** A new element: its tag, its attributes, and what is inside, elements or texts. */
function make(tag, attributes = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null) made.setAttribute(name, value);
  }
  for (const one of inside.flat()) if (one !== null && one !== "") made.append(one);
  return made;
}

/** A number with as many digits as tell something, as in 0.423, 1,200 or 3.1e+12. */
function shown(number) {
  if (number === null || number === undefined) return "";
  const size = Math.abs(number);
  if (Number.isInteger(number) && size < 1e7) return number.toLocaleString("en");
  if (size >= 1e7 || (size < 1e-3 && size > 0)) return number.toExponential(2);
  return number.toFixed(size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : 3);
}

/** A number with a prefix, as in 1.2 T. */
function withPrefix(number) {
  if (number === null || number === undefined) return "";
  const prefixes = ["", "k", "M", "G", "T", "P", "E", "Z", "Y"];
  let at = 0;
  while (Math.abs(number) >= 999.5 && at + 1 < prefixes.length) { number /= 1000; at += 1; }
  return `${Number(number.toPrecision(3))}${at ? ` ${prefixes[at]}` : ""}`;
}

/** Seconds as people say them. */
function duration(seconds) {
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${Math.floor(seconds / 60)} min ${String(Math.floor(seconds % 60)).padStart(2, "0")} s`;
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}

const interval = (low, high) => low === null || high === null ? "" : `[${shown(low)}, ${shown(high)}]`;
const unique = (values) => [...new Set(values)];
const sum = (values) => values.reduce((all, one) => all + one, 0);

/** Values by what a function says of each, in order. */
function grouped(values, by) {
  const found = new Map();
  for (const one of values) {
    const name = by(one);
    if (!found.has(name)) found.set(name, []);
    found.get(name).push(one);
  }
  return found;
}

const MOST_ROWS = 2000;

/** A table of texts and numbers: numbers stand at the right. */
function simpleTable(headings, rows) {
  const right = headings.map((_, at) => rows.some((row) => typeof row[at] === "number") );
  const cell = (tag) => (value, at) => make(tag, right[at] ? { class: "right" } : {}, typeof value === "number" ? shown(value) : value ?? "");
  const body = rows.slice(0, MOST_ROWS).map((row) => make("tr", {}, row.map(cell("td"))));
  const table = make("table", {}, make("thead", {}, make("tr", {}, headings.map(cell("th")))), make("tbody", {}, body));
  const more = rows.length - MOST_ROWS;
  return make("div", { class: "scroll", tabindex: "0" }, table, more > 0 ? make("p", { class: "dim" }, `and ${more.toLocaleString("en")} more rows`) : null);
}

/** A part of the page that is made when it is opened. */
function folded(label, content) {
  const box = make("details", {}, make("summary", {}, label));
  box.addEventListener("toggle", () => {
    if (box.open && box.childElementCount === 1) box.append(...[content()].flat());
  });
  return box;
}

/** A choice with a label; `change` gets the value that is chosen. */
function choice(label, options, value, change) {
  const select = make("select", { onchange: () => change(select.value) }, options.map(([name, said]) => make("option", { value: name }, said)));
  select.value = value;
  return make("label", {}, label, select);
}

/** A box to tick. */
function tick(label, checked, change) {
  const box = make("input", { type: "checkbox", onchange: () => change(box.checked) });
  box.checked = checked;
  return make("label", { class: "tick" }, box, label);
}

/** A section of the page, with a place in its table of contents. */
const parts = [];
function part(id, brief, title, about = "") {
  const section = make("section", { id, "aria-labelledby": `${id}-title` }, make("h2", { id: `${id}-title` }, title), about ? make("p", { class: "dim small" }, about) : null);
  parts.push([id, brief]);
  document.getElementById("main").append(section);
  return section;
}
