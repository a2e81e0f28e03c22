// What came of trials: all of them in a table, their metric one after the other, and while they ran.

const metric = data.metric || "value";
const axisTitle = label(brief(`${brief(metric, 40)}, ${data.goal === "minimize" ? "less" : "more"} is better`, 70));
const every = data.numbers.map((_, at) => at);
const ended = every.filter((at) => data.states[at] === "done" && data.values[at] !== null);
/** Those that are done, the best first. */
const ranked = data.ranking.filter((at) => ended.includes(at));
const minimized = data.goal === "minimize";
const named = (at) => `trial ${data.numbers[at]}`;
const LOOKS = { done: [0, "circle"], stopped: [1, "diamond"], running: [2, "triangle-up"], failed: [3, "x"], lost: [3, "cross"], cancelled: [3, "square-open"], waiting: [5, "circle-open"] };
const VALUELESS = 0.02;

/** A text in lines for the words that a point has. */
function inLines(text, most = 70) {
  const lines = [""];
  for (const word of text.split(" ")) {
    if (lines.at(-1).length + word.length > most && lines.at(-1)) lines.push("");
    lines[lines.length - 1] += `${lines.at(-1) ? " " : ""}${brief(word, most)}`;
  }
  return (lines.length > 8 ? [...lines.slice(0, 8), "…"] : lines).map(label).join("<br>");
}

const wordsOf = (at) => `${label(`${named(at)}, ${data.states[at]}${data.values[at] === null ? "" : `: ${metric} ${shown(data.values[at])}`}`)}<br>${inLines(data.words[at])}`;
const spread = (values) => { const low = Math.min(...values); return low > 0 ? Math.max(...values) / low : 0; };
const scales = [["linear", "linear"], ["log", "logarithmic"]];
/** Without powers of ten in small raised letters, which the policy of the page would not allow. */
const onScale = (type) => type === "log" ? { type, exponentformat: "e" } : { type };
const positive = (values) => values.length > 0 && values.every((value) => value > 0);

// -- the table ------------------------------------------------------------------------------------------------

function trialTable() {
  const section = part("trials", "Trials", "Trials");
  if (!every.length) return section.append(make("p", { class: "said" }, "No trial was chosen yet."));
  const state = { order: ranked.length ? "best" : "number", states: "" };
  const bar = make("div", { class: "controls" }), box = make("div");
  const found = unique(data.states);
  const draw = () => {
    const order = (state.order === "best" ? data.ranking : every).filter((at) => !state.states || data.states[at] === state.states);
    const cell = (text, column, at) => make("td", { class: [data.table.right[column] ? "right" : "", column === 1 ? `trial-${data.states[at]}` : ""].join(" ").trim() || null, title: text.length > 40 ? text : null }, text);
    const head = data.table.headings.map((one, column) => make("th", { scope: "col", class: data.table.right[column] ? "right" : null }, one));
    const body = order.slice(0, MOST_ROWS).map((at) => make("tr", { class: at === ranked[0] ? "best" : null }, data.table.rows[at].map((text, column) => cell(text, column, at))));
    box.replaceChildren(
      make("div", { class: "scroll trials", tabindex: "0" }, make("table", {}, make("thead", {}, make("tr", {}, head)), make("tbody", {}, body))),
      make("p", { class: "dim small", role: "status" }, order.length > MOST_ROWS ? `The first ${MOST_ROWS.toLocaleString("en")} of ${order.length.toLocaleString("en")} trials.` : `${order.length.toLocaleString("en")} of ${every.length.toLocaleString("en")} trials`),
    );
  };
  const change = (name) => (value) => { state[name] = value; draw(); };
  if (ranked.length > 1) bar.append(choice("Order", [["best", "best first"], ["number", "as they were chosen"]], state.order, change("order")));
  if (found.length > 1) bar.append(choice("State", [["", "all"], ...found.map((one) => [one, one])], "", change("states")));
  section.append(bar, box);
  draw();
  if (data.tested.length) section.append(make("h3", {}, "The best trial on held-out data"), simpleTable(["metric", "value"], data.tested));
}

// -- one after the other --------------------------------------------------------------------------------------

function history() {
  const there = every.filter((at) => data.values[at] !== null);
  if (!there.length) return;
  const section = part("history", "History", "Trial by trial", "The line is the best of the trials that were done so far; one that was stopped early is none of them. Crosses at the bottom have no value.");
  const values = there.map((at) => data.values[at]);
  new Chart(section, `${metric} of each trial, and the best so far`, [
    { name: "over", label: "Over", options: [["number", "trials"], ["time", "time"]], value: "number" },
    { name: "scale", label: "Scale", options: positive(values) ? scales : scales.slice(0, 1), value: spread(values) > 50 ? "log" : "linear" },
  ], drawHistory);
}

