// The runs, what they were made with, and what is wrong with any of them.

function overview() {
  const at = body("overview");
  const half = DATA.runs.filter((r) => r.status !== "complete");
  const samples = DATA.runs.reduce((sum, r) => sum + (r.samples || 0), 0);
  const problems = TASKS.reduce((sum, t) => sum + DATA.tasks[t].problems.length, 0);
  const tile = (value, label) => el("div", { class: "tile" }, el("b", {}, value), el("span", {}, label));
  at.append(
    el(
      "div",
      { class: "tiles" },
      tile(number(EVALS.length), EVALS.length === 1 ? "evaluation" : "evaluations"),
      tile(number(TRAINS.length), TRAINS.length === 1 ? "training run" : "training runs"),
      tile(number(TASKS.length), TASKS.length === 1 ? "task" : "tasks"),
      tile(number(problems), "problems"),
      tile(number(samples), "completions"),
    ),
  );
  const wrong = [
    ...Object.entries(DATA.absent).map(([name, why]) => [name, why, "not shown"]),
    ...half.map((r) => [r.name, r.status, "shown as far as it goes"]),
  ];
  if (wrong.length) {
    at.append(
      el(
        "div",
        { class: "notice", id: "wrong" },
        el(
          "h3",
          {},
          `${wrong.length} of ${DATA.runs.length + Object.keys(DATA.absent).length} runs ${wrong.length === 1 ? "is" : "are"} not whole`,
        ),
        el(
          "ul",
          {},
          wrong.map(([name, why, how]) =>
            el("li", {}, el("bdi", {}, el("b", {}, name)), ` (${how}): `, el("bdi", {}, why)),
          ),
        ),
      ),
    );
  }
  const notes = DATA.runs.flatMap((r) => r.notes.map((note) => [r.name, note]));
  if (notes.length)
    at.append(
      el(
        "details",
        { class: "data", open: notes.length < 6 },
        el("summary", {}, `Notes (${notes.length})`),
        el(
          "ul",
          { class: "notes" },
          notes.map(([name, note]) => el("li", {}, el("bdi", {}, el("b", {}, name)), ": ", el("bdi", {}, note))),
        ),
      ),
    );
  at.append(runsTable());
  at.append(settings());
}

function runsTable() {
  const size = (r) =>
    r.kind === "training"
      ? `${number(r.steps)} steps`
      : Object.entries(r.tasks)
          .map(([t, [p, n, s]]) => `${t} ${p} × ${n}${s > 1 ? ` × ${s} seeds` : ""}`)
          .join(", ");
  const status = (r) =>
    r.status === "complete"
      ? r.flags?.length
        ? el("span", { class: "warn" }, `complete, but: ${r.flags.join(", ")}`)
        : "complete"
      : el("span", { class: "warn" }, "◑ half finished");
  const rows = DATA.runs.map((r, i) => [
    el("span", { class: "run" }, swatch(i), el("bdi", {}, r.name)),
    r.kind,
    el("bdi", { class: "wrap" }, r.model || "–"),
    status(r),
    el("span", { class: "wrap" }, size(r)),
    r.samples === undefined ? "–" : number(r.samples),
    el(
      "span",
      { class: "wrap" },
      Object.entries(r.about)
        .map(([k, v]) => `${k} ${v}`)
        .join(", ") || "not recorded",
    ),
  ]);
  return table(
    ["Run", "Kind", "Model", "Status", "Problems × samples", "Completions", "Machine, commit"],
    rows,
    "Runs",
  );
}

/** What differs between runs of a kind, side by side; the rest once. Made when it is opened. */
function settings() {
  const flat = (x, path = "") =>
    Object.entries(x || {}).flatMap(([k, v]) =>
      v && typeof v === "object" && !Array.isArray(v) && Object.keys(v).length
        ? flat(v, `${path}${k}.`)
        : [[path + k, JSON.stringify(v)]],
    );
  const part = (kind, runs) => {
    if (!runs.length) return null;
    const maps = runs.map((i) => new Map(flat(DATA.runs[i].settings)));
    const names = [...new Set(maps.flatMap((m) => [...m.keys()]))].sort();
    const differs = names.filter((n) => maps.some((m) => m.get(n) !== maps[0].get(n)));
    const same = names.filter((n) => !differs.includes(n));
    const cell = (v) => el("bdi", { class: "wrap" }, v === undefined ? "–" : v);
    return el(
      "div",
      {},
      el("h3", {}, `Settings of the ${kind}`),
      differs.length
        ? table(
            ["Setting", ...runs.map(plainName)],
            differs.map((n) => [n, ...maps.map((m) => cell(m.get(n)))]),
            `${kind}: settings that differ`,
          )
        : el("p", { class: "note" }, runs.length > 1 ? "All runs have the same settings." : ""),
      same.length
        ? behind(`settings that all ${kind} share`, () => [
            ["Setting", "Value"],
            same.map((n) => [n, cell(maps[0].get(n))]),
          ])
        : null,
    );
  };
  const details = el("details", { class: "data", id: "settings" }, el("summary", {}, "Settings"));
  details.addEventListener("toggle", () => {
    if (details.children.length === 1)
      details.append(...[part("evaluations", EVALS), part("trainings", TRAINS)].filter(Boolean));
  });
  return details;
}

function foot() {
  const made = Object.entries(DATA.made)
    .map(([k, v]) => `${k} ${v}`)
    .join(" · ");
  document
    .getElementById("foot")
    .append(
      el("p", {}, `Made ${made}`),
      el("p", {}, "Charts: uPlot 1.6.32 (MIT). Nothing is fetched from the network."),
    );
}
