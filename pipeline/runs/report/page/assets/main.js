// The page: its head, its parts in order, what it was made of.

function head() {
  const top = document.getElementById("top");
  document.title = data.title;
  const button = make("button", { onclick: () => { chosenTheme = theme.dark ? "light" : "dark"; repaint(); }, title: "light or dark" }, "◐ theme");
  const state = several ? [] : [make("span", { class: `state ${runs[0].state}` }, runs[0].state)];
  top.append(make("div", { class: "head" }, make("h1", {}, data.title), ...state, button));
  if (several) return;
  top.append(...unfinished(runs[0]));
  top.append(make("dl", { class: "facts" }, [...runs[0].best, ...runs[0].facts].map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))));
}

const unfinished = (run) => run.unfinished.length ? [make("div", { class: "warning", role: "status" }, run.unfinished.map((line) => make("p", {}, line)))] : [];

/** Of several runs a row for each, and what is missing of any: so that the comparison comes first. */
function eachRun() {
  if (!several) return;
  const section = part("runs", "Runs", "Each run"), names = unique(runs.flatMap((run) => run.facts.map(([name]) => name)));
  const rows = runs.map((run) => [titleOf(run), run.state, ...names.map((name) => new Map(run.facts).get(name) ?? "")]);
  section.append(simpleTable(["run", "state", ...names], rows));
  for (const run of runs.filter((one) => one.unfinished.length)) section.append(make("h3", {}, titleOf(run)), ...unfinished(run));
}

function about() {
  const section = part("about", "Settings", "How to repeat it");
  for (const run of runs) {
    if (several) section.append(make("h3", {}, titleOf(run)));
    section.append(run.command ? copied(run.command) : make("p", { class: "said" }, "How this run was started was not recorded; its configuration is below."));
    if (run.given.length) section.append(make("p", { class: "dim small" }, "Given on the command line:"), make("pre", { class: "wrap" }, run.given.join("\n")));
    const settings = folded("The whole configuration", () => make("pre", {}, run.config));
    const environment = folded("Environment", () => simpleTable(["what", "is"], run.environment));
    const versions = run.versions ? folded("What the stored outputs were made with", () => fullTable(run.versions).filter(Boolean)) : "";
    section.append(settings, environment, versions);
  }
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

function contents() {
  document.getElementById("parts").append(make("div", {}, parts.map(([id, title]) => make("a", { href: `#${id}` }, title))));
}

head();
sideBySide();
eachRun();
resultTables();
curves();
front();
compute();
trainings();
timeline();
cost();
rewards();
samples();
failures();
about();
contents();
document.getElementById("bottom").append(make("p", {}, `Written ${data.made} by pipeline ${data.version}. This file needs no network, and asks nothing of any. Charts: plotly.js, MIT licence.`));