function drawHistory({ over, scale }) {
  const unit = over === "time" ? unitOf(data.ended) : null;
  const x = (at) => over === "number" ? data.numbers[at] : data.ended[at] === null ? null : data.ended[at] / unit.seconds;
  const traces = [];
  for (const [state, own] of grouped(every.filter((at) => x(at) !== null), (at) => data.states[at])) {
    const with_ = own.filter((at) => data.values[at] !== null), without = own.filter((at) => data.values[at] === null && state !== "waiting");
    const [number, symbol] = LOOKS[state] ?? LOOKS.waiting, colour = palette()[number];
    const dots = (some, more) => ({ type: "scatter", mode: "markers", name: label(state), x: some.map(x), y: some.map((at) => data.values[at]), text: some.map(wordsOf), hovertemplate: "%{text}<extra></extra>", marker: { color: faint(colour, 0.75), symbol, size: 8 }, ...more });
    if (with_.length) traces.push(dots(with_, {}));
    if (without.length) traces.push(dots(without, { y: without.map(() => VALUELESS), yaxis: "y2", showlegend: !with_.length, cliponaxis: false }));
  }
  const line = bestSoFar([...ended].sort((one, other) => x(one) - x(other)));
  if (line.length) traces.push({ type: "scatter", mode: "lines", name: "best so far", x: line.map(([at]) => x(at)), y: line.map(([, value]) => value), line: { shape: "hv", width: 2.4, color: variable("--text") }, hoverinfo: "skip" });
  if (data.target !== null) traces.push({ type: "scatter", mode: "lines", name: `target ${shown(data.target)}`, x: [Math.min(...every.map(x)), Math.max(...every.map(x))], y: [data.target, data.target], line: { dash: "dot", width: 1.4, color: variable("--dim") }, hoverinfo: "skip" });
  const best = new Map(line);
  return {
    traces, headings: ["trial", "state", metric, "best so far", "seconds after the begin", "parameters"],
    rows: every.map((at) => [String(data.numbers[at]), data.states[at], data.values[at], best.get(at) ?? null, data.ended[at], data.words[at]]),
    layout: { xaxis: over === "number" ? { title: "trial", dtick: every.length > 10 ? undefined : 1 } : { title: `${unit.name} since the begin` }, yaxis: { title: axisTitle, ...onScale(scale) }, yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true } },
  };
}

/** Trials in some order, with the best value up to each. */
function bestSoFar(order) {
  let best = null;
  return order.map((at) => {
    const value = data.values[at];
    if (best === null || (minimized ? value < best : value > best)) best = value;
    return [at, best];
  });
}

function unitOf(seconds) {
  const most = Math.max(0, ...seconds.filter((one) => one !== null));
  return [{ seconds: 86400, name: "days" }, { seconds: 3600, name: "hours" }, { seconds: 60, name: "minutes" }, { seconds: 1, name: "seconds" }].find((one) => most >= 2 * one.seconds) ?? { seconds: 1, name: "seconds" };
}

// -- while they ran -------------------------------------------------------------------------------------------

const MOST_BEST = 10;

function curves() {
  if (!data.curves.length) return;
  const section = part("curves", "Curves", `${metric} while trials ran`, data.curves_about);
  const values = data.curves.flatMap((one) => one.values).filter((value) => value !== null);
  const many = data.curves.length > MOST_BEST;
  new Chart(section, `${metric} of trials while they ran`, [
    { name: "which", label: "Trials", options: many ? [["best", `the best ${MOST_BEST} and those that run`], ["all", "all"]] : [["all", "all"]], value: "best" },
    { name: "scale", label: "Scale", options: positive(values) ? scales : scales.slice(0, 1), value: spread(values) > 50 ? "log" : "linear" },
  ], drawCurves);
}

function drawCurves({ which, scale }) {
  const place = new Map(data.numbers.map((number, at) => [number, at]));
  const rank = (curve) => { const found = ranked.indexOf(place.get(curve.trial)); return found < 0 ? ranked.length : found; };
  const runs = (curve) => data.states[place.get(curve.trial)] === "running";
  const sorted = [...data.curves].sort((one, other) => rank(one) - rank(other));
  const own = which === "best" ? sorted.filter((one, number) => number < MOST_BEST || runs(one)).slice(0, 2 * MOST_BEST) : sorted;
  const single = own.length <= 2 * MOST_BEST, traces = [], rows = [];
  own.forEach((one, number) => {
    const at = place.get(one.trial), { colour, dash, symbol } = look(number);
    traces.push({
      type: "scatter", mode: one.steps.length > 30 ? "lines" : single ? "lines+markers" : "lines", name: label(`${named(at)}${runs(one) ? " (running)" : ""}`), showlegend: single, x: one.steps, y: one.values,
      line: single ? { color: colour, dash, width: 1.8 } : { color: faint(classColour(rank(one)), 0.7), width: 1.2 }, marker: { color: colour, symbol, size: 5 },
      text: one.steps.map(() => wordsOf(at)), hovertemplate: "%{text}<br>step %{x}: %{y:.4g}<extra></extra>",
    });
    one.steps.forEach((step, index) => rows.push([String(one.trial), step, one.values[index]]));
  });
  return { traces: traces.toReversed().map((one, index) => ({ ...one, legendrank: traces.length - index })), rows, headings: ["trial", "step", metric], layout: { xaxis: { title: "step", exponentformat: "SI" }, yaxis: { title: label(metric), ...onScale(scale) } } };
}
