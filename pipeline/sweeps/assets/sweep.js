// The page of a sweep: its parts in order, what went wrong, what it was made of.

function failures() {
  if (!data.failures.length) return;
  const section = part("failures", "Failures", "Trials that were not done");
  const head = ["trial", "state", "attempts", "what went wrong", "parameters"];
  const why = (one) => make("td", { class: "wrap" }, one.reason, one.tail ? folded("the end of its log", () => make("pre", { class: "wrap" }, one.tail)) : null, make("div", { class: "dim small" }, one.log));
  const body = data.failures.slice(0, MOST_ROWS).map((one) => make("tr", { class: "end" }, make("td", { class: "right" }, String(one.trial)), make("td", { class: `trial-${one.state}` }, one.state), make("td", { class: "right" }, String(one.attempts)), why(one), make("td", { class: "wrap" }, one.parameters)));
  section.append(make("div", { class: "scroll", tabindex: "0" }, make("table", {}, make("thead", {}, make("tr", {}, head.map((one) => make("th", { scope: "col" }, one)))), make("tbody", {}, body))));
}

function about() {
  const section = part("about", "Settings", data.command ? "How to go on with it" : "What was searched");
  if (data.command) section.append(copied(data.command));
  if (data.file) section.append(make("p", { class: "dim small" }, "The sweep file:"), make("pre", {}, data.file));
  section.append(folded("Folder", () => simpleTable(["what", "is"], data.about)));
}

head(data.state);
atTheTop(data.unfinished, data.facts);
trialTable();
history();
parallel();
importance();
slices();
front();
curves();
failures();
about();
finish();
