// pass@k curves and training curves.

// ---- pass@k --------------------------------------------------------------------------------------------------------

function passCurves() {
  const at = body("curves");
  if (!DATA.scores.some(Boolean)) {
    at.append(el("p", { class: "note" }, "There is nothing to draw without a complete evaluation."));
    return;
  }
  const state = { metric: "pass", bands: true, hidden: new Set() },
    made = new Map();
  const grid = el("div", { class: "charts" });
  const draw = (g) => {
    const lines = visible(EVALS)
      .filter((run) => DATA.scores[run]?.[g])
      .map((run) => {
        const by = DATA.scores[run][g][state.metric],
          ks = Object.keys(by)
            .map(Number)
            .sort((a, b) => a - b);
        return {
          run,
          label: plainName(run),
          x: ks,
          y: ks.map((k) => by[k][0]),
          low: ks.map((k) => by[k][1]),
          high: ks.map((k) => by[k][2]),
        };
      });
    made.get(g).draw({
      x: "k (samples drawn)",
      short: "k",
      log2: true,
      within: [0, 1],
      lines,
      bands: state.bands && lines.length <= 12,
      format: share,
    });
  };
  const all = () =>
    groups().forEach((g) => {
      made.get(g).figure.hidden = state.hidden.has(g);
      if (!state.hidden.has(g) && made.get(g).spec) draw(g);
    });
  for (const g of groups()) {
    const chart = new Chart(g === AVERAGE ? "Average of the tasks" : g);
    made.set(g, chart);
    grid.append(chart.figure);
    whenNear(chart.figure, () => draw(g));
  }
  const toggles =
    groups().length > 1
      ? el(
          "fieldset",
          { class: "choice" },
          el("legend", {}, "Tasks"),
          groups().map((g) =>
            check(g, true, (on) => {
              if (on) state.hidden.delete(g);
              else state.hidden.add(g);
              all();
            }),
          ),
        )
      : null;
  at.append(
    el(
      "div",
      { class: "controls" },
      measure((v) => {
        state.metric = v;
        all();
      }),
      check("Intervals", true, (on) => {
        state.bands = on;
        all();
      }),
      toggles,
    ),
    grid,
  );
  watchers.push(all);
}

// ---- training ------------------------------------------------------------------------------------------------------

const TITLES = {
  reward: "Training reward",
  kl_ref: "KL, plain reference (kl_ref)",
  entropy: "Entropy (nats per token)",
  "completions/clipped_ratio": "Truncated completions (share)",
  "sage/zero_variance_groups": "Groups without variance (share)",
  "sage/active": "Guide: tokens with q ≠ 1 (share)",
  "sage/q_mean": "Guide: mean q",
  kl: "KL, shaped anchor (kl)",
  grad_norm: "Gradient norm",
};

function trainingCurves() {
  const at = body("training"),
    names = Object.keys(DATA.training.series);
  if (!names.length) {
    at.append(
      el(
        "p",
        { class: "note" },
        "No training run was found: sage-rlvr train writes log.jsonl into its folder, and it will be drawn here.",
      ),
    );
    return;
  }
  const main = names.filter((n) => n in TITLES || n.startsWith("held_out/")),
    rest = names.filter((n) => !main.includes(n));
  const state = { smooth: 0, other: rest[0] },
    made = new Map(),
    grid = el("div", { class: "charts three" });
  const draw = (name, chart = made.get(name)) => {
    const by = DATA.training.series[name];
    const lines = visible(TRAINS)
      .filter((run) => by[run])
      .map((run) => ({
        run,
        label: plainName(run),
        x: by[run][0],
        y: smoothed(by[run][1], name.startsWith("held_out/") ? 0 : state.smooth),
      }));
    chart.draw({ x: "step", lines, sync: true });
  };
  for (const name of main) {
    const chart = new Chart(TITLES[name] || name.replace("held_out/", "Held out: "));
    made.set(name, chart);
    grid.append(chart.figure);
    whenNear(chart.figure, () => draw(name));
  }
  const parts = [];
  const all = () => {
    main.forEach((n) => made.get(n).spec && draw(n));
    parts.forEach((f) => f());
  };
  at.append(
    el(
      "div",
      { class: "controls" },
      choice(
        "Smoothing",
        [
          ["0", "None"],
          ["0.8", "Some"],
          ["0.95", "Much"],
        ],
        "0",
        (v) => {
          state.smooth = Number(v);
          all();
        },
      ),
    ),
    grid,
  );
  if (DATA.training.averaged_over > 1)
    at.append(
      el(
        "p",
        { class: "note" },
        `Long runs are thinned to keep the page small: a point is the mean of up to ${DATA.training.averaged_over} logged steps.`,
      ),
    );
  if (rest.length) {
    const holder = el("div", { class: "charts" }),
      chart = new Chart("Other logged numbers");
    const other = () => {
      if (chart.spec) {
        chart.figure.querySelector("figcaption").textContent = state.other;
        chart.title = state.other;
        draw(state.other, chart);
      }
    };
    holder.append(chart.figure);
    whenNear(chart.figure, () => {
      chart.spec = {};
      other();
    });
    parts.push(other);
    at.append(
      el(
        "div",
        { class: "controls" },
        select(
          "Everything else that was logged",
          rest.map((n) => [n, n]),
          state.other,
          (n) => {
            state.other = n;
            other();
          },
        ),
      ),
      holder,
    );
  }
  watchers.push(all);
}

/** Exponential mean, started at the first value. */
function smoothed(values, keep) {
  if (!keep) return values;
  let now = null;
  return values.map((v) => {
    if (v !== null) now = now === null ? v : keep * now + (1 - keep) * v;
    return v === null ? null : now;
  });
}
