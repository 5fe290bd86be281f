// The results table.

const AVERAGE = "average";
const groups = () => [...TASKS, ...(DATA.scores.some((s) => s && s[AVERAGE]) ? [AVERAGE] : [])];
const budgets = () =>
  [
    ...new Set(DATA.scores.flatMap((s) => (s ? Object.values(s).flatMap((g) => Object.keys(g.pass).map(Number)) : []))),
  ].sort((a, b) => a - b);
const percent = () => `${Math.round(DATA.level * 100)}%`;

// ---- the table -----------------------------------------------------------------------------------------------------

function resultsTable() {
  const at = body("results");
  if (!DATA.scores.some(Boolean)) {
    at.append(el("p", { class: "note" }, "No evaluation has a complete problem yet: sage-rlvr eval makes one."));
    return;
  }
  const ks = budgets(),
    state = { view: "own", k: ks[ks.length - 1], metric: "pass", sort: null, down: true };
  const holder = el("div", {}),
    note = el("p", { class: "note" });
  const draw = () => {
    holder.replaceChildren(scores(state, draw));
    note.textContent = resultNote(state);
  };
  const views = [
    ["own", "Each run"],
    ...(DATA.paired ? [["paired", `Difference from ${plainName(DATA.paired.first)}`]] : []),
  ];
  at.append(
    el(
      "div",
      { class: "controls" },
      choice("Show", views, "own", (v) => {
        state.view = v;
        draw();
      }),
      measure((v) => {
        state.metric = v;
        draw();
      }),
      select(
        "k on the right",
        ks.filter((k) => k > 1 || ks.length === 1).map((k) => [k, k]),
        state.k,
        (k) => {
          state.k = Number(k);
          draw();
        },
      ),
    ),
    holder,
    note,
  );
  if (DATA.paired && DATA.paired.notes.length)
    at.append(
      el(
        "ul",
        { class: "notes" },
        DATA.paired.notes.map((n) => el("li", {}, el("bdi", {}, n))),
      ),
    );
  draw();
}

function resultNote(state) {
  if (state.view === "paired")
    return `Mean of the differences, problem by problem, on the problems all complete runs share, with its ${percent()} interval. Bold: the interval excludes 0. pass@k only.`;
  const bold =
    DATA.paired && state.metric === "pass"
      ? " Bold: better than every other complete run on the shared problems, each paired interval excluding 0."
      : "";
  return `Brackets and bars are ${percent()} intervals over problems. Each run counts on its own complete problems.${bold}`;
}

/** [value, low, high, bold] of one cell, or null. */
function score(state, run, group, k) {
  if (state.view === "paired") {
    const cell = DATA.paired.rows[run]?.[group]?.[k];
    return cell && cell[4] ? [...cell[4], cell[4][1] > 0 || cell[4][2] < 0] : null;
  }
  const own = DATA.scores[run]?.[group]?.[state.metric]?.[k];
  return own ? [...own, state.metric === "pass" && Boolean(DATA.paired?.rows[run]?.[group]?.[k]?.[3])] : null;
}

function scores(state, again) {
  const columns = groups().flatMap((g) => [...new Set([1, state.k])].map((k) => [g, k]));
  const value = (run, [g, k]) => score(state, run, g, k)?.[0] ?? -Infinity;
  const order = EVALS.filter((run) => DATA.scores[run]);
  if (state.sort !== null)
    order.sort((a, b) => (value(b, columns[state.sort]) - value(a, columns[state.sort])) * (state.down ? 1 : -1));
  const head = columns.map(([g, k], i) => {
    const sorted = state.sort === i;
    return el(
      "th",
      { scope: "col", "aria-sort": sorted ? (state.down ? "descending" : "ascending") : "none" },
      el(
        "button",
        {
          type: "button",
          class: "sort",
          onclick: () => {
            state.down = sorted ? !state.down : true;
            state.sort = i;
            again();
            holderFocus(i);
          },
        },
        `${state.metric === "pass" || state.view === "paired" ? "pass" : "majority"}@${k}`,
        el("span", { "aria-hidden": "true" }, sorted ? (state.down ? " ↓" : " ↑") : " ↕"),
      ),
    );
  });
  const holderFocus = (i) => document.querySelectorAll("#results .sort")[i]?.focus();
  const tops = groups().map((g) => el("th", { scope: "colgroup", colspan: new Set([1, state.k]).size }, g));
  const all = state.view === "paired" ? order.flatMap((run) => columns.map(([g, k]) => score(state, run, g, k))) : [];
  const widest = Math.max(0, ...all.filter(Boolean).flatMap((t) => [Math.abs(t[1]), Math.abs(t[2]), 0.01]));
  const rows = order.map((run) =>
    el(
      "tr",
      {},
      el(
        "th",
        { scope: "row" },
        el(
          "span",
          { class: "run" },
          swatch(run),
          el("bdi", {}, plainName(run)),
          DATA.runs[run].status === "complete"
            ? null
            : el("span", { class: "warn", title: DATA.runs[run].status }, " ◑"),
        ),
      ),
      columns.map(([g, k]) => cell(score(state, run, g, k), widest)),
    ),
  );
  return el(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "Results with intervals" },
    el(
      "table",
      { class: "scores" },
      el(
        "caption",
        {},
        state.view === "paired" ? `Difference from ${plainName(DATA.paired.first)}` : "Score of each run",
      ),
      el("thead", {}, el("tr", {}, el("th", { scope: "col", rowspan: 2 }, "Run"), tops), el("tr", {}, head)),
      el("tbody", {}, rows),
    ),
  );
}

/** The number, its interval in words, and as a bar on a fixed scale (0 to 1; for differences as wide as the widest interval). */
function cell(t, widest) {
  const signed = widest > 0;
  if (!t) return el("td", { class: "none" }, signed ? "(reference)" : "–");
  const text = (x) =>
    x === null ? "–" : signed ? (x > 0 ? "+" : x < 0 ? "−" : "") + Math.abs(x).toFixed(3) : share(x);
  const pin = (x) => Math.min(100, Math.max(0, signed ? 50 + (50 * x) / widest : 100 * x));
  const bar = el("span", { class: "whisker", "aria-hidden": "true" }, el("i", {}), el("b", {}));
  if (t[1] !== null) {
    bar.children[0].style.left = `${pin(t[1])}%`;
    bar.children[0].style.width = `${Math.max(1, pin(t[2]) - pin(t[1]))}%`;
  }
  bar.children[1].style.left = `${pin(t[0])}%`;
  if (signed) bar.classList.add("signed");
  return el(
    "td",
    {},
    el(t[3] ? "strong" : "span", {}, text(t[0])),
    t[1] === null ? null : el("small", {}, ` [${text(t[1])}, ${text(t[2])}]`),
    bar,
  );
}
