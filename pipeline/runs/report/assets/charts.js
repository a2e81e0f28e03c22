// Charts: drawn when they come into view, redrawn when a choice, the theme or the width changes.

const { light: LIGHT, dark: DARK, dashes: DASHES, marks: MARKS, patterns: PATTERNS } = data.looks;
const NARROW = 620;

const theme = { dark: false };
const palette = () => theme.dark ? DARK : LIGHT;
const ground = () => getComputedStyle(document.documentElement);
const variable = (name) => ground().getPropertyValue(name).trim();

/** Foreign text inside a chart, where plotly would take some of it for markup. */
function label(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll("\n", " ").replaceAll("\t", " ");
}

/** A text that is not too long for a legend or an axis; its middle is left out. */
const brief = (text, most = 34) => text.length <= most ? text : `${text.slice(0, most - 13)}…${text.slice(-12)}`;

/** A colour with some of the ground shining through. */
function faint(colour, part) {
  const at = (from) => parseInt(colour.slice(from, from + 2), 16);
  return `rgba(${at(1)},${at(3)},${at(5)},${part})`;
}

/** How line or bar number so and so looks: colours first, then dashes and symbols, or patterns. */
function look(number) {
  const colours = palette(), turn = Math.floor(number / colours.length);
  return {
    colour: colours[number % colours.length],
    dash: DASHES[turn % DASHES.length],
    symbol: MARKS[(number + turn) % MARKS.length],
    pattern: { shape: PATTERNS[turn % PATTERNS.length], fillmode: "overlay", fgopacity: 0.6, size: 6 },
  };
}

function layoutOf(box, own, traces) {
  const narrow = box.clientWidth < NARROW, text = variable("--text"), line = variable("--line");
  const entries = traces.filter((one) => one.showlegend !== false && one.name).length;
  const axis = { gridcolor: line, linecolor: line, zerolinecolor: line, automargin: true, fixedrange: narrow, title: { standoff: 8 } };
  const above = narrow || entries <= 6 || own.barmode === "stack" || own.barmode === "overlay";
  return {
    height: own.height ?? (narrow ? 310 + 13 * Math.min(entries, 16) : above ? 400 : Math.max(400, 50 + 17 * Math.min(entries, 30))),
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: narrow ? 11 : 12.5, color: text },
    hoverlabel: { bgcolor: variable("--card"), bordercolor: line, font: { color: text }, align: "left", namelength: -1 },
    hovermode: "closest", dragmode: narrow ? false : "zoom",
    margin: { l: 10, r: 12, t: 14, b: 10 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: variable("--dim"), activecolor: variable("--accent"), orientation: "v" },
    legend: above
      ? { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", tracegroupgap: 0, traceorder: "normal", maxheight: 0.5, font: { size: narrow ? 10.5 : 12 } }
      : { orientation: "v", x: 1.01, y: 1, tracegroupgap: 0, font: { size: 11.5 } },
    ...own,
    showlegend: own.showlegend ?? entries > 1,
    xaxis: { ...axis, ...own.xaxis, title: { ...axis.title, text: (narrow && own.brief) || (own.xaxis?.title ?? "") } },
    yaxis: { ...axis, ...own.yaxis, title: { ...axis.title, text: own.yaxis?.title ?? "" } },
  };
}

const SETTINGS = {
  displaylogo: false, responsive: false, showSendToCloud: false, plotlyServerURL: "", showEditInChartStudio: false, showTips: false,
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
  // As SVG no image is loaded on the way, which the policy of the page would not allow.
  toImageButtonOptions: { format: "svg", filename: "chart" },
};

/** Without a pointer that hovers the buttons would always lie on the chart. */
const pointing = window.matchMedia("(hover: hover)");
const charts = [];

class Chart {
  /**
   * @param {Element} parent Where to.
   * @param {string} about What it shows, for those who do not see it.
   * @param {Array} controls What can be chosen: {name, label, options: [[value, words]], value, always}, options a function of the state too; shown where there are several, or always.
   * @param {Function} draw Of the state makes {traces, layout, headings, rows, note}.
   */
  constructor(parent, about, controls, draw) {
    this.state = {};
    this.controls = controls;
    this.draw = draw;
    this.bar = make("div", { class: "controls" });
    this.box = make("div", { class: "chart", role: "img", "aria-label": `${about}. The numbers are in the table below.` });
    this.note = make("p", { class: "said" });
    this.numbers = make("div");
    parent.append(make("div", { class: "plot" }, this.bar, this.box, this.note), this.numbers);
    this.seen = false;
    this.choose({});
    charts.push(this);
    watch.observe(this.box);
  }

  choose(change) {
    Object.assign(this.state, change);
    const bar = [];
    for (const { name, label: said, options, value, always } of this.controls) {
      const possible = typeof options === "function" ? options(this.state) : options;
      if (!possible.some(([one]) => one === this.state[name])) this.state[name] = possible.some(([one]) => one === value) ? value : possible[0]?.[0];
      if (possible.length > 1 || (always && possible.length)) bar.push([said, possible, name]);
    }
    const focused = [...this.bar.querySelectorAll("select")].indexOf(document.activeElement);
    this.bar.replaceChildren(...bar.map(([said, possible, name]) => choice(said, possible, this.state[name], (now) => this.choose({ [name]: now }))));
    if (focused >= 0) this.bar.querySelectorAll("select")[focused]?.focus();
    const found = this.draw(this.state);
    this.note.textContent = found.note ?? "";
    this.numbers.replaceChildren(found.rows.length ? folded(`The numbers (${found.rows.length.toLocaleString("en")})`, () => simpleTable(found.headings, found.rows)) : "");
    this.box.hidden = !found.traces.length;
    // Its room is kept, so that nothing moves when it is drawn.
    if (!this.seen) this.box.style.minHeight = `${layoutOf(this.box, found.layout, found.traces).height}px`;
    if (!found.traces.length && !found.note) this.note.textContent = "There is nothing to draw.";
    if (this.seen) this.redraw(found);
  }

  redraw(found = this.draw(this.state)) {
    this.seen = true;
    if (!found.traces.length) return;
    const width = this.width ?? this.box.clientWidth;
    this.box.style.minHeight = "";
    Plotly.react(this.box, found.traces, { ...layoutOf(this.box, found.layout, found.traces), width }, { ...SETTINGS, displayModeBar: pointing.matches && width >= NARROW ? "hover" : false });
  }

  fit(width) {
    this.width = width;
    this.redraw();
  }
}

const watch = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const chart = charts.find((one) => one.box === target);
    if (isIntersecting && !chart.seen) chart.redraw();
  }
}, { rootMargin: "300px" });

const PAPER = 680;
let laidOut = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth === laidOut) return;
  laidOut = window.innerWidth;
  charts.filter((one) => one.seen && one.width === undefined).forEach((one) => one.redraw());
});
window.addEventListener("beforeprint", () => {
  paint(false);
  charts.forEach((one) => one.fit(PAPER));
});
window.addEventListener("afterprint", () => {
  paint();
  charts.forEach((one) => one.fit(undefined));
});

const wanted = window.matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = null;

/** Take the theme that was chosen, or else the one of the system. */
function paint(dark = chosenTheme === null ? wanted.matches : chosenTheme === "dark") {
  theme.dark = dark;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

function repaint() {
  paint();
  charts.filter((one) => one.seen).forEach((one) => one.redraw());
}

wanted.addEventListener("change", repaint);
paint();
