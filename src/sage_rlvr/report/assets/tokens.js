// One completion with its trace: every token shaded by a measure, at one checkpoint.

const milli = (x) => (x === null || x === undefined ? "–" : (x / 1000).toFixed(3));

/** Where the shade ends: the 98% quantile over all checkpoints, so that stepping through them compares like with like. */
function scaleOf(trace, measure) {
  const all = trace[measure]
    .flat()
    .filter((x) => x !== null)
    .map(Math.abs)
    .sort((a, b) => a - b);
  return Math.max(all[Math.floor(0.98 * (all.length - 1))] || 0, all.length ? all[all.length - 1] / 4 : 0, 1);
}

function shade(x, top) {
  const level = x === null ? 0 : Math.min(LEVELS, Math.round((LEVELS * Math.abs(x)) / top));
  return level ? `${x < 0 ? "c" : "h"}${level}` : "";
}

/** ``explorer``: whose state it shows and changes; ``token``: the one that a link names, or null. */
function traceView(explorer, sample, token) {
  const { view } = explorer,
    { run, search } = explorer.state,
    made = DATA.traces?.[run]?.with ?? {},
    estimator = estimatorOf(run),
    trace = derive(sample.trace, estimator),
    size = trace.tokens.length,
    last = trace.checkpoints.length - 1;
  if (view.at === null || view.at > last) view.at = last;
  // where training's q is not known, there is no pull and no effect
  const told = Object.keys(MEASURES).filter((m) => !size || trace[m].flat().some((x) => x !== null));
  if (!told.includes(view.measure)) [view.measure] = told;
  const spans = trace.tokens.map((t, i) => {
    const span = el("span", { tabindex: -1 }, legible(t).replace(/\n/g, "↵\n") || "∅");
    span.i = i;
    return span;
  });
  const box = el(
    "div",
    { class: "tokens", role: "group", "aria-label": "Tokens; arrow keys move from one to the next" },
    spans,
  );
  const numbers = el("div", { class: "numbers", "aria-live": "polite" }),
    key = el("div", { class: "key" }),
    step = el("output", {});
  const slider = el("input", { type: "range", min: 0, max: last, value: view.at, "aria-label": "Checkpoint" });
  const chart = new Chart("Along the completion");
  chart.figure.classList.add("along");
  let here = null;
  const paint = () => {
    const top = scaleOf(trace, view.measure),
      values = trace[view.measure][view.at];
    spans.forEach((span, i) => {
      span.className = shade(values[i], top) + (span.hit ? " hit" : "");
    });
    slider.value = view.at;
    slider.setAttribute("aria-valuetext", trace.checkpoints[view.at]);
    step.replaceChildren(el("bdi", {}, legible(trace.checkpoints[view.at])), ` (${view.at + 1} of ${last + 1})`);
    along(chart, trace, view);
    key.replaceChildren(
      ...keyOf(
        view.measure,
        top,
        trace[view.measure].flat().some((x) => x !== null && x < 0),
        estimator,
      ),
    );
    read();
  };
  const read = () => {
    if (here !== null) tellToken(run, sample, here, view.at);
    numbers.replaceChildren(
      ...(here === null
        ? [
            el(
              "p",
              { class: "note" },
              "Point at a token, or tab into the text and use the arrow keys, to read its numbers.",
            ),
          ]
        : tokenNumbers(trace, here, view)),
    );
  };
  const move = (at) => {
    view.at = Math.max(0, Math.min(last, at));
    paint();
    explorer.keep();
  };
  const stand = (i) => {
    if (here !== null) spans[here].tabIndex = -1;
    here = i;
    spans[i].tabIndex = 0;
    read();
  };
  box.addEventListener("click", (e) => {
    if (e.target.i !== undefined) explorer.keep(e.target.i); // a token can be sent to a colleague
  });
  slider.addEventListener("input", () => move(Number(slider.value)));
  box.addEventListener("pointerover", (e) => {
    if (e.target.i !== undefined) stand(e.target.i);
  });
  box.addEventListener("focusin", (e) => {
    if (e.target.i !== undefined) stand(e.target.i);
  });
  box.addEventListener("keydown", (e) => {
    const to = {
      ArrowRight: here + 1,
      ArrowLeft: here - 1,
      Home: 0,
      End: size - 1,
      ArrowDown: below(spans, here, 1),
      ArrowUp: below(spans, here, -1),
    }[e.key];
    if (to !== undefined && spans[to]) {
      spans[to].focus();
      explorer.keep(to);
      e.preventDefault();
    } else if (to !== undefined) e.preventDefault();
  });
  markHits(trace.tokens, spans, search);
  if (size) spans[0].tabIndex = 0;
  paint();
  if (spans[token]) {
    stand(token);
    requestAnimationFrame(() => spans[token].focus());
  }
  const stepper = el(
    "div",
    { class: "stepper", role: "group", "aria-label": "Training checkpoint" },
    el("button", { type: "button", "aria-label": "Earlier checkpoint", onclick: () => move(view.at - 1) }, "◀"),
    slider,
    el("button", { type: "button", "aria-label": "Later checkpoint", onclick: () => move(view.at + 1) }, "▶"),
    step,
  );
  return [
    el(
      "div",
      { class: "controls" },
      choice(
        "Shade by",
        told.map((m) => [m, MEASURES[m][0]]),
        view.measure,
        (m) => {
          view.measure = m;
          paint();
          explorer.keep();
        },
      ),
      last ? stepper : null,
    ),
    key,
    box,
    numbers,
    chart.figure,
    Object.keys(made).length
      ? el(
          "p",
          { class: "note" },
          el(
            "bdi",
            {},
            `Traced with ${Object.entries(made)
              .map(([k, v]) => `${k} ${typeof v === "object" ? JSON.stringify(v) : v}`)
              .join(" · ")}`.slice(0, 400),
          ),
        )
      : null,
    trace.of > size
      ? el("p", { class: "note cut" }, `Cut: the first ${number(size)} of ${number(trace.of)} tokens.`)
      : null,
    affectedTable(run),
    behind(
      "Numbers of every token",
      () => [
        ["#", "Token", ...Object.values(MEASURES).map(([name]) => name), "q", "Reference surprisal"],
        trace.tokens.map((t, i) => [
          String(i + 1),
          el("bdi", {}, legible(t)),
          ...Object.keys(MEASURES).map((m) => milli(trace[m][view.at][i])),
          milli(trace.q[view.at][i]),
          milli(trace.ref[view.at][i]),
        ]),
      ],
      "Every token in a table",
    ),
  ].filter(Boolean);
}

