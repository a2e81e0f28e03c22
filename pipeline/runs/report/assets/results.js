// What came out: the tables of the terminal, metrics by round, against divergence and against what they cost.

const runs = data.runs;
const several = runs.length > 1;
const REFERENCE = "reference";
const algos = unique(runs.flatMap((run) => run.algos));
const places = unique(runs.flatMap((run) => run.places));
const metrics = [...new Map(runs.flatMap((run) => run.metrics))];
const headings = new Map(metrics);
const heading = (metric) => headings.get(metric) ?? metric;

/** Of the run and a method: a colour for each method, dashes and symbols for runs and where colours do not suffice. */
function lookOf(run, algo) {
  const rows = Math.max(1, Math.ceil(algos.length / LIGHT.length)) * LIGHT.length;
  const found = look(Math.max(0, algos.indexOf(algo)) + rows * runs.indexOf(run));
  return algo === REFERENCE ? { ...found, colour: theme.dark ? "#a3abb5" : "#6b7280", symbol: "circle-open" } : found;
}

const nameIn = (run, algo) => several ? `${run.name} · ${algo}` : algo;
const titleOf = (run) => run.name.includes(run.stamp) ? run.name : `${run.name} (${run.stamp})`;
const everyName = unique(runs.flatMap((run) => [REFERENCE, ...run.algos].map((algo) => nameIn(run, algo))));

/** The name of a method for a legend or an axis: brief, unless another one would then look the same. */
function shortName(name, most) {
  const short = brief(name, most);
  return everyName.some((one) => one !== name && brief(one, most) === short) ? name : short;
}

/** What is to be said of a part of every run; of several, of which. */
const saidOfRuns = (said) => runs.filter(said).map((run) => several ? `${run.name}: ${said(run)}` : said(run)).join(" ");
const placesOf = (rows) => unique(rows.map((row) => row.place)).map((one) => [one, one]);

/** Bars of errors; none where an interval has no end. */
function errors(values, lows, highs, colour) {
  if (!values.some((value, at) => value !== null && lows[at] !== null && highs[at] !== null)) return undefined;
  const off = (ends, sign) => values.map((value, at) => value === null || ends[at] === null ? 0 : Math.max(0, sign * (ends[at] - value)));
  return { type: "data", symmetric: false, array: off(highs, 1), arrayminus: off(lows, -1), color: faint(colour, 0.55), thickness: 1.2, width: 3 };
}

// -- tables ---------------------------------------------------------------------------------------------------

function sideBySide() {
  if (!data.comparison.length) return;
  const section = part("comparison", "Comparison", "Comparison");
  for (const table of data.comparison) section.append(...fullTable(table, "results").filter(Boolean));
}

function resultTables() {
  const section = part("results", "Results", "Results");
  for (const run of runs) {
    if (several) section.append(make("h3", {}, titleOf(run)));
    if (!run.tables.length) section.append(make("p", { class: "said" }, "No evaluation was finished yet."));
    for (const table of run.tables) section.append(...fullTable(table, "results").filter(Boolean));
  }
}

/** The room that methods need, with some around it: what lies far beyond, as the best that any policy can do, would squash them. */
function roomOf(ends) {
  const known = ends.filter((one) => one !== null && one !== undefined && Number.isFinite(one));
  const low = Math.min(...known), high = Math.max(...known), span = high - low || Math.abs(high) || 1;
  return known.length ? [low - 0.06 * span, high + 0.06 * span] : null;
}

/** An axis that begins with methods alone where marks lie out of their room by more than a quarter of it. */
function zoomed(ends, marks) {
  const range = roomOf(ends);
  if (!range || !marks.length) return {};
  const quarter = (range[1] - range[0]) / 4, near = marks.filter((one) => one > range[0] - quarter && one < range[1] + quarter);
  return near.length === marks.length ? {} : { range: roomOf([...ends, ...near]) };
}

const outside = (axes) => axes.some((one) => one.range) ? "What lies far from all methods is outside at first; a double click shows everything. " : "";

// -- by round -------------------------------------------------------------------------------------------------

function curves() {
  const all = runs.flatMap((run) => run.series.map((one) => ({ ...one, run })));
  if (!all.length) return;
  const section = part("curves", "Rounds", "Round by round", "Bands and bars are the intervals of the table. Each method begins at the reference, which is its round 0; a checkpoint from outside the run has one point, beside the last round.");
  new Chart(section, "Metrics of each method round by round", [
    { name: "metric", label: "Metric", options: metrics.map(([name, said]) => [name, said]), value: metrics[0][0] },
    { name: "place", label: "Dataset and model", options: (state) => placesOf(all.filter((one) => one.metric === state.metric)) },
    { name: "which", label: "Lines", options: all.some((one) => one.chain) ? [["mean", "mean of the chains"], ["chains", "every chain"]] : [["mean", "mean"]], value: "mean" },
  ], (state) => drawCurves(all, state));
}

