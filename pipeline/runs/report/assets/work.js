// How it was carried out: trainings, devices, cost, failures.

// -- trainings ------------------------------------------------------------------------------------------------

const QUANTITIES = { loss: "loss", grad_norm: "gradient norm", learning_rate: "learning rate", kl: "KL", clip_share: "share of clipped tokens" };

/** One of several values, or all of them; where there is but one there is nothing to choose. */
const orAll = (values) => [["", "all"], ...(unique(values).length > 1 ? unique(values).map((one) => [String(one), String(one)]) : [])];

/** Of so many lines at once something can be seen; of so few points each. */
const MOST_LINES = 60, FEW_POINTS = 30;
/** How much of its colour a line of round 0 has; that of the last round has all. */
const FAINTEST = 0.2;

function trainings() {
  const all = runs.flatMap((run) => run.training.map((one) => ({ ...one, run })));
  if (!all.length) return;
  const points = ([, some]) => sum(some.map((one) => one.steps.length));
  const byPoints = [...grouped(all, (one) => one.training)].sort((one, other) => points(other) - points(one));
  const section = part("training", "Trainings", "Trainings", saidOfRuns((run) => run.training_about));
  new Chart(section, "What trainings measured step by step", [
    { name: "training", label: "Training of", options: byPoints.map(([one]) => [one, one]) },
    { name: "quantity", label: "Quantity", options: (state) => unique(all.filter((one) => one.training === state.training).flatMap((one) => Object.keys(one.values))).map((one) => [one, QUANTITIES[one] ?? one]), value: "loss" },
    { name: "place", label: "Dataset and model", options: (state) => placesOf(all.filter((one) => one.training === state.training)) },
    { name: "algo", label: "Algorithm", options: (state) => orAll(all.filter((one) => one.training === state.training && one.place === state.place).map((one) => nameIn(one.run, one.algo))), value: "" },
    { name: "round", label: "Round", options: (state) => orAll(all.filter((one) => one.training === state.training && one.place === state.place).map((one) => one.round).sort((a, b) => a - b)), value: all.length > MOST_LINES ? String(Math.max(...all.map((one) => one.round))) : "" },
    { name: "over", label: "Over", options: [["steps", "steps"], ["tokens", "tokens"]], value: "steps" },
  ], (state) => drawTrainings(all, state));
}

function drawTrainings(all, { training, quantity, place, algo, round, over }) {
  const own = all.filter((one) => one.training === training && one.place === place && one.values[quantity]
    && (!algo || nameIn(one.run, one.algo) === algo) && (!round || String(one.round) === round));
  const traces = [], rows = [], byRound = Boolean(algo) && !round;
  const nameOf = (one) => byRound ? `round ${one.round}` : nameIn(one.run, one.algo), named = new Map(own.map((one) => [nameOf(one), one]));
  const shownRounds = unique(own.map((one) => one.round)), last = Math.max(...shownRounds), fades = !byRound && shownRounds.length > 1;
  for (const one of own) {
    const { colour: full, dash } = byRound ? look(Math.max(0, one.round - 1)) : lookOf(one.run, one.algo);
    const colour = fades ? faint(full, FAINTEST + (1 - FAINTEST) * one.round / last) : full;
    const name = nameOf(one), values = one.values[quantity];
    const said = `${several ? `${one.run.name}, ` : ""}${one.algo}, ${one.chain}, round ${one.round}`;
    traces.push({
      type: "scatter", mode: one.steps.length > FEW_POINTS ? "lines" : "lines+markers", name: label(byRound ? name : shortName(name)), legendgroup: name, showlegend: named.get(name) === one, x: one[over], y: values,
      line: { color: colour, dash, width: own.length > 12 ? 1.1 : 1.7 }, marker: { color: colour }, opacity: own.length > 12 ? 0.65 : 1,
      hovertemplate: `${label(said)}<br>${over} %{x}: %{y:.4g}<extra></extra>`,
    });
    one.steps.forEach((step, at) => rows.push([said, step, one.tokens[at], values[at]]));
  }
  return { traces, rows, note: fades ? "The fainter a line, the earlier its round." : "", headings: ["training", "step", "tokens", QUANTITIES[quantity] ?? quantity], layout: { xaxis: { title: over === "steps" ? "step" : "tokens trained on", exponentformat: "SI" }, yaxis: { title: QUANTITIES[quantity] ?? quantity } } };
}

