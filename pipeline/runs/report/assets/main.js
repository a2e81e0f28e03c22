// The page of runs: its parts in order, what it was made of.

function top() {
  head(several ? "" : runs[0].state);
  if (!several) atTheTop(runs[0].unfinished, runs[0].facts);
}

/** Of several runs a row for each, and what is missing of any: so that the comparison comes first. */
function eachRun() {
  if (!several) return;
  const section = part("runs", "Runs", "Each run"), names = unique(runs.flatMap((run) => run.facts.map(([name]) => name)));
  const rows = runs.map((run) => [titleOf(run), run.state, ...names.map((name) => new Map(run.facts).get(name) ?? "")]);
  section.append(simpleTable(["run", "state", ...names], rows));
  for (const run of runs.filter((one) => one.unfinished.length)) section.append(make("h3", {}, titleOf(run)), ...warnings(run.unfinished));
}

function about() {
  const section = part("about", "Settings", "How to repeat it");
  for (const run of runs) {
    if (several) section.append(make("h3", {}, titleOf(run)));
    section.append(run.command ? copied(run.command) : make("p", { class: "said" }, "How this run was started was not recorded; its configuration is below."));
    if (run.given.length) section.append(make("p", { class: "dim small" }, "Given on the command line:"), make("pre", { class: "wrap" }, run.given.join("\n")));
    const settings = folded("The whole configuration", () => make("pre", {}, run.config));
    const environment = folded("Environment", () => simpleTable(["what", "is"], run.environment));
    section.append(settings, environment);
  }
}

top();
sideBySide();
eachRun();
resultTables();
race();
curves();
front();
compute();
trainings();
timeline();
cost();
samples();
failures();
about();
finish();
