// The first screen: which variant is best, is it real, what was lost.

function firstScreen() {
  const at = body("first"),
    first = DATA.first;
  if (!first) {
    at.append(
      el(
        "p",
        { class: "answer" },
        TRAINS.length && !EVALS.length
          ? "Nothing is evaluated yet: the curves below are what training logged."
          : "No two complete evaluations share a problem: the sections below show each run by itself.",
      ),
      el(
        "ul",
        { class: "notes" },
        TRAINS.filter((run) => DATA.runs[run].flags.length).map((run) =>
          el("li", {}, el("bdi", {}, plainName(run)), ": ", flags(DATA.runs[run].flags)),
        ),
      ),
    );
    return;
  }
  const groups = Object.keys(first.groups),
    references = Object.keys(first.references),
    alone = first.variants.length === 1;
  const state = { group: groups[0], reference: references[references.length - 1] };
  const where = document.getElementById("first-title"),
    said = el("p", { class: "answer" }),
    rows = el("div", { class: "variants" }),
    note = el("p", { class: "note" }),
    picture = el("figure", { class: "chart" }),
    holder = el("div", {});
  const drawPlane = () => {
    const group = first.groups[state.group];
    picture.hidden = alone || group.k === 1;
    picture.replaceChildren(
      el("figcaption", {}, `pass@1 and pass@${group.k}, with ${percent()} intervals`),
      picture.hidden ? "" : plane(points(group), "pass@1", `pass@${group.k}`, picture.clientWidth - 34),
    );
  };
  const draw = () => {
    const group = first.groups[state.group];
    where.replaceChildren(...title(state.group, group));
    said.replaceChildren(el("bdi", {}, group.verdict[state.reference].filter(Boolean).join(" ")));
    rows.replaceChildren(variantTable(group, state.reference));
    note.replaceChildren(legendOf(group));
    drawPlane();
    holder.replaceChildren(firstSupport(state.group === AVERAGE ? TASKS[0] : state.group, alone));
  };
  const controls = el(
    "div",
    { class: "controls" },
    references.length > 1
      ? choice(
          "Difference",
          references.map((r) => [r, `against ${r}`]),
          state.reference,
          (r) => {
            state.reference = r;
            draw();
          },
        )
      : null,
    groups.length > 1
      ? select(
          "Task",
          groups.map((g) => [g, g === AVERAGE ? "mean of tasks" : g]),
          state.group,
          (g) => {
            state.group = g;
            draw();
          },
        )
      : null,
  );
  at.append(
    said,
    controls,
    el(
      "div",
      { class: alone ? "first alone" : "first" },
      el("div", { class: "stack" }, rows, holder),
      el("div", { class: "stack" }, picture, note),
    ),
  );
  draw();
  addEventListener("resize", drawPlane);
}

function title(name, group) {
  const seeds = DATA.first.variants.slice(1).map((v) => v.seeds),
    fewest = Math.min(...seeds),
    most = Math.max(...seeds);
  return [
    `${name === AVERAGE ? `mean of ${TASKS.join(", ")}` : name}: ${number(group.problems)} problems × ${number(group.n)} samples`,
    seeds.length ? `, ${fewest === most ? most : `${fewest} to ${most}`} seed${most > 1 ? "s" : ""} per variant` : "",
    seeds.length && fewest < DATA.first.fewest
      ? el("span", { class: "flag few" }, `too few seeds to judge: ${DATA.first.fewest} are needed`)
      : "",
  ];
}

function points(group) {
  return DATA.first.variants.map((v, i) => ({
    name: v.name,
    tint: i,
    x: group.rows[i].pass[1],
    y: group.rows[i].pass[group.k],
    ticks: group.rows[i].ticks[1].map((x, s) => [x, group.rows[i].ticks[group.k][s]]),
  }));
}

const flags = (names) => names.map((name) => el("span", { class: "flag" }, name));
const mean = (xs) => xs.reduce((a, b) => a + b, 0) / xs.length;

