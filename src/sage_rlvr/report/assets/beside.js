// Side by side, for a problem that a run lost: the base's likeliest right completion and the run's likeliest wrong one.

const BASE = EVALS[0]; // find.py puts it first
const MOST_STEPS = 300; // of either: longer texts stand side by side without being aligned
const MOST_WORDS = 150; // of a step, likewise
const ALIKE = 0.5; // share of words in common from which two steps are taken for the same one

/** Problems that the base solves and that this run never does. */
function lostBy(run, task) {
  const t = DATA.tasks[task],
    base = t?.first[BASE],
    own = t?.first[run];
  return run === BASE || !base || !own ? [] : t.problems.filter((_, j) => base[j] > 0 && own[j] === 0);
}

/** The sample of this verdict with the highest log π(y), the first where none is stored; null where there is no sample. */
async function likeliestOf(run, task, problem, verdict) {
  const weight = (row) => row.lp ?? -Infinity;
  let best = null;
  for (let offset = 0, more = true; more; offset += PAGE) {
    const page = await source.list({ run, task, problem, verdict, search: "", offset });
    for (const row of page.rows) if (best === null || weight(row) > weight(best)) best = row;
    more = page.more;
  }
  return best && source.sample(run, best);
}

/** The text in steps: its sentences and lines. A step is a list of pieces (tex.js); a formula is never cut. */
function stepsOf(text) {
  const out = [[]];
  for (const piece of formulas(text.replace(/\r\n/g, "\n")))
    if (piece.tex !== undefined) out[out.length - 1].push(piece);
    else
      piece.source.split(/\n+|(?<=[.;!?])[ \t]+(?=[A-Z(])/).forEach((part, i) => {
        if (i) out.push([]);
        if (part.trim()) out[out.length - 1].push({ source: part });
      });
  return out.filter((step) => step.length);
}

const textOfStep = (step) => step.map((piece) => piece.source).join("");
const wordsOf = (step) => textOfStep(step).toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];

/** Share of words in common, counted: 1 where both have the same. */
function alike(a, b) {
  const left = new Map();
  for (const word of a) left.set(word, (left.get(word) ?? 0) + 1);
  let both = 0;
  for (const word of b)
    if (left.get(word)) {
      left.set(word, left.get(word) - 1);
      both += 1;
    }
  return (2 * both) / Math.max(1, a.length + b.length);
}

/** Pairs (i, j), both rising, with the largest sum of ``score(i, j)``; only pairs that score above 0. */
function matched(n, m, score) {
  const width = m + 1,
    best = new Float64Array((n + 1) * width),
    own = new Float64Array(n * m);
  for (let i = n - 1; i >= 0; i--)
    for (let j = m - 1; j >= 0; j--) {
      own[i * m + j] = score(i, j);
      const here = own[i * m + j] ? own[i * m + j] + best[(i + 1) * width + j + 1] : 0;
      best[i * width + j] = Math.max(here, best[(i + 1) * width + j], best[i * width + j + 1]);
    }
  const out = [];
  for (let i = 0, j = 0; i < n && j < m; )
    if (own[i * m + j] && best[i * width + j] === own[i * m + j] + best[(i + 1) * width + j + 1]) out.push([i++, j++]);
    else if (best[(i + 1) * width + j] >= best[i * width + j + 1]) i += 1;
    else j += 1;
  return out;
}

/** Rows [step or null, step or null, how]: "same", "alike", or "apart" for what stands between those. */
function aligned(left, right) {
  const a = left.map(wordsOf),
    b = right.map(wordsOf),
    short = left.length <= MOST_STEPS && right.length <= MOST_STEPS,
    near = (i, j) => {
      const share = alike(a[i], b[j]);
      return share >= ALIKE ? share : 0;
    };
  const rows = [];
  let i = 0,
    j = 0;
  for (const [p, q] of [...(short ? matched(a.length, b.length, near) : []), [left.length, right.length]]) {
    while (i < p || j < q) rows.push([i < p ? left[i++] : null, j < q ? right[j++] : null, "apart"]);
    const both = p < left.length && q < right.length,
      same = both && textOfStep(left[p]).trim() === textOfStep(right[q]).trim();
    if (both) rows.push([left[p], right[q], same ? "same" : "alike"]);
    i = p + 1;
    j = q + 1;
  }
  return rows;
}