function drawCurves(all, { metric, place, which }) {
  const own = all.filter((one) => one.metric === metric && one.place === place && (which === "chains") === Boolean(one.chain));
  const start = (run, chain) => all.find((one) => one.run === run && one.algo === REFERENCE && one.metric === metric && one.place === place && (!chain || one.chain === chain))
    ?? all.find((one) => one.run === run && one.algo === REFERENCE && one.metric === metric && one.place === place);
  const traces = [], rows = [], named = new Set(), marks = [];
  const banded = own.filter((one) => one.algo !== REFERENCE).length <= MOST_BANDS;
  for (const one of own) {
    one.rounds.forEach((round, at) => rows.push([nameIn(one.run, one.algo), ...(which === "chains" ? [one.chain] : []), String(round), one.values[at], one.lows[at], one.highs[at]]));
    if (one.algo === REFERENCE) continue;
    traces.push(...lines(one, one.rounds[0] > 0 && !one.run.checkpoints.includes(one.algo) ? start(one.run, one.chain) : undefined, named, banded));
  }
  const shapes = [], last = Math.max(1, ...own.flatMap((one) => one.rounds));
  for (const run of runs) {
    const from = start(run)?.values[0];
    if (from !== undefined && from !== null) traces.push(level(nameIn(run, REFERENCE), from, last, "dash", theme.dark ? "#a3abb5" : "#6b7280"));
    const best = run.anchors[place]?.optimum?.[metric];
    if (best !== undefined) marks.push(best);
    if (best !== undefined) traces.push(level(several ? `${run.name} · optimum` : "optimum", best, last, "dot", variable("--text")));
  }
  const y = zoomed(own.flatMap((one) => [...one.values, ...one.lows, ...one.highs]), marks);
  return {
    traces, rows, note: outside([y]), headings: ["algorithm", ...(which === "chains" ? ["chain"] : []), "round", heading(metric), "from", "to"],
    layout: { shapes, xaxis: { title: "round", dtick: last > 20 ? undefined : 1, range: [-0.08 * last, last * 1.05] }, yaxis: { title: heading(metric), ...y } },
  };
}

function level(name, value, last, dash, colour) {
  return { type: "scatter", mode: "lines", name: label(name), x: [0, last], y: [value, value], line: { dash, width: 1.4, color: colour }, hovertemplate: `${label(name)}: ${shown(value)}<extra></extra>` };
}

/** A curve with its band, from where it starts on. */
function lines(one, start, named, banded) {
  const { colour, dash, symbol } = lookOf(one.run, one.algo), from = start?.values[0] ?? null;
  const before = from === null ? { rounds: [], values: [], lows: [], highs: [] } : { rounds: [0], values: [from], lows: [start.lows[0]], highs: [start.highs[0]] };
  const rounds = [...before.rounds, ...one.rounds], values = [...before.values, ...one.values];
  const lows = [...before.lows, ...one.lows], highs = [...before.highs, ...one.highs];
  const name = nameIn(one.run, one.algo), group = `${one.run.stamp}/${one.run.name}/${one.algo}`, first = !named.has(group), thin = Boolean(one.chain);
  named.add(group);
  const text = rounds.map((round, at) => label(`${name}${thin ? `, ${one.chain}` : ""}, round ${round}: ${shown(values[at])} ${interval(lows[at], highs[at])}`));
  const line = {
    type: "scatter", mode: thin ? "lines" : "lines+markers", name: label(shortName(name)), legendgroup: group, showlegend: first, x: rounds, y: values, text,
    hovertemplate: "%{text}<extra></extra>", opacity: thin ? 0.65 : 1, line: { color: colour, dash, width: thin ? 1.2 : 2.2 }, marker: { symbol, size: 8, color: colour },
    error_y: thin ? undefined : errors(values, lows, highs, colour),
  };
  const known = rounds.map((_, at) => at).filter((at) => lows[at] !== null && highs[at] !== null);
  if (thin || !banded || known.length < 2) return [line];
  const there = known.map((at) => rounds[at]);
  return [{
    type: "scatter", mode: "lines", legendgroup: group, showlegend: false, hoverinfo: "skip", line: { width: 0, color: colour }, fill: "toself", fillcolor: faint(colour, 0.13),
    x: [...there, ...there.toReversed()], y: [...known.map((at) => highs[at]), ...known.toReversed().map((at) => lows[at])],
  }, line];
}

