// Small drawings in SVG: a difference as a dot with its interval, and the plane of pass@1 and pass@k.

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {}))
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  node.append(...children.flat().filter(Boolean));
  return node;
}

const signed = (x) => (x === null ? "–" : (x > 0 ? "+" : x < 0 ? "−" : "") + Math.abs(x).toFixed(3));
const excludesZero = (t) => t[1] !== null && (t[1] > 0 || t[2] < 0);

/** [value, low, high] on a scale from −widest to +widest: the dot is filled where the interval excludes 0. A tick per seed below. */
function dot(t, widest, tint, seeds) {
  const w = 120,
    h = 18,
    y = 7,
    x = (v) => w / 2 + (Math.max(-1, Math.min(1, v / widest)) * (w - 12)) / 2;
  return svg(
    "svg",
    { class: `dot run-${tint % COLOURS}`, viewBox: `0 0 ${w} ${h}`, width: w, height: h, "aria-hidden": "true" },
    svg("line", { class: "zero", x1: w / 2, x2: w / 2, y1: 1, y2: h - 1 }),
    t[1] === null ? null : svg("line", { class: "range", x1: x(t[1]), x2: x(t[2]), y1: y, y2: y }),
    svg("circle", { class: excludesZero(t) ? "full" : "hollow", cx: x(t[0]), cy: y, r: 4 }),
    ...seeds.map((s) => svg("line", { class: "seed", x1: x(s), x2: x(s), y1: y + 6, y2: h })),
  );
}

/** points: [{name, tint, x: [value, low, high], y: …, ticks: [[x, y], …]}], a tick per seed. Drawn ``w`` pixels wide, as shown. */
function plane(points, xName, yName, w) {
  const h = Math.round(Math.max(230, Math.min(320, 0.66 * w))),
    left = 52,
    bottom = 40,
    top = 12,
    right = 14;
  const span = (of, axis) => {
    const all = points.flatMap((p) => [...of(p).filter((v) => v !== null), ...p.ticks.map((t) => t[axis])]);
    const low = Math.min(...all),
      high = Math.max(...all),
      pad = Math.max(0.01, (high - low) * 0.08);
    return [Math.max(0, low - pad), Math.min(1, high + pad)];
  };
  const xs = span((p) => p.x, 0),
    ys = span((p) => p.y, 1);
  const X = (v) => left + ((v - xs[0]) / (xs[1] - xs[0] || 1)) * (w - left - right);
  const Y = (v) => h - bottom - ((v - ys[0]) / (ys[1] - ys[0] || 1)) * (h - bottom - top);
  const marks = ([low, high]) => {
    const rough = (high - low) / 5,
      unit = 10 ** Math.floor(Math.log10(rough || 1)),
      step = [1, 2, 5, 10].map((m) => m * unit).find((s) => s >= rough),
      out = [];
    for (let v = Math.ceil(low / step) * step; v <= high + 1e-9; v += step) out.push(v);
    return out;
  };
  const name = (v) => String(Number(v.toFixed(4)));
  const grid = [
    marks(xs).map((v) => [
      svg("line", { class: "gridline", x1: X(v), x2: X(v), y1: top, y2: h - bottom }),
      svg("text", { x: X(v), y: h - bottom + 16, "text-anchor": "middle" }, name(v)),
    ]),
    marks(ys).map((v) => [
      svg("line", { class: "gridline", x1: left, x2: w - right, y1: Y(v), y2: Y(v) }),
      svg("text", { x: left - 6, y: Y(v) + 4, "text-anchor": "end" }, name(v)),
    ]),
  ].flat(2);
  const range = (t, f) => t[1] !== null && [f(t[1]), f(t[2])];
  const drawn = points.flatMap((p) => {
    const own = `run-${p.tint % COLOURS}`,
      across = range(p.x, X),
      along = range(p.y, Y);
    return [
      across && svg("line", { class: `range ${own}`, x1: across[0], x2: across[1], y1: Y(p.y[0]), y2: Y(p.y[0]) }),
      along && svg("line", { class: `range ${own}`, x1: X(p.x[0]), x2: X(p.x[0]), y1: along[0], y2: along[1] }),
      ...(p.ticks.length > 1
        ? p.ticks.map(([x, y]) => svg("circle", { class: `tick ${own}`, cx: X(x), cy: Y(y), r: 2 }))
        : []),
      svg("circle", { class: `full ${own}`, cx: X(p.x[0]), cy: Y(p.y[0]), r: 5.5 }),
    ];
  });
  const labels = apart(points.map((p) => [X(p.x[0]), Y(p.y[0])])).map(([x, y], i) =>
    svg(
      "text",
      { class: `name run-${points[i].tint % COLOURS}`, x: x > w * 0.7 ? x - 9 : x + 9, y: y + 4, "text-anchor": x > w * 0.7 ? "end" : "start" },
      points[i].name,
    ),
  );
  const said = points.map((p) => `${p.name} ${share(p.x[0])}, ${share(p.y[0])}`).join("; ");
  return svg(
    "svg",
    { class: "plane", width: w, height: h, viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": `${xName} and ${yName} of each variant: ${said}.` },
    ...grid,
    ...drawn,
    ...labels,
    svg("text", { class: "axis", x: (left + w - right) / 2, y: h - 6, "text-anchor": "middle" }, xName),
    svg(
      "text",
      { class: "axis", x: 12, y: (h - bottom + top) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(h - bottom + top) / 2})` },
      yName,
    ),
  );
}

/** The same places with labels at least 13 px apart in height where they are near in width. */
function apart(places) {
  const order = places.map((_, i) => i).sort((a, b) => places[a][1] - places[b][1]),
    out = places.map((p) => [...p]);
  order.forEach((i, n) => {
    for (const j of order.slice(0, n))
      if (Math.abs(out[i][0] - out[j][0]) < 110 && out[i][1] - out[j][1] < 13) out[i][1] = out[j][1] + 13;
  });
  return out;
}
