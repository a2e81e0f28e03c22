// Completions to be read: those to one prompt side by side, a column for each method, its rounds below each other.

const PROMPTS_AT_ONCE = 6;

/** The prompts of all runs with their completions; of runs with the same prompt these come together. */
function promptsOf() {
  const found = new Map();
  for (const run of runs) {
    for (const prompt of run.samples.prompts) {
      const key = JSON.stringify([prompt.place, prompt.row, prompt.text]);
      if (!found.has(key)) found.set(key, { ...prompt, answers: [] });
      for (const { algo, chain, round, answers } of prompt.policies) {
        found.get(key).answers.push(...answers.map(([text, reward, correct]) => ({ policy: nameIn(run, algo), chain, round, text, reward, correct })));
      }
    }
  }
  return [...found.values()];
}

/** Methods in order: references first. */
const inOrder = (names) => names.sort((one, other) => other.endsWith(REFERENCE) - one.endsWith(REFERENCE) || everyName.indexOf(one) - everyName.indexOf(other));

function samples() {
  if (!runs.some((run) => run.samples.prompts.length)) return;
  const section = part("samples", "Samples", "Samples", saidOfRuns((run) => run.samples.about));
  const prompts = promptsOf(), answers = prompts.flatMap((prompt) => prompt.answers);
  const names = inOrder(unique(answers.map((one) => one.policy))), chains = unique(answers.map((one) => one.chain)), rounds = unique(answers.map((one) => one.round)).sort((a, b) => a - b);
  const asked = { text: "", place: "", chain: "", round: "", verdict: "", least: null, hidden: new Set(names.slice(12)), shown: PROMPTS_AT_ONCE };
  if (chains.length > 2) asked.chain = chains.find((one) => answers.some((other) => other.chain === one && !other.policy.endsWith(REFERENCE))) ?? "";
  const count = make("p", { class: "said", role: "status" }), list = make("div"), more = make("button", { onclick: () => { asked.shown += PROMPTS_AT_ONCE; show(); } }, "More prompts");
  const show = () => showPrompts(prompts, asked, { count, list, more });
  const change = (name) => (value) => { asked[name] = value; asked.shown = PROMPTS_AT_ONCE; show(); };
  const some = (all, said) => [["", said], ...all.map((one) => [String(one), String(one)])];
  const search = make("input", { type: "search", placeholder: "in prompts and completions", oninput: () => change("text")(search.value) });
  const least = make("input", { type: "number", step: "any", size: "6", oninput: () => change("least")(least.value === "" ? null : Number(least.value)) });
  const methods = names.map((name) => tick(name, !asked.hidden.has(name), (on) => { asked.hidden[on ? "delete" : "add"](name); change("hidden")(asked.hidden); }));
  const controls = [
    make("label", {}, "Search", search),
    places.length > 1 ? choice("Dataset and model", some(unique(prompts.map((one) => one.place)), "all"), "", change("place")) : null,
    rounds.length > 1 ? choice("Round", some(rounds, "all"), "", change("round")) : null,
    chains.length > 1 ? choice("Chain", some(chains, "all"), asked.chain, change("chain")) : null,
    choice("Completions", verdicts(answers), "", change("verdict")),
    make("label", {}, "Reward at least", least),
  ];
  section.append(make("div", { class: "controls" }, controls));
  if (names.length > 1) section.append(make("details", { open: names.length <= 8 }, make("summary", {}, "Methods"), make("div", { class: "controls" }, methods)));
  section.append(count, list, more);
  show();
}

const verdicts = (answers) => answers.some((one) => one.correct !== null)
  ? [["", "all"], ["right", "right"], ["wrong", "wrong"], ["differ", "some right, some wrong"]]
  : [["", "all"], ["differ", "where rewards differ"]];

function showPrompts(prompts, asked, { count, list, more }) {
  const text = asked.text.toLowerCase(), found = [];
  for (const prompt of prompts) {
    if (asked.place && prompt.place !== asked.place) continue;
    const answers = prompt.answers.filter((one) => fits(one, asked));
    if (asked.verdict === "differ" && unique(answers.map((one) => one.correct ?? one.reward)).length < 2) continue;
    const here = `${prompt.text}\n${prompt.solution ?? ""}`.toLowerCase().includes(text) ? answers : answers.filter((one) => one.text.toLowerCase().includes(text));
    if (here.length) found.push([prompt, here]);
  }
  count.textContent = `${found.length.toLocaleString("en")} of ${prompts.length.toLocaleString("en")} prompts, ${sum(found.map(([, answers]) => answers.length)).toLocaleString("en")} completions`;
  list.replaceChildren(...found.slice(0, asked.shown).map(([prompt, answers]) => promptBox(prompt, answers, asked.text)));
  more.hidden = found.length <= asked.shown;
}

/** Whether it is of a chain, or of work that this chain shares with those of other seeds. */
function isOf(one, chain) {
  const shared = "all seeds";
  return one.chain === chain || (one.chain.endsWith(shared) && chain.startsWith(one.chain.slice(0, -shared.length)));
}

function fits(one, { chain, round, verdict, least, hidden }) {
  return !hidden.has(one.policy) && (!chain || isOf(one, chain)) && (!round || String(one.round) === round || one.round === 0)
    && (least === null || (one.reward !== null && one.reward >= least))
    && (verdict === "right" ? one.correct === true : verdict === "wrong" ? one.correct === false : true);
}

function promptBox(prompt, answers, query) {
  const byPolicy = grouped(answers, (one) => one.policy);
  const severalChains = unique(answers.map((one) => one.chain)).length > 1;
  const columns = inOrder([...byPolicy.keys()]).map((name) => {
    const own = byPolicy.get(name);
    const policies = [...grouped(own, (one) => JSON.stringify([one.round, one.chain]))].map(([, some]) => policyBox(some, query, severalChains));
    return make("div", {}, policies);
  });
  const where = [places.length > 1 ? prompt.place : "", `row ${prompt.row}`].filter(Boolean).join(", ");
  return make("div", { class: "prompt" }, make("div", { class: "score" }, where), make("div", { class: "text asked" }, ...hits(prompt.text, query)),
    prompt.solution === null ? null : make("div", { class: "score" }, "right answer: ", make("span", { class: "text" }, ...hits(prompt.solution, query))), make("div", { class: "grid" }, columns));
}

function policyBox(answers, query, severalChains) {
  const { policy, round, chain } = answers[0];
  const title = round === 0 ? policy : `${policy}, round ${round}`;
  return make("div", { class: "policy" }, make("h4", {}, title), severalChains ? make("div", { class: "score" }, chain) : null, answers.map((one) => answerBox(one, query)));
}

function answerBox({ text, reward, correct }, query) {
  const verdict = correct === true ? "✓ right" : correct === false ? "✗ wrong" : "";
  const score = [verdict, reward === null ? "no reward" : `reward ${shown(reward)}`].filter(Boolean).join(", ");
  return make("div", { class: `answer ${correct === true ? "right" : correct === false ? "wrong" : ""}` }, make("div", { class: "text" }, ...hits(text, query)), make("div", { class: "score" }, score));
}

/** A text with what was searched for marked. */
function hits(text, query) {
  if (!query) return [text];
  const found = [], low = text.toLowerCase(), wanted = query.toLowerCase();
  let from = 0;
  for (let at = low.indexOf(wanted); at >= 0; at = low.indexOf(wanted, from)) {
    found.push(text.slice(from, at), make("mark", {}, text.slice(at, at + wanted.length)));
    from = at + wanted.length;
  }
  return [...found, text.slice(from)];
}