/** Lines that a chart has bands for; those of more would cover each other, and bars say the same. */
const MOST_BANDS = 3;

// -- against divergence ---------------------------------------------------------------------------------------

const KL = "kl_per_sequence";
const judged = () => metrics.filter(([name]) => ["pass@1", "reward"].includes(name));

function front() {
  const all = runs.flatMap((run) => run.series.filter((one) => !one.chain).map((one) => ({ ...one, run })));
  const points = runs.flatMap((run) => run.fronts.map((one) => ({ ...one, run })));
  const withKl = all.filter((one) => one.metric === KL && one.values.some((value) => value !== null));
  if (!withKl.length || !judged().length) return;
  const section = part("front", "KL", "Reward against divergence", "Up and to the left is better: more reward for less divergence from the reference. Crosses are intervals in both directions; the star is the best that any policy can do, where that is known.");
  new Chart(section, "Reward of each method against its KL divergence from the reference", [
    { name: "metric", label: "Reward", options: judged(), value: metrics[0][0] },
    { name: "place", label: "Dataset and model", options: placesOf(withKl) },
    { name: "which", label: "Points", options: (state) => points.some((one) => one.place === state.place) ? [["fronts", "fronts: settings after the last round"], ["rounds", "every round"]] : [["rounds", "every round"]] },
  ], (state) => state.which === "fronts" ? drawFronts(points, state) : drawRounds(all, withKl, state));
}

function drawRounds(all, withKl, { metric, place }) {
  const traces = [], rows = [];
  for (const kl of withKl.filter((one) => one.place === place)) {
    const value = all.find((one) => one.run === kl.run && one.algo === kl.algo && one.place === place && one.metric === metric);
    if (!value) continue;
    const pairs = kl.rounds.map((round, at) => ({ round, at, to: value.rounds.indexOf(round) })).filter(({ at, to }) => to >= 0 && kl.values[at] !== null && value.values[to] !== null);
    const take = (from, at) => pairs.map((pair) => from[pair[at]]);
    const points = { x: take(kl.values, "at"), xLow: take(kl.lows, "at"), xHigh: take(kl.highs, "at"), y: take(value.values, "to"), yLow: take(value.lows, "to"), yHigh: take(value.highs, "to"), words: pairs.map(({ round }) => `round ${round}`) };
    traces.push(cloud(kl.run, nameIn(kl.run, kl.algo), lookOf(kl.run, kl.algo), points, "lines+markers"));
    rows.push(...numbersOf(nameIn(kl.run, kl.algo), points));
  }
  const anchors = anchorsOf(place, metric, rows), axes = axesOf(traces, anchors, metric);
  return { traces: [...traces, ...anchors], rows, note: axes.note, headings: ["algorithm", "point", "KL/seq", "from", "to", heading(metric), "from", "to"], layout: axes.layout };
}

function drawFronts(all, { metric, place }) {
  const traces = [], rows = [];
  const own = all.filter((one) => one.place === place);
  for (const [key, points] of grouped(own, (one) => JSON.stringify([one.run.stamp, one.run.name, one.front]))) {
    const { run, front: name } = points[0], found = lookOf(run, name);
    const asPoints = (some) => ({ x: some.map((one) => one.kl), xLow: some.map((one) => one.kl_low), xHigh: some.map((one) => one.kl_high), y: some.map((one) => one.value), yLow: some.map((one) => one.ci_low), yHigh: some.map((one) => one.ci_high), words: some.map((one) => one.point) });
    const best = points.filter((one) => one.is_best).sort((a, b) => a.kl - b.kl), others = points.filter((one) => !one.is_best);
    traces.push({ ...cloud(run, nameIn(run, name), found, asPoints(best), "lines+markers"), legendgroup: key });
    if (others.length) traces.push({ ...cloud(run, nameIn(run, name), { ...found, symbol: `${found.symbol}-open` }, asPoints(others), "markers"), legendgroup: key, showlegend: false });
    rows.push(...numbersOf(nameIn(run, name), asPoints(points)));
  }
  const anchors = anchorsOf(place, metric, rows), axes = axesOf(traces, anchors, metric);
  const note = own.some((one) => one.metric !== metric) ? `Fronts are of ${heading(own[0].metric)}. ` : "";
  return { traces: [...traces, ...anchors], rows, note: `${axes.note}${note}Lines join the points of a front than which no other has more at no more divergence; hollow points are the others.`, headings: ["front", "point", "KL/seq", "from", "to", heading(metric), "from", "to"], layout: axes.layout };
}

