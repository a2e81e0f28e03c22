// What the search has found out: parameters side by side, which of them matter, each alone, two measures at once.

/** Trials by the rank of their value: the best stand out from the ground, the others fade into it. */
const CLASSES = [[0.1, "best tenth"], [0.25, "next, to a quarter"], [0.5, "to a half"], [0.75, "to three quarters"], [1, "last quarter"]];
const RAMPS = {
  light: ["#003f72", "#0072b2", "#56a5d4", "#a9c3d6", "#ccd3da"],
  dark: ["#c9e8ff", "#6bb8ea", "#3b83b8", "#4c6579", "#444c55"],
};
const ramp = () => RAMPS[theme.dark ? "dark" : "light"];
const classOf = (rank) => CLASSES.findIndex(([part]) => rank < Math.max(1, Math.ceil(part * ranked.length)));
const classColour = (rank) => ramp()[rank < ranked.length ? classOf(rank) : CLASSES.length - 1];

const importances = new Map(data.importance);
/** Parameters, those first that matter most. */
const axes = [...data.axes].sort((one, other) => (importances.get(other.name) ?? 0) - (importances.get(one.name) ?? 0));
const MOST_AXES = 8;

// -- side by side ---------------------------------------------------------------------------------------------

function parallel() {
  if (!ranked.length || !axes.length) return;
  const section = part("parallel", "Parameters", "Parameters side by side", `A line is a trial that is done; the stronger its colour, the better its ${metric}, which is the last axis: up is better there.`);
  new Chart(section, "Parameters of trials and their metric, each on an axis of its own", [
    { name: "which", label: "Trials", options: ranked.length > 10 ? [["all", "all"], ["best", "the best tenth"]] : [["all", "all"]], value: "all" },
    { name: "shown", label: "Parameters", options: axes.length > MOST_AXES ? [["first", `the first ${MOST_AXES}${importances.size ? " in importance" : ""}`], ["all", "all"]] : [["all", "all"]] },
  ], drawParallel);
}

function metricAxis() {
  const values = ranked.map((at) => data.values[at]);
  return { name: metric, heading: metric, kind: spread(values) > 50 ? "log" : "linear", values: data.values, choices: [], down: minimized };
}

function drawParallel({ which, shown: chosen }) {
  const narrow = document.getElementById("main").clientWidth < NARROW;
  const own = [...(chosen === "first" ? axes.slice(0, MOST_AXES) : axes), metricAxis()].map((axis) => ({ ...axis, ...scaleOf(axis) }));
  const there = which === "best" ? ranked.slice(0, Math.ceil(ranked.length / 10)) : ranked;
  const traces = [];
  for (const [number, some] of [...grouped(there, (at) => classOf(ranked.indexOf(at)))].toSorted(([one], [other]) => other - one)) {
    const along = [], on = [], text = [];
    for (const at of some) {
      own.forEach((axis, index) => { along.push(index); on.push(axis.place(axis.values[at], aside(at, index))); text.push(wordsOf(at)); });
      along.push(null); on.push(null); text.push("");
    }
    const last = some.at(-1), first = some[0];
    traces.push({
      type: "scatter", mode: "lines+markers", name: label(`${CLASSES[number][1]}: ${shown(data.values[first])}${first === last ? "" : ` to ${shown(data.values[last])}`}`), legendrank: number,
      x: narrow ? on : along, y: narrow ? along.map((one) => one === null ? null : -one) : on, text, hovertemplate: "%{text}<extra></extra>",
      line: { color: faint(ramp()[number], number ? 0.7 : 0.95), width: number ? 1.2 : 2.2 }, marker: { color: ramp()[number], size: number ? 3.5 : 5 },
    });
  }
  return {
    traces, headings: ["trial", ...own.map((one) => one.heading)],
    rows: there.map((at) => [String(data.numbers[at]), ...own.map((axis) => axis.values[at] === null ? null : axis.kind === "choices" ? axis.choices[axis.values[at]] : axis.values[at])]),
    note: own.some((axis) => ranked.some((at) => axis.values[at] === null)) ? "A line is broken where a trial has no such parameter." : "",
    layout: narrow ? lying(own) : standing(own),
  };
}

