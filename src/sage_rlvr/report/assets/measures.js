// What the explorer shades tokens by. Traces hold surprisal, reference surprisal, entropy and q; the rest follows from them.
// With w = q·π_ref/π, the pull is the slope of the run's own penalty in log π: above 0 it pushes the token down.

const MEASURES = {
  effect: ["Guide's effect", "the pull with q minus the pull with q = 1"],
  pull: ["Pull", "how hard the anchor pushes: above 0 the token down, below 0 up"],
  shift: ["Shift", "log π − log π_ref: how far training has moved the token, in nats"],
  entropy: ["Entropy", "how open the choice was, in nats"],
  surprisal: ["Surprisal", "−log π of the token, in nats"],
};
const PULLS = { k3: "1 − w", forward: "−w", k2: "−log w", "k3+": "−log w", "k1-reward": "−log w, minus its bonus", "forward-value": "−w·log w" };

/** Settings of the training behind an evaluation; {} where it is not in the page. */
function trainedWith(run) {
  const own = plainName(run).split("/").slice(0, -1).join("/");
  const train = TRAINS.find((t) => [own, `${own}/train`].includes(plainName(t).replace(" (training)", "")));
  return DATA.runs[train]?.settings ?? {};
}

/** The estimator that the run was trained with; k3 where its training is not in the page. */
const estimatorOf = (run) => trainedWith(run).anchor_estimator ?? DATA.traces?.[run]?.with?.estimator ?? "k3";

/** Tells the rest of the page which token is read, with its stored numbers in nats (null: not stored). */
function tellToken(run, sample, i, at) {
  const trace = sample.trace,
    settings = trainedWith(run),
    made = DATA.traces?.[run]?.with ?? {},
    stored = (name) => (trace[name]?.[at]?.[i] ?? null) === null ? null : trace[name][at][i] / 1000,
    minus = (x) => (x === null ? null : -x),
    q = stored("q");
  const detail = {
    run: plainName(run),
    task: sample.t,
    problem: sample.p,
    completion: { seed: sample.s, index: sample.i },
    checkpoint: trace.checkpoints[at],
    index: i, // of the token, from 0
    token: trace.tokens[i],
    estimator: estimatorOf(run),
    beta: settings.beta ?? null,
    guide: made.guide ?? settings.guide ?? null,
    guideArgs: made.guide_args ?? settings.guide_args ?? null,
    logp: minus(stored("surprisal")),
    refLogp: minus(stored("ref")),
    logq: q === null || q <= 0 ? null : Math.log(q),
    entropy: stored("entropy"),
    refEntropy: stored("ref_entropy"),
    advantage: sample.A ?? null,
  };
  document.dispatchEvent(new CustomEvent("sage:token", { detail }));
}

/** Slope of the penalty in log π, from log w. */
function pull(logRho, estimator) {
  return (Anchor.slope[estimator] ?? Anchor.slope.k2)(logRho);
}

/** Adds shift, pull and effect to a trace, in thousandths like the rest; null where q is not known. */
function derive(trace, estimator) {
  if (trace.estimator === estimator) return trace;
  const each = (of) =>
    trace.surprisal.map((row, c) =>
      row.map((s, i) => {
        const ref = trace.ref[c][i],
          q = trace.q[c][i];
        const value = s === null || ref === null ? null : of(s / 1000, ref / 1000, q === null ? null : Math.log(q / 1000));
        return value === null || !Number.isFinite(value) ? null : Math.round(1000 * value);
      }),
    );
  const shaped = (of) => each((s, ref, logQ) => (logQ === null ? null : of(s - ref, logQ)));
  trace.shift = each((s, ref) => ref - s);
  trace.pull = shaped((plain, logQ) => pull(plain + logQ, estimator));
  trace.effect = shaped((plain, logQ) => pull(plain + logQ, estimator) - pull(plain, estimator));
  trace.estimator = estimator;
  return trace;
}

/** The tokens that the guide moves most, over the run's traces in this page, at their last checkpoint. */
function affected(run, most = 12) {
  const found = new Map();
  for (const sample of DATA.live ? [] : inPage.of(run))
    if (sample.trace) {
      const t = derive(sample.trace, estimatorOf(run)),
        last = t.checkpoints.length - 1;
      t.tokens.forEach((token, i) => {
        const e = t.effect[last][i];
        if (e === null) return;
        const own = found.get(token) ?? { times: 0, effect: 0, shift: 0 };
        found.set(token, { times: own.times + 1, effect: own.effect + e, shift: own.shift + (t.shift[last][i] ?? 0) });
      });
    }
  return [...found]
    .filter(([, own]) => own.effect)
    .sort((a, b) => Math.abs(b[1].effect) - Math.abs(a[1].effect))
    .slice(0, most);
}

function affectedTable(run) {
  const rows = affected(run);
  if (!rows.length) return null;
  return el(
    "details",
    { class: "data affected" },
    el("summary", {}, "Tokens that the guide moves most in this run"),
    table(
      ["Token", "Times", "Guide's effect, summed", "Guide's effect, mean", "Shift, mean"],
      rows.map(([token, own]) => [
        el("code", {}, el("bdi", {}, legible(token).replace(/\n/g, "↵") || "∅")),
        String(own.times),
        milli(own.effect),
        milli(own.effect / own.times),
        milli(own.shift / own.times),
      ]),
      "Tokens that the guide moves most",
    ),
  );
}
