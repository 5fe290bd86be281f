// Support: a grid of problems (columns) and runs (rows). One canvas a task: 100 × 300 cells are 30,000, too many elements.

const SIGNS = {
  P: "solved by both",
  E: "gained: by this run only",
  S: "lost: by the reference only",
  O: "solved by neither",
  U: "drawn less often",
};

/** Samples of a problem; without one, the most of any. */
function drawnOf(task, run, j) {
  const d = DATA.tasks[task].drawn[run] ?? 0;
  return Array.isArray(d) ? (j === undefined ? Math.max(0, ...d) : d[j]) : d;
}

/** 1 solved, 0 not, −1 unknown, within the first ``budget`` samples. */
function solved(task, run, j, budget) {
  const first = DATA.tasks[task].first[run]?.[j] ?? -1;
  return first < 0 || drawnOf(task, run, j) < budget ? -1 : first > 0 && first <= budget ? 1 : 0;
}

function sign(task, base, run, j, budget) {
  const b = solved(task, base, j, budget),
    r = solved(task, run, j, budget);
  return b < 0 || r < 0 ? "U" : b ? (r ? "P" : "S") : r ? "E" : "O";
}

function supportMetrics(task, base, run, budget) {
  const n = { P: 0, E: 0, S: 0, O: 0, U: 0 };
  DATA.tasks[task].problems.forEach((_, j) => {
    n[sign(task, base, run, j, budget)] += 1;
  });
  const ratio = (a, b) => (b ? a / b : null);
  const srr = ratio(n.P, n.P + n.S),
    ndr = ratio(n.E, n.P + n.E);
  const sds = srr === null || ndr === null ? null : ratio(2 * srr * ndr, srr + ndr);
  return { ...n, SRR: srr, NDR: ndr, SDS: sds, NSCR: ratio(n.E - n.S, n.P + n.E + n.S) };
}

class SupportGrid {
  constructor(task, state) {
    this.task = task;
    this.state = state;
    this.label = plainName; // this.caption and this.rest: the title, and the line below, where they are not the usual ones
    this.canvas = el("canvas", { tabindex: 0, role: "img" });
    this.names = el("div", { class: "grid-names", "aria-hidden": "true" });
    this.readout = el("p", { class: "readout", "aria-live": "polite" });
    this.table = el("div", {});
    this.figure = el(
      "figure",
      { class: "chart support" },
      el("figcaption", {}),
      el("div", { class: "grid" }, this.names, el("div", { class: "scroll-x" }, this.canvas)),
      this.readout,
      this.table,
      behind(`${task}: problem by problem`, () => this.rows()),
    );
    this.canvas.addEventListener("pointermove", (e) => this.point(e));
    this.canvas.addEventListener("pointerleave", () => {
      this.cursor = null;
      this.draw();
    });
    this.canvas.addEventListener("click", (e) => {
      this.point(e);
      this.open();
    });
    this.canvas.addEventListener("keydown", (e) => this.key(e));
    this.canvas.addEventListener("blur", () => {
      this.cursor = null;
      this.draw();
    });
    this.canvas.addEventListener("focus", () => {
      if (!this.cursor && this.runs.length) {
        this.cursor = [0, 0];
        this.draw();
      }
    });
  }

  update() {
    const { task, state } = this,
      t = DATA.tasks[task],
      drawn = EVALS.filter((r) => t.first[r]);
    this.base = drawn.includes(state.base) ? state.base : drawn[0];
    this.budget = Math.min(state.budget, Math.max(...drawn.map((r) => drawnOf(task, r))));
    this.runs = state.runs ?? visible(drawn);
    const easy = t.problems.map((_, j) => drawn.reduce((sum, r) => sum + Math.max(0, t.rate[r][j] ?? 0), 0));
    this.order = t.problems.map((_, j) => j);
    if (state.order !== "task")
      this.order.sort((a, b) => (easy[b] - easy[a]) * (state.order === "easy" ? 1 : -1) || a - b);
    this.figure.querySelector("figcaption").textContent =
      this.caption ?? `${task}: ${number(t.problems.length)} problems, first ${number(this.budget)} samples`;
    this.names.replaceChildren(...this.runs.map((r) => el("span", {}, swatch(r), el("bdi", {}, this.label(r)))));
    this.summary();
    this.cursor = null;
    this.draw();
  }