/** Lines through one choice go beside each other, always in the same way: from -0.5 to 0.5. */
const aside = (at, axis = 0) => (data.numbers[at] * 0.618034 + axis * 0.414214) % 1 - 0.5;

/** Where a value stands between the ends of an axis, 0 to 1, and its ticks. */
function scaleOf(axis) {
  const known = every.map((at) => axis.values[at]).filter((value) => value !== null);
  if (axis.kind === "choices") {
    const last = axis.choices.length - 1, step = Math.ceil((last + 1) / 14);
    const room = Math.min(0.07, 0.5 / (last + 1));
    const place = (value, off = 0) => value === null ? null : (last ? value / last : 0.5) + off * room;
    return { place, ticks: axis.choices.map((said, at) => [place(at), said]).filter((_, at) => at % step === 0 || at === last) };
  }
  const on = axis.kind === "log" ? Math.log10 : (value) => value;
  const own = axis.name === metric ? ranked.map((at) => data.values[at]) : known;
  const low = on(Math.min(...own)), high = on(Math.max(...own));
  const place = (value) => {
    if (value === null) return null;
    const at = high > low ? (on(value) - low) / (high - low) : 0.5;
    return axis.down ? 1 - at : at;
  };
  const inside = axis.kind === "log"
    ? Array.from({ length: Math.max(0, Math.floor(high) - Math.ceil(low) + 1) }, (_, at) => 10 ** (Math.ceil(low) + at))
    : [0.25, 0.5, 0.75].map((part) => low + part * (high - low));
  const ends = [Math.min(...own), Math.max(...own)];
  const ticks = high > low ? [...ends, ...inside.filter((value) => ends.every((end) => Math.abs(place(end) - place(value)) > 0.09))] : [ends[0]];
  return { place, ticks: ticks.map((value) => [place(value), shown(value)]) };
}

/** A text over lines, with an edge of the ground round its letters: a box behind it would hide the lines. */
function tickOf(text, { size = 10.5, color = "--text", weight = 400, ...more }) {
  const edge = Array(3).fill(`0 0 2px ${variable("--card")}`).join(", ");
  return { text: label(brief(text, 16)), showarrow: false, font: { size, weight, color: variable(color), shadow: edge }, borderpad: 1, ...more };
}

const rule = (x0, y0, x1, y1) => ({ type: "line", layer: "below", x0, y0, x1, y1, line: { color: variable("--dim"), width: 1 } });

/** Axes beside each other. */
function standing(own) {
  const most = Math.max(8, Math.floor(130 / own.length));
  return {
    height: 460, hovermode: "closest", shapes: own.map((_, at) => rule(at, 0, at, 1)),
    annotations: own.flatMap((axis, at) => axis.ticks.map(([place, text]) => tickOf(text, { x: at, y: place, xanchor: "left", xshift: 5 }))),
    xaxis: { tickvals: own.map((_, at) => at), ticktext: own.map((axis) => label(brief(axis.heading, most))), side: "top", showgrid: false, zeroline: false, showline: false, range: [-0.15, own.length - 0.45], fixedrange: true },
    yaxis: { visible: false, range: [-0.05, 1.05], fixedrange: true },
    legend: { orientation: "h", x: 0, y: -0.02, yanchor: "top", traceorder: "normal", font: { size: 12 } },
  };
}

/** Axes below each other, on a narrow page. */
function lying(own) {
  return {
    height: 150 + 66 * own.length, shapes: own.map((_, at) => rule(0, -at, 1, -at)),
    annotations: own.flatMap((axis, at) => [
      tickOf("", { text: label(brief(axis.heading, 40)), x: 0, y: -at, xanchor: "left", yshift: 13, size: 11, weight: 700 }),
      ...spaced(axis.ticks, 5).map(([place, text]) => tickOf(brief(text, 9), { x: place, y: -at, xanchor: place < 0.1 ? "left" : place > 0.9 ? "right" : "center", yshift: -10, size: 9.5, color: "--dim" })),
    ]),
    xaxis: { visible: false, range: [-0.03, 1.03], fixedrange: true }, yaxis: { visible: false, range: [-own.length + 0.5, 0.55], fixedrange: true },
    legend: { orientation: "h", x: 0, y: 0, yanchor: "top", traceorder: "normal", font: { size: 10.5 } },
  };
}