/** A step as nodes; with ``other``, words and formulas that the other step has not are marked. */
function stepNodes(step, other) {
  const units = (of) => of.flatMap((p) => (p.tex === undefined ? p.source.split(/(\s+)/).map((source) => ({ source })) : [p]));
  const solid = (of) => units(of).filter((u) => u.source.trim());
  const mine = units(step),
    own = solid(step),
    its = other ? solid(other) : [];
  const compared = other && own.length <= MOST_WORDS && its.length <= MOST_WORDS;
  const common = compared
    ? new Set(matched(own.length, its.length, (i, j) => Number(own[i].source === its[j].source)).map(([i]) => own[i]))
    : null;
  let at = 0;
  return mine.map((unit) => {
    const node = asMath(unit) ?? legible(unit.source);
    if (!unit.source.trim()) return node;
    const known = !common || common.has(own[at++]);
    return known ? node : el("mark", { class: "differs" }, node);
  });
}

function besideTable(right, wrong, run) {
  const head = (s, of) =>
    el(
      "th",
      { scope: "col" },
      el("bdi", {}, plainName(of)),
      " ",
      verdictMark(s.v),
      el("small", {}, el("bdi", {}, legible(`answer ${s.a ?? "none"} · log π(y) ${s.lp === null ? "–" : brief(s.lp)}`))),
      el("button", { type: "button", onclick: () => explorer.go({ ...s, run: of }) }, s.trace ? "Open its tokens" : "Open"),
    );
  const cell = (step, other, of) =>
    el("td", { "data-run": plainName(of), class: step ? null : "none", dir: "auto" }, step ? stepNodes(step, other) : []);
  const rows = aligned(stepsOf(textOf(right)), stepsOf(textOf(wrong))).map(([a, b, how]) =>
    how === "same"
      ? el("tr", { class: "same" }, el("td", { colspan: 2, "data-run": "Both", dir: "auto" }, stepNodes(a)))
      : el("tr", {}, cell(a, how === "alike" && b, BASE), cell(b, how === "alike" && a, run)),
  );
  return el(
    "table",
    { class: "side-by-side" },
    el("caption", { class: "hidden" }, "Two completions, side by side"),
    el("thead", {}, el("tr", {}, head(right, BASE), head(wrong, run))),
    el("tbody", {}, rows),
  );
}

/** An element that fills itself when both completions are there. */
function besideView(run, task, problem) {
  const box = el("div", { "aria-live": "polite" });
  const none = (of, verdict) =>
    `This page holds no ${verdict} completion of ${problem} by ${plainName(of)}${DATA.live ? "." : "; ‘sage-rlvr explore’ has them all."}`;
  const fill = async () => {
    const [right, wrong] = await Promise.all([
      likeliestOf(BASE, task, problem, "right"),
      likeliestOf(run, task, problem, "wrong"),
    ]);
    if (!right || !wrong) {
      box.append(el("p", { class: "empty" }, right ? none(run, "wrong") : none(BASE, "right")));
      return;
    }
    box.append(
      el(
        "p",
        { class: "note" },
        "The base solves this problem and the run never does. Of each the likeliest completion by log π(y). Lines that are the " +
          "same stand once; of lines that are alike, the words that differ are marked.",
      ),
      besideTable(right, wrong, run),
    );
  };
  fill().catch((e) => box.replaceChildren(el("p", { class: "empty" }, `Could not load: ${e.message}`)));
  return box;
}