// -- devices --------------------------------------------------------------------------------------------------

const drawnStages = runs.flatMap((run) => [...run.stages.map((one) => one.stage), ...(run.timeline?.bars.stage ?? [])]);
const stages = unique([...data.stages, ...drawnStages]).filter(Boolean);
const stageColour = (stage) => palette()[stages.indexOf(stage) % palette().length];
const stagePattern = (stage) => look(Math.max(0, stages.indexOf(stage))).pattern;

const choiceOfRun = (own) => ({ name: "run", label: "Run", options: own.map((run) => [String(runs.indexOf(run)), titleOf(run)]) });

function timeline() {
  const own = runs.filter((run) => run.timeline);
  if (!own.length) return;
  const section = part("timeline", "Devices", "Devices", "Who used which device when. What is empty was idle.");
  new Chart(section, "Which stage ran on which device when", [choiceOfRun(own)], (state) => drawTimeline(runs[Number(state.run)].timeline));
}

function drawTimeline(found) {
  const { bars, lanes, seconds } = found, unit = seconds > 7200 ? [3600, "hours"] : seconds > 300 ? [60, "minutes"] : [1, "seconds"];
  const names = lanes.map((lane) => label(brief(lane, 28))), every = bars.start.map((_, at) => at);
  const kinds = grouped(every, (at) => JSON.stringify(bars.outcome[at] === "done" || bars.outcome[at] === "running" ? [bars.stage[at], bars.outcome[at] === "running"] : [bars.outcome[at], false]));
  const traces = [...kinds].sort(([one], [other]) => rank(one) - rank(other)).map(([kind, own]) => {
    const [name, running] = JSON.parse(kind), bad = ["failed", "stopped", "lost"].includes(name) && !stages.includes(name);
    return {
      type: "bar", orientation: "h", name: label(running ? `${name}, running` : name), width: bad ? 0.45 : 0.8,
      y: own.map((at) => bars.lane[at]), base: own.map((at) => bars.start[at] / unit[0]), x: own.map((at) => Math.max(bars.end[at] - bars.start[at], seconds / 4000) / unit[0]),
      text: own.map((at) => words(bars, at)), textposition: "none", hovertemplate: "%{text}<extra></extra>",
      marker: { color: bad ? (theme.dark ? "#ff9a66" : "#000000") : stageColour(name), opacity: running ? 0.55 : 1, line: { width: 0 }, pattern: bad ? { shape: "x", fillmode: "overlay", fgopacity: 0.6 } : stagePattern(name) },
    };
  });
  const tall = Math.max(10, Math.min(34, 560 / lanes.length));
  const rows = lanes.map((lane, at) => [lane, found.jobs[at], duration(found.busy[at]), seconds ? `${(100 * Math.min(1, found.busy[at] / seconds)).toFixed(0)} %` : ""]);
  const drawn = bars.start.length < found.attempts ? ` In the chart neighbours are joined where they are too short to be told apart: ${bars.start.length.toLocaleString("en")} bars for ${found.attempts.toLocaleString("en")} attempts.` : "";
  return {
    traces, rows, headings: ["device", "attempts at jobs", "in use", "of the run"],
    note: `In use for ${duration(sum(found.busy))}, loading of models included: ${lanes.length} device${lanes.length === 1 ? "" : "s"} in ${duration(seconds)}.${drawn}`,
    layout: {
      height: Math.round(130 + tall * lanes.length), barmode: "overlay", bargap: 0.2, showlegend: true,
      xaxis: { title: `${unit[1]} since the run began`, range: [0, seconds / unit[0]], zeroline: false },
      yaxis: { tickvals: lanes.map((_, at) => at), ticktext: names, range: [lanes.length - 0.5, -0.5], fixedrange: true, showgrid: false },
    },
  };
}

const rank = (kind) => { const [name] = JSON.parse(kind); return stages.includes(name) ? stages.indexOf(name) : 1000; };

function words(bars, at) {
  const long = bars.end[at] - bars.start[at], many = bars.jobs[at] > 1;
  const said = [brief(bars.name[at], 90), `${bars.stage[at]}, ${bars.outcome[at]}, ${duration(long)}${many ? `, ${bars.jobs[at]} attempts, busy ${(100 * bars.busy[at] / Math.max(long, 1e-9)).toFixed(0)} %` : ""}`];
  return said.map(label).join("<br>");
}