/** One row per variant: its words and flags, its two differences (or its own scores where there is no other), what it lost. */
function variantTable(group, reference) {
  const ks = [...new Set([1, group.k])],
    variants = DATA.first.variants,
    at = DATA.first.references[reference],
    alone = variants.length === 1,
    known = (name) => group.rows.some((r) => r[name] !== null);
  const all = group.rows.flatMap((r) => ks.map((k) => r.minus[reference]?.[k]).filter(Boolean));
  const widest = Math.max(0.01, ...all.flatMap((t) => t.filter((x) => x !== null).map(Math.abs)));
  const difference = (row, i, k) => {
    const t = row.minus[reference]?.[k];
    if (alone) return el("span", {}, interval(row.pass[k]));
    if (!t) return el("span", {}, share(row.pass[k][0]), el("small", {}, " (reference)"));
    const middle = mean(group.rows[at].ticks[k]); // of the reference's seeds: the mean of a variant's ticks is its dot
    return el(
      "span",
      { class: "difference" },
      dot(t, widest, i, row.ticks[k].length > 1 ? row.ticks[k].map((x) => x - middle) : []),
      el(excludesZero(t) ? "strong" : "span", {}, signed(t[0])),
      t[1] === null ? null : el("small", {}, `[${signed(t[1])}, ${signed(t[2])}]`),
    );
  };
  const rows = variants.map((v, i) => {
    const row = group.rows[i];
    return [
      el(
        "span",
        { class: "variant" },
        el("span", { class: "run" }, swatch(v.runs[0], i), el("bdi", {}, v.name)),
        el("small", {}, el("bdi", {}, v.words || (DATA.first.references.base === i ? "before training" : ""))),
        row.flags.length ? el("span", { class: "flags" }, flags(row.flags)) : null,
      ),
      ...ks.map((k) => difference(row, i, k)),
      ...(alone ? [] : [i === 0 ? "–" : `${tenth(row.lost)} | ${tenth(row.gained)}`]),
      ...(known("distinct") ? [row.distinct === null ? "–" : row.distinct.toFixed(2)] : []),
      ...(known("truncated") ? [row.truncated === null ? "–" : `${(100 * row.truncated).toFixed(1)}%`] : []),
    ];
  });
  const head = [
    alone ? "Run" : "Variant",
    ...ks.map((k) => `pass@${k}${alone ? "" : ` minus ${at === 0 ? reference : variants[at].name}`}`),
    ...(alone ? [] : [el("span", {}, "Lost | gained", el("small", {}, ` vs ${variants[0].name}`))]),
    ...(known("distinct") ? ["Distinct"] : []),
    ...(known("truncated") ? ["Truncated"] : []),
  ];
  return table(head, rows, alone ? "The run's scores" : "One row per variant");
}

function legendOf(group) {
  const variants = DATA.first.variants,
    seeds = Math.max(...variants.map((v) => v.seeds)) > 1,
    base = variants[0].name;
  const distinct = group.rows.some((r) => r.distinct !== null) ? " Distinct: different right solutions per problem." : "";
  if (variants.length === 1) return `Brackets: ${percent()} Student t intervals over problems; the table of results below resamples the problems instead.${distinct}`;
  return (
    `Dots: paired differences with ${percent()} intervals over ${seeds ? "seeds and problems" : "problems"}, filled where the interval excludes 0.` +
    `${seeds ? " Ticks: single seeds." : ""} Lost, gained: problems that only ${base}, or only the variant, solves in ${number(group.n)} samples` +
    `${seeds ? " (mean over seeds)" : ""}.${distinct}`
  );
}

const tenth = (x) => String(Number(x.toFixed(1)));

/** The support grid of one task, one row per variant (its first seed), all problems in view where a pixel each is enough. */
function firstSupport(task, alone) {
  const { variants } = DATA.first,
    runs = variants.map((v) => v.runs[0]),
    drawn = runs.map((r) => drawnOf(task, r)).filter((d) => d > 0),
    budget = Math.min(...drawn),
    total = number(DATA.tasks[task].problems.length),
    first = variants.some((v) => v.seeds > 1) ? ", first seed of each" : "";
  const grid = new SupportGrid(task, { base: runs[0], budget, order: "hard", runs, least: 1 });
  grid.label = (run) => variants[runs.indexOf(run)].name;
  grid.rest = "";
  const solvedBy = supportMetrics(task, runs[0], runs[0], budget).P;
  grid.caption = alone
    ? `${task}: solves ${number(solvedBy)} of ${total} problems in ${number(budget)} samples, hardest left`
    : `${task}: who solves which of ${total} problems, hardest left${first}`;
  const names = alone
    ? { P: "solved", O: "not solved" }
    : { P: "solved by both", E: "gained", S: `lost: ${variants[0].name} solves it`, O: "solved by neither" };
  const figure = grid.figure;
  figure.classList.add("small");
  figure.querySelector("figcaption").after(signKey(names));
  whenNear(figure, () => grid.update(), false);
  addEventListener("resize", () => grid.draw());
  firstSupport.now = grid;
  return figure;
}

watchers.push(() => firstSupport.now?.runs && firstSupport.now.draw());