/** The measure by position: this checkpoint, and the first one to hold it against. */
function along(chart, trace, view) {
  const xs = trace.tokens.map((_, i) => i + 1),
    line = (c, tint) => ({
      run: 0,
      tint,
      label: trace.checkpoints[c],
      x: xs,
      y: trace[view.measure][c].map((v) => (v === null ? null : v / 1000)),
    });
  chart.title = `${MEASURES[view.measure][0]} along the completion`;
  chart.figure.querySelector("figcaption").textContent = chart.title;
  const lines = view.at > 0 ? [line(0, 7), line(view.at, 1)] : [line(view.at, 1)];
  requestAnimationFrame(() => chart.draw({ x: "token", lines, height: 180, format: (v) => v.toFixed(3) }));
}

function keyOf(measure, top, below, estimator) {
  const [name, about] = MEASURES[measure],
    how = ["pull", "effect"].includes(measure) ? ` (${estimator}: ${PULLS[estimator] ?? "−log w"})` : "";
  const shades = [];
  if (below) for (let i = LEVELS; i > 0; i -= 2) shades.push(el("i", { class: `c${i}` }));
  shades.push(el("i", {}));
  for (let i = 1; i <= LEVELS; i += 2) shades.push(el("i", { class: `h${i}` }));
  const low = below ? -top / 1000 : 0;
  return [
    el("span", {}, `${name}: ${about}${how}`),
    el(
      "span",
      { class: "ramp", role: "img", "aria-label": `Shades from ${brief(low)} to ${brief(top / 1000)}` },
      brief(low),
      ...shades,
      `≥ ${brief(top / 1000)}`,
    ),
  ];
}

/** The numbers of one token now, and the measure at every checkpoint. */
function tokenNumbers(trace, i, view) {
  const at = (m, c = view.at) => trace[m][c][i];
  const facts = [
    ["Entropy", milli(at("entropy"))],
    ["Surprisal", milli(at("surprisal"))],
    ["p(token)", at("surprisal") === null ? "–" : brief(Math.exp(-at("surprisal") / 1000))],
    ["Reference surprisal", milli(at("ref"))],
    ["Shift", milli(at("shift"))],
    ["q", milli(at("q"))],
    ["Pull", milli(at("pull"))],
    ["Guide's effect", milli(at("effect"))],
  ];
  const through =
    trace.checkpoints.length > 1
      ? el(
          "p",
          { class: "through" },
          `${MEASURES[view.measure][0]} through training: `,
          trace.checkpoints.map((c, j) =>
            el(
              "span",
              { class: j === view.at ? "now" : null },
              el("small", {}, el("bdi", {}, legible(c)), " "),
              milli(at(view.measure, j)),
            ),
          ),
        )
      : null;
  return [
    el(
      "p",
      {},
      el("code", {}, el("bdi", {}, legible(trace.tokens[i]).replace(/\n/g, "↵") || "∅")),
      ` token ${number(i + 1)} of ${number(trace.tokens.length)}`,
    ),
    el(
      "dl",
      { class: "facts" },
      facts.map(([k, v]) => el("div", {}, el("dt", {}, k), el("dd", {}, v))),
    ),
    through,
  ].filter(Boolean);
}

function below(spans, here, step) {
  const from = spans[here].getBoundingClientRect();
  let best = here;
  for (let i = here + step; spans[i]; i += step) {
    const to = spans[i].getBoundingClientRect(),
      down = step * (to.top - from.top);
    if (down < 4) continue;
    if (best !== here && Math.abs(to.top - spans[best].getBoundingClientRect().top) > 4) break;
    if (best === here || Math.abs(to.left - from.left) < Math.abs(spans[best].getBoundingClientRect().left - from.left))
      best = i;
  }
  return best;
}

function markHits(tokens, spans, word) {
  if (!word) return;
  const text = tokens.join("").toLowerCase(),
    find = word.toLowerCase(),
    hits = [];
  for (let at = text.indexOf(find); at >= 0 && hits.length < 2000; at = text.indexOf(find, at + find.length))
    hits.push(at);
  let end = 0,
    h = 0;
  tokens.forEach((t, i) => {
    const start = end;
    end += t.length;
    while (h < hits.length && hits[h] + find.length <= start) h += 1;
    spans[i].hit = h < hits.length && hits[h] < end;
  });
}
