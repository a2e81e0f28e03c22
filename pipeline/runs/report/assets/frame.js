// What every page has around its parts: its head, what stands at its top, tables of the terminal, its end.

/** The title, the state in a word where there is one, and the choice of the theme. */
function head(state) {
  document.title = data.title;
  const button = make("button", { onclick: () => { chosenTheme = theme.dark ? "light" : "dark"; repaint(); }, title: "light or dark" }, "◐ theme");
  const badge = state ? [make("span", { class: `state ${state}` }, state)] : [];
  document.getElementById("top").append(make("div", { class: "head" }, make("h1", {}, data.title), ...badge, button));
}

/** What a reader must know first, and labels with values. */
function atTheTop(unfinished, facts) {
  const top = document.getElementById("top");
  top.append(...warnings(unfinished));
  top.append(make("dl", { class: "facts" }, facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))));
}

const warnings = (lines) => lines.length ? [make("div", { class: "warning", role: "status" }, lines.map((line) => make("p", {}, line)))] : [];

/** A heading that may go on in another line after each part of a name. */
const breakable = (name) => name.split(/(?<=[_.])/).flatMap((one, at) => at ? [make("wbr"), one] : [one]);

/** A table of the terminal, with all its columns. */
function fullTable(table, className = "") {
  const compared = table.headings.indexOf("vs ref");
  const cells = (row, at) => row.map((cell, column) => {
    const marked = column === compared && table.marks[at];
    const said = marked ? `${cell} ${marked === "better" ? "▲" : "▼"}` : cell;
    return make("td", { class: [table.right[column] ? "right" : "", marked || "", column === 0 && cell.length > 24 ? "long" : ""].join(" ").trim() || null }, said);
  });
  const head = table.headings.map((one, at) => make("th", { scope: "col", class: table.right[at] ? "right" : null }, breakable(one)));
  const body = table.rows.map((row, at) => make("tr", { class: table.ends.includes(at) ? "end" : null }, cells(row, at)));
  const marks = Object.keys(table.marks).length ? "▲ better, ▼ worse than the reference: the test tells them apart.\n" : "";
  return [
    table.title ? make("h3", {}, table.title) : null,
    make("div", { class: `scroll whole ${className}`, tabindex: "0" }, make("table", {}, make("thead", {}, make("tr", {}, head)), make("tbody", {}, body))),
    marks || table.caption ? make("p", { class: "said" }, marks + table.caption) : null,
  ];
}

/** A command with a button that copies it. */
function copied(command) {
  const button = make("button", { onclick: async () => {
    try {
      await navigator.clipboard.writeText(command);
      button.textContent = "Copied";
    } catch {
      window.getSelection().selectAllChildren(text);  // not allowed here: it is chosen, for the keys
    }
  } }, "Copy");
  const text = make("pre", { class: "wrap" }, command);
  return make("div", {}, text, button);
}

/** Links to the parts, and the last line: when all of them are there. */
function finish() {
  document.getElementById("parts").append(make("div", {}, parts.map(([id, title]) => make("a", { href: `#${id}` }, title))));
  document.getElementById("bottom").append(make("p", {}, `Written ${data.made} by pipeline ${data.version}. This file needs no network, and asks nothing of any. Charts: plotly.js, MIT licence.`));
}