// -- cost -----------------------------------------------------------------------------------------------------

const AMOUNTS = { device_s: "device seconds without loading", load_s: "seconds of loading", flops: "FLOPs", tokens: "tokens" };

function cost() {
  const all = runs.flatMap((run) => run.stages.map((one) => ({ ...one, run })));
  const kinds = Object.entries(AMOUNTS).filter(([name]) => all.some((one) => one[name]));
  if (!kinds.length) return;
  const section = part("cost", "Cost", "Cost by stage", `All rounds, references and seeds together, as far as they were carried out, by this run or one before it.${several ? " What several runs share is counted in each of them." : ""}`);
  new Chart(section, "What each stage of each method took", [
    { name: "kind", label: "Amount", options: kinds },
    { name: "place", label: "Dataset and model", options: placesOf(all) },
  ], (state) => drawCost(all, state));
}

function drawCost(all, { kind, place }) {
  const own = all.filter((one) => one.place === place), names = unique(own.map((one) => nameIn(one.run, one.algo)));
  const byStage = [...grouped(own.filter((one) => one[kind]), (one) => one.stage)].sort(([one], [other]) => stages.indexOf(one) - stages.indexOf(other));
  const traces = byStage.map(([stage, some]) => ({
    type: "bar", orientation: "h", name: label(stage), y: some.map((one) => label(shortName(nameIn(one.run, one.algo), 28))), x: some.map((one) => one[kind]),
    text: some.map((one) => label(`${nameIn(one.run, one.algo)}, ${stage}: ${kind.endsWith("_s") ? duration(one[kind]) : withPrefix(one[kind])}`)), textposition: "none", hovertemplate: "%{text}<extra></extra>",
    marker: { color: stageColour(stage), pattern: stagePattern(stage) },
  }));
  const unknown = own.filter((one) => one[kind] === null).length;
  return {
    traces, note: unknown ? `Of ${unknown} stage${unknown === 1 ? "" : "s"} the amount is not known.` : "",
    rows: own.map((one) => [nameIn(one.run, one.algo), one.stage, one.device_s, one.load_s, withPrefix(one.flops), withPrefix(one.tokens)]), headings: ["algorithm", "stage", "device seconds", "loading s", "FLOPs", "tokens"],
    layout: { barmode: "stack", bargap: 0.25, height: Math.round(120 + Math.max(16, Math.min(34, 800 / names.length)) * names.length), showlegend: true, xaxis: { title: AMOUNTS[kind], exponentformat: "SI" }, yaxis: { type: "category", categoryorder: "array", categoryarray: names.toReversed().map((one) => label(shortName(one, 28))), fixedrange: true, showgrid: false, dtick: 1 } },
  };
}

// -- failures -------------------------------------------------------------------------------------------------

function failures() {
  const section = part("failures", "Failures", "Failures and retries");
  for (const run of runs) {
    const { rows, left_out: more, notes } = run.failures;
    if (several) section.append(make("h3", {}, titleOf(run)));
    if (!rows.length && !notes.length) section.append(make("p", { class: "said" }, "No attempt at any job failed."));
    for (const note of notes) section.append(make("p", {}, note));
    if (!rows.length) continue;
    const head = ["job", "attempt", "device", "kind", "what went wrong", "then"];
    const cells = (one) => [one.job, String(one.attempt), one.device, one.kind].map((text) => make("td", {}, text));
    const why = (one) => make("td", { class: "wrap" }, one.reason, one.traceback ? folded("traceback", () => make("pre", { class: "wrap" }, one.traceback)) : null, one.log ? make("div", { class: "dim small" }, one.log) : null);
    const body = rows.map((one) => make("tr", { class: "end" }, cells(one), why(one), make("td", {}, one.outcome)));
    section.append(make("div", { class: "scroll", tabindex: "0" }, make("table", {}, make("thead", {}, make("tr", {}, head.map((one) => make("th", { scope: "col" }, one)))), make("tbody", {}, body))));
    if (more) section.append(make("p", { class: "dim" }, `and ${more.toLocaleString("en")} more`));
  }
}