function axesOf(traces, anchors, metric) {
  const ends = (name) => traces.flatMap((one) => one[name].flatMap((value, at) => {
    const bars = one[`error_${name}`];
    return [value - (bars?.arrayminus[at] ?? 0), value + (bars?.array[at] ?? 0)];
  }));
  const [x, y] = ["x", "y"].map((name) => zoomed(name === "x" ? [0, ...ends(name)] : ends(name), anchors.flatMap((one) => one[name])));
  const xaxis = { title: "KL divergence from the reference, nats per sequence", rangemode: "tozero", ...x };
  return { note: outside([x, y]), layout: { brief: "KL, nats per sequence", xaxis, yaxis: { title: heading(metric), ...y } } };
}

const numbersOf = (name, points) => points.x.map((x, at) => [name, points.words[at], x, points.xLow[at], points.xHigh[at], points.y[at], points.yLow[at], points.yHigh[at]]);

function cloud(run, name, { colour, dash, symbol }, points, mode) {
  const text = points.x.map((x, at) => label(`${name}, ${points.words[at]}: ${shown(points.y[at])} ${interval(points.yLow[at], points.yHigh[at])} at KL ${shown(x)} ${interval(points.xLow[at], points.xHigh[at])}`));
  return {
    type: "scatter", mode, cliponaxis: false, name: label(shortName(name)), x: points.x, y: points.y, text, hovertemplate: "%{text}<extra></extra>",
    line: { color: colour, dash, width: 1.4 }, marker: { color: colour, symbol, size: 9 },
    error_x: errors(points.x, points.xLow, points.xHigh, colour), error_y: errors(points.y, points.yLow, points.yHigh, colour),
  };
}

function anchorsOf(place, metric, rows) {
  const symbols = { optimum: "star", greedy: "diamond-tall-open" }, found = [];
  for (const run of runs) {
    for (const [anchor, own] of Object.entries(run.anchors[place] ?? {})) {
      if (own[KL] === undefined || own[metric] === undefined) continue;
      const name = several ? `${run.name} · ${anchor}` : anchor;
      rows.push([name, "", own[KL], null, null, own[metric], null, null]);
      found.push({ type: "scatter", mode: "markers", name: label(name), x: [own[KL]], y: [own[metric]], marker: { symbol: symbols[anchor] ?? "circle-open", size: 14, color: variable("--text") }, hovertemplate: `${label(name)}: ${shown(own[metric])} at KL ${shown(own[KL])}<extra></extra>` });
    }
  }
  return found;
}

// -- races ----------------------------------------------------------------------------------------------------

function race() {
  const all = runs.flatMap((run) => (run.race?.pairs ?? []).map((one) => ({ ...one, run })));
  if (!runs.some((run) => run.race)) return;
  const section = part("race", "Race", "Race", "How far one policy is above each other after each look, with intervals that all hold together. A pair is settled once its interval leaves out 0.");
  for (const run of runs.filter((one) => one.race)) section.append(...run.race.said.map((said) => make("p", { class: "small" }, several ? `${run.name}: ${said}` : said)));
  const at = ({ place, round }) => all.filter((one) => one.place === place && (!round || String(one.round) === round));
  if (all.length) new Chart(section, "Differences of pairs by the prompts that both were evaluated on", [
    { name: "place", label: "Chains", options: placesOf(all) },
    { name: "round", label: "Round", options: ({ place }) => unique(at({ place }).map((one) => String(one.round))).map((one) => [one, one]) },
    { name: "algo", label: "Above the others", options: (state) => unique(at(state).sort((a, b) => b.prompts.length - a.prompts.length).flatMap((one) => [nameIn(one.run, one.first), nameIn(one.run, one.second)])).map((one) => [one, one]), always: true },
  ], (state) => drawRace(at(state), state.algo));
}

