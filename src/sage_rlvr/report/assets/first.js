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
    );
    return;
  }
  const groups = Object.keys(first.groups),
    references = Object.keys(first.references);
  const state = { group: groups[0], reference: references[references.length - 1] };
  const where = document.getElementById("first-title"),
    said = el("p", { class: "answer" }),
    rows = el("div", {}),
    picture = el("figure", { class: "chart" }),
    holder = el("div", {});
  const draw = () => {
    const group = first.groups[state.group];
    where.replaceChildren(...title(state.group, group));
    said.replaceChildren(el("bdi", {}, group.verdict[state.reference].filter(Boolean).join(" ")));
    rows.replaceChildren(variantTable(group, state.reference));
    picture.replaceChildren(
      el("figcaption", {}, `pass@1 and pass@${group.k}, with ${percent()} intervals`),
      plane(points(group), "pass@1", `pass@${group.k}`),
    );
    holder.replaceChildren(firstSupport(state.group === AVERAGE ? TASKS[0] : state.group));
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
  at.append(said, controls, el("div", { class: "first" }, rows, el("div", { class: "beside" }, picture, holder)));
  draw();
}

function title(name, group) {
  const seeds = DATA.first.variants.slice(1).map((v) => v.seeds),
    fewest = Math.min(...seeds);
  return [
    `${name === AVERAGE ? `mean of ${TASKS.join(", ")}` : name}: ${number(group.problems)} problems × ${number(group.n)} samples`,
    seeds.length ? `, ${fewest === Math.max(...seeds) ? fewest : `${fewest} to ${Math.max(...seeds)}`} seed${Math.max(...seeds) > 1 ? "s" : ""} per variant` : "",
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

function variantTable(group, reference) {
  const ks = [...new Set([1, group.k])],
    variants = DATA.first.variants,
    at = DATA.first.references[reference];
  const all = group.rows.flatMap((r) => ks.map((k) => r.minus[reference]?.[k]).filter(Boolean));
  const widest = Math.max(0.01, ...all.flatMap((t) => t.filter((x) => x !== null).map(Math.abs)));
  const rows = variants.map((v, i) => {
    const row = group.rows[i];
    return [
      el(
        "span",
        { class: "variant" },
        el("span", { class: "run" }, swatch(v.runs[0], i), el("bdi", {}, v.name)),
        v.words ? el("small", {}, el("bdi", {}, v.words)) : null,
        row.flags.map((f) => el("span", { class: "flag" }, f)),
      ),
      ...ks.map((k) => {
        const t = row.minus[reference]?.[k];
        if (!t) return el("span", {}, share(row.pass[k][0]), el("small", {}, all.length ? " (reference)" : ""));
        return el(
          "span",
          { class: "difference" },
          dot(t, widest, i),
          el(excludesZero(t) ? "strong" : "span", {}, signed(t[0])),
          t[1] === null ? null : el("small", {}, `[${signed(t[1])}, ${signed(t[2])}]`),
        );
      }),
      i === 0 ? "–" : `${tenth(row.lost)} | ${tenth(row.gained)}`,
      row.distinct === null ? "–" : row.distinct.toFixed(2),
      row.truncated === null ? "–" : `${(100 * row.truncated).toFixed(1)}%`,
    ];
  });
  const head = [
    "Variant",
    ...ks.map((k) => `pass@${k}${all.length ? ` minus ${at === 0 ? reference : variants[at].name}` : ""}`),
    "Lost | gained",
    "Distinct",
    "Truncated",
  ];
  return el(
    "div",
    { class: "variants" },
    table(head, rows, "One row per variant"),
    all.length &&
      el(
      "p",
      { class: "note" },
      `Dots: paired differences with ${percent()} intervals over ${Math.max(...variants.map((v) => v.seeds)) > 1 ? "seeds and problems" : "problems"}; filled where the interval excludes 0. Distinct: different right solutions per problem. Lost, gained: problems that only ${variants[0].name}, or only the variant, solves in ${number(group.n)} samples (mean over seeds).`,
    ),
  );
}

const tenth = (x) => String(Number(x.toFixed(1)));

/** The support grid of one task, one row per variant (its first seed). */
function firstSupport(task) {
  const runs = DATA.first.variants.map((v) => v.runs[0]);
  const drawn = runs.map((r) => drawnOf(task, r)).filter((d) => d > 0);
  const grid = new SupportGrid(task, { base: runs[0], budget: Math.min(...drawn), order: "hard", runs });
  grid.label = (run) => DATA.first.variants[runs.indexOf(run)].name;
  const figure = grid.figure;
  figure.classList.add("small");
  whenNear(figure, () => grid.update(), false);
  addEventListener("resize", () => grid.draw());
  firstSupport.now = grid;
  return figure;
}

watchers.push(() => firstSupport.now?.runs && firstSupport.now.draw());