  summary() {
    const { task, base, budget } = this,
      others = this.runs.filter((r) => r !== base);
    const all = others.map((r) => [r, supportMetrics(task, base, r, budget)]);
    const head = ["Run", "P both", "E gained", "S lost", "O neither", "SRR", "NDR", "SDS", "NSCR"];
    const rows = all.map(([r, m]) =>
      [
        el("span", { class: "run" }, swatch(r), el("bdi", {}, plainName(r))),
        m.P,
        m.E,
        m.S,
        m.O + (m.U ? ` (+${m.U} drawn less often)` : ""),
        ...["SRR", "NDR", "SDS", "NSCR"].map((k) => (m[k] === null ? "–" : m[k].toFixed(3))),
      ].map((c) => (typeof c === "number" ? String(c) : c)),
    );
    this.table.replaceChildren(
      ...(rows.length ? [table(head, rows, `Against ${plainName(base)}, budget ${budget}`)] : []),
    );
    const said = all
      .slice(0, 6)
      .map(([r, m]) => `${plainName(r)} keeps ${m.P}, gains ${m.E}, loses ${m.S}`)
      .join("; ");
    this.canvas.setAttribute(
      "aria-label",
      `Grid of ${DATA.tasks[task].problems.length} problems by ${this.runs.length} runs, ${task}, first ${budget} samples, against ${plainName(base)}. ${said}. Arrow keys move, Enter opens the completions; tables follow.`,
    );
  }

  draw() {
    if (!this.runs || !this.figure.clientWidth) return;
    const ratio = devicePixelRatio || 1,
      columns = this.order.length,
      width = this.canvas.parentNode.clientWidth;
    const even = Math.min(20, width / columns), // thin columns may be fractions of a pixel wide: all of them are in view
      w = (this.w = Math.max(this.state.least ?? 4, even < 4 ? even : Math.floor(even))),
      h = (this.h = 20);
    const [pw, ph] = [Math.ceil(w * columns), h * Math.max(1, this.runs.length)];
    if (this.canvas.width !== Math.round(pw * ratio) || this.canvas.height !== Math.round(ph * ratio)) {
      this.canvas.width = Math.round(pw * ratio);
      this.canvas.height = Math.round(ph * ratio);
      this.canvas.style.width = `${pw}px`;
      this.canvas.style.height = `${ph}px`;
    }
    const c = this.canvas.getContext("2d"),
      fills = Object.fromEntries("PESOU".split("").map((s) => [s, css(`--sign-${s.toLowerCase()}`)]));
    const ink = css("--sign-ink"),
      gap = w >= 8 ? 1 : 0;
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, pw, ph);
    c.textAlign = "center";
    c.textBaseline = "middle";
    c.font = "bold 12px system-ui, sans-serif";
    this.runs.forEach((run, y) =>
      this.order.forEach((j, x) => {
        const s = sign(this.task, this.base, run, j, this.budget),
          thin = s === "S" || s === "O";
        c.fillStyle = fills[s];
        const left = Math.round(x * w * ratio) / ratio,
          right = Math.round((x + 1) * w * ratio) / ratio;
        if (s === "U") c.fillRect(x * w + w / 2 - 1, y * h + h / 2 - 1, 2, 2);
        else c.fillRect(left, y * h + (thin ? 6 : 1), right - left - gap, h - (thin ? 12 : 2)); // lower where unsolved: readable without colour
        if (w >= 10 && (s === "E" || s === "S")) {
          c.fillStyle = ink;
          c.fillText(s === "E" ? "+" : "−", x * w + (w - gap) / 2, y * h + h / 2 + 0.5);
        }
      }),
    );
    if (this.cursor) {
      c.strokeStyle = css("--ink");
      c.lineWidth = 2;
      c.strokeRect(this.cursor[0] * w, this.cursor[1] * h + 1, Math.max(w - gap, 3), h - 2);
    }
    this.readout.textContent = this.cursor
      ? this.words()
      : this.rest ?? "Point at a cell, or press the arrow keys in the grid, to read it; click or Enter opens its completions.";
  }

  words() {
    const [x, y] = this.cursor,
      j = this.order[x],
      run = this.runs[y],
      t = DATA.tasks[this.task],
      s = sign(this.task, this.base, run, j, this.budget);
    const first = t.first[run][j],
      rate = t.rate[run][j];
    const when =
      first > 0
        ? `first right at sample ${number(first)}, ${Math.round(100 * rate)}% right`
        : first === 0
          ? `none right in ${number(drawnOf(this.task, run, j))}`
          : "not drawn";
    return `${t.problems[j]} · ${plainName(run)}: ${run === this.base ? (solved(this.task, run, j, this.budget) ? "solved (the reference itself)" : "not solved (the reference itself)") : SIGNS[s]} · ${when}`;
  }

  point(e) {
    const x = Math.floor(e.offsetX / this.w),
      y = Math.floor(e.offsetY / this.h);
    if (x < 0 || y < 0 || x >= this.order.length || y >= this.runs.length) return;
    if (this.cursor && this.cursor[0] === x && this.cursor[1] === y) return;
    this.cursor = [x, y];
    this.draw();
  }

  key(e) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[e.key];
    if (e.key === "Enter") {
      this.open();
      return;
    }
    if (!step) return;
    e.preventDefault();
    const [x, y] = this.cursor || [0, 0],
      pin = (v, n) => Math.max(0, Math.min(n - 1, v));
    this.cursor = [pin(x + step[0], this.order.length), pin(y + step[1], this.runs.length)];
    this.draw();
    const box = this.canvas.parentNode,
      left = this.cursor[0] * this.w;
    if (left < box.scrollLeft || left > box.scrollLeft + box.clientWidth - this.w)
      box.scrollLeft = left - box.clientWidth / 2;
  }

  open() {
    if (this.cursor)
      showInExplorer(this.runs[this.cursor[1]], this.task, DATA.tasks[this.task].problems[this.order[this.cursor[0]]]);
  }

  rows() {
    const t = DATA.tasks[this.task],
      said = (r, j) => ({ 1: "✓ solved", 0: "not", "-1": "drawn less often" })[solved(this.task, r, j, this.budget)];
    return [
      ["Problem", ...this.runs.map(plainName)],
      this.order.map((j) => [el("bdi", {}, t.problems[j]), ...this.runs.map((r) => said(r, j))]),
    ];
  }
}