function drawRace(pairs, algo) {
  const traces = [], rows = [], zero = { type: "line", xref: "paper", x0: 0, x1: 1, y0: 0, y1: 0, line: { color: variable("--dim"), dash: "dot", width: 1 } };
  for (const { run, first, second, better, prompts, difference, low, high } of pairs) {
    const isFirst = nameIn(run, first) === algo, other = isFirst ? second : first, sign = isFirst ? 1 : -1;
    if (!isFirst && nameIn(run, second) !== algo) continue;
    const { colour, symbol } = lookOf(run, other), values = difference.map((one) => sign * one);
    const [lows, highs] = isFirst ? [low, high] : [high, low].map((ends) => ends.map((one) => -one));
    const name = nameIn(run, other), verdict = better ? `${better} is above` : "not told apart";
    traces.push({
      type: "scatter", mode: "lines+markers", name: label(`${shortName(name)} (${!better ? verdict : better === other ? "above" : "below"})`), x: prompts, y: values, cliponaxis: false, error_y: errors(values, lows, highs, colour),
      line: { color: colour, width: 1.4 }, marker: { color: colour, symbol: better ? symbol : "circle-open", size: 7 },
      text: values.map((one, look) => label(`${algo} - ${name}: ${shown(one)} ${interval(lows[look], highs[look])}`)), hovertemplate: "%{text}, %{x} prompts<extra></extra>",
    });
    prompts.forEach((one, look) => rows.push([`${algo} - ${name}`, one, values[look], lows[look], highs[look], look + 1 === prompts.length ? verdict : ""]));
  }
  return { traces, rows, headings: ["pair", "prompts", "difference", "from", "to", "verdict"], layout: { shapes: [zero], showlegend: true, xaxis: { title: "prompts that both were evaluated on", rangemode: "tozero" }, yaxis: { title: label(`${shortName(algo, 20)} above the others`) } } };
}

// -- against compute ------------------------------------------------------------------------------------------

const SPENT = { flops: "FLOPs of training, all rounds so far", answer: "FLOPs of an answer", device_s: "device seconds of training without loading, all rounds so far" };

function compute() {
  const all = runs.flatMap((run) => run.spent.filter((one) => one.algo !== REFERENCE).map((one) => ({ ...one, run })));
  const kinds = Object.entries(SPENT).filter(([name]) => all.some((one) => one[name]));
  if (!kinds.length || !judged().length) return;
  const section = part("compute", "Compute", "Reward against compute", "What a chain takes up to the end of a round, without evaluation.");
  new Chart(section, "Reward of each method against what it took", [
    { name: "kind", label: "Compute", options: kinds },
    { name: "metric", label: "Reward", options: judged(), value: metrics[0][0] },
    { name: "place", label: "Dataset and model", options: placesOf(all) },
  ], (state) => drawSpent(all, state));
}

function drawSpent(all, { kind, metric, place }) {
  const traces = [], rows = [];
  for (const own of grouped(all.filter((one) => one.place === place), (one) => JSON.stringify([one.run.stamp, one.run.name, one.algo])).values()) {
    const { run, algo } = own[0];
    const value = run.series.find((one) => !one.chain && one.algo === algo && one.place === place && one.metric === metric);
    const known = own.filter((one) => one[kind] && value?.rounds.includes(one.round)).sort((a, b) => a.round - b.round);
    if (!known.length) continue;
    const at = known.map((one) => value.rounds.indexOf(one.round));
    const points = { x: known.map((one) => one[kind]), xLow: at.map(() => null), xHigh: at.map(() => null), y: at.map((one) => value.values[one]), yLow: at.map((one) => value.lows[one]), yHigh: at.map((one) => value.highs[one]), words: known.map((one) => `round ${one.round}`) };
    const trace = cloud(run, nameIn(run, algo), lookOf(run, algo), points, "lines+markers");
    const text = points.x.map((x, row) => label(`${nameIn(run, algo)}, ${points.words[row]}: ${shown(points.y[row])} ${interval(points.yLow[row], points.yHigh[row])} for ${withPrefix(x)}`));
    traces.push({ ...trace, text });
    points.x.forEach((x, row) => rows.push([nameIn(run, algo), points.words[row], withPrefix(x), points.y[row], points.yLow[row], points.yHigh[row]]));
  }
  const { said = "", ...axis } = axisOf(traces.flatMap((one) => one.x));
  return { traces, rows, headings: ["algorithm", "after", SPENT[kind], heading(metric), "from", "to"], layout: { xaxis: { ...axis, title: SPENT[kind] + said }, yaxis: { title: heading(metric) } } };
}

/** A logarithmic axis with so many ticks between powers of ten that several lie among the values; a short one is linear. */
function axisOf(values) {
  const low = Math.min(...values), high = Math.max(...values);
  if (!values.length || high / low < 4) return { exponentformat: "SI" };
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const digit of high / low < 20 ? [1, 1.5, 2, 3, 4, 6, 8] : high / low < 1000 ? [1, 2, 5] : [1]) ticks.push(digit * 10 ** power);
  }
  return { type: "log", tickvals: ticks, ticktext: ticks.map(withPrefix), said: ", logarithmic" };
}
