// Line charts: uPlot draws, this adds a legend that reads the cursor out, keys, an accessible name and a data table.

const charts = new Set();
const syncTraining = uPlot.sync("training");

function faded(hex, alpha) {
  const n = parseInt(hex.slice(1), 16);
  return `rgba(${n >> 16}, ${(n >> 8) & 255}, ${n & 255}, ${alpha})`;
}

/**
 * spec: {x: name, short, log2, within: [low, high] the values cannot leave, or null, lines: [{run, label, x: [], y: [], low, high, tint}], bands, sync, format}
 * Gives a <figure>; draw(spec) again changes it in place.
 */
class Chart {
  constructor(title) {
    this.title = title;
    this.box = el("div", { class: "plot", tabindex: 0, role: "img" });
    this.legend = el("ul", { class: "legend" });
    this.table = behind(title, () => this.rows());
    this.figure = el("figure", { class: "chart" }, el("figcaption", {}, title), this.box, this.legend, this.table);
    this.box.addEventListener("keydown", (e) => this.key(e));
    this.box.addEventListener("blur", () => this.read(null));
    charts.add(this);
  }

  draw(spec) {
    this.spec = spec;
    if (this.plot) this.plot.destroy();
    this.plot = null;
    this.at = null;
    const lines = spec.lines.filter((line) => line.x.length);
    this.xs = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
    this.lines = lines.map((line) => this.aligned(line));
    this.box.setAttribute("aria-label", this.words());
    this.box.replaceChildren(
      ...(lines.length ? [] : [el("p", { class: "empty" }, "No run that is switched on has this.")]),
    );
    this.where = el("li", { class: "where" });
    this.legend.replaceChildren(...(lines.length ? [this.where] : []), ...this.lines.map((line) => line.item));
    if (lines.length && this.box.clientWidth) this.make();
    this.read(null);
    if (this.table.open) this.table.dispatchEvent(new Event("toggle"));
  }

  aligned(line) {
    const at = new Map(line.x.map((x, i) => [x, i]));
    const pick = (values) => values && this.xs.map((x) => (at.has(x) ? values[at.get(x)] : null));
    const value = el("output", {});
    return {
      ...line,
      y: pick(line.y),
      low: pick(line.low),
      high: pick(line.high),
      value,
      item: el("li", {}, swatch(line.run, line.tint), el("bdi", {}, line.label), value),
    };
  }