/** As many ticks as have room: both ends, and of the others those that are not too near to them. */
function spaced(ticks, most) {
  const sorted = ticks.toSorted(([one], [other]) => one - other), step = Math.ceil(sorted.length / most), gap = 0.9 / most;
  const [low, high] = [sorted[0][0], sorted.at(-1)[0]];
  return sorted.filter(([place], at) => at === 0 || at === sorted.length - 1 || (at % step === 0 && place - low > gap && high - place > gap));
}

// -- which of them matter -------------------------------------------------------------------------------------

function importance() {
  if (!axes.length || !data.metric) return;
  const section = part("importance", "Importance", "Which parameters matter", data.importance_about);
  if (!data.importance.length) return;
  const names = data.importance.map(([name]) => data.axes.find((one) => one.name === name)?.heading ?? name);
  new Chart(section, "Importance of each parameter", [], () => ({
    traces: [{
      type: "bar", orientation: "h", x: data.importance.map(([, share]) => share), y: names.map((one) => label(brief(one, 28))), marker: { color: palette()[0] },
      text: data.importance.map(([name, share]) => label(`${name}: ${(100 * share).toFixed(1)} %`)), textposition: "none", hovertemplate: "%{text}<extra></extra>",
    }],
    rows: data.importance, headings: ["parameter", "share"],
    layout: { height: 90 + 28 * names.length, bargap: 0.3, xaxis: { title: "share", tickformat: ".0%", range: [0, Math.min(1, 1.05 * data.importance[0][1])] }, yaxis: { type: "category", categoryorder: "array", categoryarray: names.toReversed().map((one) => label(brief(one, 28))), showgrid: false, dtick: 1, fixedrange: true } },
  }));
}

// -- each alone -----------------------------------------------------------------------------------------------

function slices() {
  const there = every.filter((at) => data.values[at] !== null);
  if (!there.length || !axes.length) return;
  const section = part("slices", "One by one", "Each parameter by itself");
  const values = there.map((at) => data.values[at]);
  new Chart(section, `${metric} of trials against one parameter`, [
    { name: "axis", label: "Parameter", options: axes.map((one) => [one.name, one.name]) },
    { name: "scale", label: "Scale", options: positive(values) ? scales : scales.slice(0, 1), value: spread(values) > 50 ? "log" : "linear" },
  ], (state) => drawSlice(there, state));
}

function drawSlice(there, { axis: name, scale }) {
  const axis = axes.find((one) => one.name === name), own = there.filter((at) => axis.values[at] !== null), chosen = axis.kind === "choices";
  const x = (at) => axis.values[at] + (chosen ? 0.26 * aside(at) : 0);
  const traces = [...grouped(own, (at) => data.states[at])].map(([state, some]) => {
    const [number, symbol] = LOOKS[state] ?? LOOKS.waiting;
    return { type: "scatter", mode: "markers", name: label(state), x: some.map(x), y: some.map((at) => data.values[at]), text: some.map(wordsOf), hovertemplate: "%{text}<extra></extra>", marker: { color: faint(palette()[number], 0.7), symbol, size: 8 } };
  });
  const ticks = chosen ? { tickvals: axis.choices.map((_, at) => at), ticktext: axis.choices.map((one) => label(brief(one, 18))), range: [-0.5, axis.choices.length - 0.5] } : axis.kind === "log" ? onScale("log") : {};
  return {
    traces, headings: ["trial", "state", axis.heading, metric], rows: own.map((at) => [String(data.numbers[at]), data.states[at], chosen ? axis.choices[axis.values[at]] : axis.values[at], data.values[at]]),
    layout: { xaxis: { ...ticks, title: label(axis.name) }, yaxis: { title: axisTitle, ...onScale(scale) } },
  };
}