const signKey = (names) =>
  el(
    "ul",
    { class: "legend signs" },
    Object.entries(names).map(([s, text]) =>
      el("li", {}, el("span", { class: `sign sign-${s}`, "aria-hidden": "true" }, { E: "+", S: "−" }[s] || ""), text),
    ),
  );

function supportGrids() {
  const at = body("support"),
    tasks = TASKS.filter((t) => DATA.tasks[t].problems.length);
  if (!tasks.length) {
    at.append(el("p", { class: "note" }, "There is no evaluation to take problems from."));
    return;
  }
  const sizes = tasks.flatMap((t) => EVALS.map((r) => drawnOf(t, r)).filter((d) => d > 0)),
    top = Math.max(...sizes),
    shared = Math.min(...sizes);
  const ks = [];
  for (let k = 1; k < top; k *= 2) ks.push(k);
  if (!ks.includes(shared)) ks.push(shared);
  if (!ks.includes(top)) ks.push(top);
  ks.sort((a, b) => a - b);
  const state = { base: EVALS[0], budget: shared, order: "hard" },
    grids = tasks.map((t) => new SupportGrid(t, state));
  const all = () => grids.forEach((g) => g.runs && g.update());
  at.append(
    el(
      "div",
      { class: "controls" },
      select(
        "Reference",
        EVALS.map((r) => [r, plainName(r)]),
        state.base,
        (r) => {
          state.base = Number(r);
          all();
        },
      ),
      select(
        "Budget: first … samples",
        ks.map((k) => [k, number(k)]),
        shared,
        (k) => {
          state.budget = Number(k);
          all();
        },
      ),
      choice(
        "Problems",
        [
          ["hard", "Hardest first"],
          ["easy", "Easiest first"],
          ["task", "As in the task"],
        ],
        "hard",
        (v) => {
          state.order = v;
          all();
        },
      ),
    ),
    signKey(SIGNS),
    ...grids.map((g) => g.figure),
  );
  grids.forEach((g) => whenNear(g.figure, () => g.update()));
  addEventListener("resize", () => grids.forEach((g) => g.draw()));
  watchers.push(all);
}