  make() {
    const ink = css("--ink-2"),
      grid = css("--line"),
      { spec } = this;
    const font = "12px system-ui, sans-serif";
    const axis = { stroke: ink, font, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1, size: 5 } };
    const series = [{}],
      data = [this.xs],
      bands = [];
    for (const line of this.lines) {
      const stroke = colour(line.run, line.tint);
      if (spec.bands && line.low) {
        const quiet = { stroke: "transparent", width: 0, points: { show: false }, spanGaps: true };
        series.push({ ...quiet }, { ...quiet });
        data.push(line.high, line.low);
        bands.push({
          series: [series.length - 2, series.length - 1],
          fill: faded(stroke, this.lines.length > 3 ? 0.1 : 0.18),
        });
      }
      series.push({
        stroke,
        width: 2,
        dash: dash(line.run, line.tint),
        spanGaps: true,
        points: { show: this.xs.length <= 24, size: 6, fill: stroke },
      });
      data.push(line.y);
    }
    const x = spec.log2
      ? { time: false, distr: 3, log: 2 }
      : { time: false, range: this.xs.length === 1 ? [this.xs[0] - 1, this.xs[0] + 1] : undefined };
    if (spec.log2) x.range = () => [1, Math.max(2, this.xs[this.xs.length - 1])];
    const counts = this.lines.every((line) => line.y.every((y) => y === null || Number.isInteger(y)));
    const options = {
      width: this.box.clientWidth,
      height: spec.height || 260,
      series,
      bands,
      legend: { show: false },
      padding: [10, 14, 0, 0],
      scales: { x, y: spec.within ? { range: (u, low, high) => padded(low, high, spec.within) } : {} },
      axes: [
        {
          ...axis,
          label: spec.x,
          labelFont: font,
          labelSize: 20,
          size: 34,
          ...(spec.log2
            ? {
                splits: (u) => powers(u.scales.x.max),
                values: (u, v) => v.map((k) => (k === null ? "" : String(k))),
                filter: (u, v) => v,
              }
            : { incrs: WHOLE }),
        },
        { ...axis, size: 52, values: (u, v) => v.map(brief), ...(counts ? { incrs: WHOLE } : {}) },
      ],
      cursor: {
        drag: { x: false, y: false },
        y: false,
        points: { size: 9 },
        ...(spec.sync ? { sync: { key: "training", setSeries: false, scales: ["x", null] } } : {}),
      },
      hooks: { setCursor: [(u) => this.read(u.cursor.idx)] },
    };
    this.plot = new uPlot(options, data, this.box);
  }

  /** The legend's numbers: at the cursor, else at the end of each line. */
  read(index) {
    this.at = index;
    const lines = this.lines || [],
      x = this.spec?.short || this.spec?.x,
      end = (line) => line.y.findLastIndex((y) => y !== null);
    const places = lines.map((line) => index ?? end(line)),
      same = places.every((i) => i === places[0]);
    if (lines.length) this.where.textContent = same ? `at ${x} = ${brief(this.xs[places[0]])}` : "";
    lines.forEach((line, l) => {
      line.value.textContent = (same ? "" : `${x} ${brief(this.xs[places[l]])}: `) + this.said(line, places[l]);
    });
  }

  said(line, i) {
    const show = this.spec.format || brief,
      y = line.y[i],
      low = line.low?.[i];
    return y === null || y === undefined
      ? "–"
      : show(y) + (low === null || low === undefined ? "" : ` [${show(low)}, ${show(line.high[i])}]`);
  }

  /** ← → Home End move the cursor, as the mouse does. */
  key(e) {
    if (!this.plot || !["ArrowLeft", "ArrowRight", "Home", "End"].includes(e.key)) return;
    const last = this.xs.length - 1,
      now = this.at ?? (e.key === "ArrowLeft" ? last + 1 : -1);
    const next = { ArrowLeft: Math.max(0, now - 1), ArrowRight: Math.min(last, now + 1), Home: 0, End: last }[e.key];
    this.plot.setCursor({ left: this.plot.valToPos(this.xs[next], "x"), top: this.plot.bbox.height / 4 });
    e.preventDefault();
  }

  words() {
    const ends = this.lines.slice(0, 6).map((line) => {
      const known = line.y.map((y, i) => [this.xs[i], y]).filter((p) => p[1] !== null);
      return `${line.label} from ${brief(known[0][1])} at ${brief(known[0][0])} to ${brief(known[known.length - 1][1])} at ${brief(known[known.length - 1][0])}`;
    });
    const more = this.lines.length > 6 ? `; and ${this.lines.length - 6} more` : "";
    return `Line chart, ${this.title} against ${this.spec.x}. ${ends.join("; ") || "No data"}${more}. Arrow keys move the cursor; a data table follows.`;
  }

  rows() {
    const head = [this.spec.short || this.spec.x, ...this.lines.map((line) => line.label)];
    return [head, this.xs.map((x, i) => [brief(x), ...this.lines.map((line) => this.said(line, i))])];
  }
}

/** Distances of ticks for steps and counts: nothing lies between two of them. */
const WHOLE = [0, 1, 2, 3, 4, 5, 6, 7, 8].flatMap((e) => [1, 2, 5].map((m) => m * 10 ** e));

/** The range of the data with a little air, inside what is possible. */
function padded(low, high, [least, most]) {
  const air = Math.max(0.01, 0.08 * (high - low));
  return [Math.max(least, low - air), Math.min(most, high + air)];
}

function powers(top) {
  const out = [];
  for (let k = 1; k <= top * 1.0001; k *= 2) out.push(k);
  return out.length > 7 ? out.map((k, i) => (i % 2 ? null : k)).filter((k) => k !== null) : out;
}

/** Charts far below the fold are drawn when they come near it; all follow the width of the page and its colours. */
const near = new IntersectionObserver(
  (entries) => {
    for (const entry of entries)
      if (entry.isIntersecting) {
        near.unobserve(entry.target);
        entry.target.ready();
      }
  },
  { rootMargin: "600px" },
);

const waiting = [];

function whenNear(node, draw, wait = true) {
  if (wait) waiting.push(node);
  node.ready = () => {
    node.ready = () => {};
    draw();
  };
  near.observe(node);
}

/** The rest is drawn in idle moments, one figure at a time; a section that was asked for meanwhile keeps its place, unless the
    page is ``held`` somewhere else. */
function settle(held) {
  const idle = window.requestIdleCallback ?? ((f) => setTimeout(f, 20)); // Safari has none
  let touched = false;
  for (const kind of ["wheel", "touchmove", "keydown"]) addEventListener(kind, () => (touched = true), { once: true });
  const next = () => {
    const node = waiting.shift();
    if (node) node.ready();
    if (location.hash.length > 1 && !touched && !held) document.getElementById(location.hash.slice(1).split("?")[0])?.scrollIntoView();
    if (waiting.length) idle(next, { timeout: 200 });
  };
  idle(next, { timeout: 200 });
}

let resizing = 0;
addEventListener("resize", () => {
  cancelAnimationFrame(resizing);
  resizing = requestAnimationFrame(() => {
    for (const c of charts) if (c.spec && c.box.clientWidth && c.plot?.width !== c.box.clientWidth) c.draw(c.spec);
  });
});