// -- two measures at once -------------------------------------------------------------------------------------

function front() {
  const measures = data.measures.filter((one) => ended.filter((at) => one.values[at] !== null).length > 1);
  if (measures.length < 2) return;
  const section = part("front", "Front", "Two measures at once", "The line joins trials than which no other is better in one and at least as good in the other. Hollow points are the others.");
  const names = measures.map((one) => [one.name, one.name]), goals = [["minimize", "less"], ["maximize", "more"]];
  const goalOf = (name) => measures.find((one) => one.name === name).goal;
  const controls = [
    { name: "y", label: "Up", options: names, value: measures[0].name, always: true },
    { name: "yGoal", label: "better is", options: (state) => goalOf(state.y) === "minimize" ? goals : goals.toReversed() },
    { name: "x", label: "Across", options: (state) => names.filter(([one]) => one !== state.y), value: telling(measures).name, always: true },
    { name: "xGoal", label: "better is", options: (state) => goalOf(state.x) === "minimize" ? goals : goals.toReversed() },
  ];
  new Chart(section, "Trials by two measures", controls, (state) => drawFront(measures, state));
}

/** The first measure beside the metric by which the front is neither one trial nor all: another one says nothing. */
function telling([metric, ...others]) {
  return others.find((one) => { const { own, best } = frontOf(one, metric); return best.length > 1 && best.length < own.length; }) ?? others[0];
}

/** Trials that have both measures, and those of them than which no other is better in one and at least as good in the other. */
function frontOf(x, y) {
  const own = ended.filter((at) => x.values[at] !== null && y.values[at] !== null);
  const signed = ({ values, goal }) => (at) => (goal === "minimize" ? 1 : -1) * values[at];
  return { own, best: nowhereWorse(own, signed(x), signed(y)) };
}

function drawFront(measures, { x: across, y: up, xGoal, yGoal }) {
  const [x, y] = [across, up].map((name) => measures.find((one) => one.name === name).values);
  const { own, best } = frontOf({ values: x, goal: xGoal }, { values: y, goal: yGoal }), others = own.filter((at) => !best.includes(at));
  const said = (at) => `${wordsOf(at)}<br>${label(`${across} ${shown(x[at])}, ${up} ${shown(y[at])}`)}`;
  const dots = (some, more) => ({ type: "scatter", x: some.map((at) => x[at]), y: some.map((at) => y[at]), text: some.map(said), hovertemplate: "%{text}<extra></extra>", cliponaxis: false, ...more });
  const traces = [
    dots(others, { mode: "markers", name: "others", marker: { symbol: "circle-open", size: 7, color: palette()[0] } }),
    dots(best, { mode: "lines+markers", name: "front", line: { shape: "hv", color: palette()[1], width: 1.4 }, marker: { size: 9, color: palette()[1] } }),
  ].filter((one) => one.x.length);
  return {
    traces, headings: ["trial", across, up, "on the front", "parameters"], rows: own.map((at) => [String(data.numbers[at]), x[at], y[at], best.includes(at) ? "yes" : "", data.words[at]]),
    layout: { xaxis: { title: label(`${across}, ${xGoal === "minimize" ? "less" : "more"} is better`), exponentformat: "SI" }, yaxis: { title: label(`${up}, ${yGoal === "minimize" ? "less" : "more"} is better`), exponentformat: "SI" } },
  };
}

/** Trials than which no other is at most as large in both numbers and smaller in one, by the first; all of equal ones. */
function nowhereWorse(some, first, second) {
  let last = null;
  return some.toSorted((one, other) => first(one) - first(other) || second(one) - second(other)).filter((at) => {
    const is = last === null || second(at) < second(last) || (first(at) === first(last) && second(at) === second(last));
    if (is) last = at;
    return is;
  });
}
