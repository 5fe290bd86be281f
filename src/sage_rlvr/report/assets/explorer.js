// The token explorer. Where completions come from is the only thing that differs between a file and `sage-rlvr explore`.

const PAGE = 50;
const LEVELS = 9; // shades, .h1 … .h9 and .c1 … .c9 in explorer.css

// ---- sources -------------------------------------------------------------------------------------------------------

const textOf = (s) => (s.trace ? s.trace.tokens.join("") : s.c);

const inPage = {
  chunks: new Map(),
  of(run) {
    if (!this.chunks.has(run))
      this.chunks.set(run, JSON.parse(document.querySelector(`script[data-samples="${run}"]`)?.textContent || "[]"));
    return this.chunks.get(run);
  },
  problems(run, task) {
    return [
      ...new Set(
        this.of(run)
          .filter((s) => s.t === task)
          .map((s) => s.p),
      ),
    ];
  },
  async list({ run, task, problem, verdict, search, offset }) {
    const word = search.toLowerCase();
    const hits = this.of(run).filter(
      (s) =>
        s.t === task &&
        (!problem || s.p === problem) &&
        (!verdict || verdict === { 1: "right", 0: "wrong" }[s.v]) &&
        (!word || textOf(s).toLowerCase().includes(word)),
    );
    return { rows: hits.slice(offset, offset + PAGE), total: hits.length, more: hits.length > offset + PAGE };
  },
  async sample(run, row) {
    return row;
  },
};

const served = {
  problems(run, task) {
    const t = DATA.tasks[task];
    return t.problems.filter((_, j) => t.first[run] && t.rate[run][j] !== null);
  },
  async get(path, query) {
    const reply = await fetch(`${path}?${new URLSearchParams(query)}`);
    if (!reply.ok)
      throw new Error((await reply.json().catch(() => ({}))).error || `the server answered ${reply.status}`);
    return reply.json();
  },
  list(query) {
    return this.get("api/samples", { ...query, run: plainName(query.run), limit: PAGE });
  },
  sample(run, row, from = 0) {
    return this.get("api/sample", { run: plainName(run), task: row.t, problem: row.p, seed: row.s, index: row.i, from });
  },
};

const source = DATA.live ? served : inPage;

// ---- text that may be anything -------------------------------------------------------------------------------------

const INVISIBLE =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb]|[\u{e0000}-\u{e0fff}]/gu;

/** Zero-width, control and direction characters as ‹U+200B›; line ends stay. */
const legible = (text) =>
  text
    .replace(/\r\n/g, "\n")
    .replace(INVISIBLE, (c) => `‹U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`);

/** The text as nodes, hits of the search marked. */
function marked(text, word) {
  if (!word) return [legible(text)];
  const out = [],
    low = text.toLowerCase(),
    find = word.toLowerCase();
  let from = 0;
  for (let at = low.indexOf(find); at >= 0 && out.length < 2000; at = low.indexOf(find, from)) {
    out.push(legible(text.slice(from, at)), el("mark", {}, legible(text.slice(at, at + find.length))));
    from = at + find.length;
  }
  return [...out, legible(text.slice(from))];
}

function snippet(text, word) {
  const hit = word ? text.toLowerCase().indexOf(word.toLowerCase()) : 0,
    from = Math.max(0, hit - 40);
  return (from ? "…" : "") + text.slice(from, from + 140).replace(/\s+/g, " ");
}

// ---- the explorer --------------------------------------------------------------------------------------------------

const verdictWord = (v) => (v === 1 ? "right" : v === 0 ? "wrong" : "unverifiable");
const verdictMark = (v) =>
  el("span", { class: `verdict v-${verdictWord(v)}` }, { 1: "✓ right", 0: "✗ wrong" }[v] || "? unverifiable");

/** The first traced run that a guide shaped, else the first traced one, else the first. */
function opening() {
  const traced = EVALS.filter((i) => DATA.traces?.[i]?.count),
    guided = (i) => ![undefined, null, "none"].includes(DATA.traces[i].with?.guide);
  return traced.find(guided) ?? traced[0] ?? EVALS[0];
}

class Explorer {
  constructor() {
    this.state = { run: opening(), task: null, problem: "", verdict: "", search: "", offset: 0 };
    this.view = { measure: "effect", at: null };
    this.turn = 0;
    this.filters = el("div", { class: "filters" });
    this.list = el("ol", { class: "samples", "aria-label": "Completions" });
    this.count = el("p", { class: "note", "aria-live": "polite" });
    this.left = el("p", { class: "note" });
    this.pager = el("div", { class: "pager" });
    this.detail = el("div", { class: "detail" });
    this.root = el(
      "div",
      { class: "explorer" },
      el("div", { class: "side" }, this.filters, this.count, this.list, this.pager, this.left),
      this.detail,
    );
  }

  /** Changes what is asked for; what does not fit the new run or task falls back. */
  set(change, keep = false) {
    Object.assign(this.state, { offset: 0 }, change);
    const tasks = TASKS.filter((t) => DATA.tasks[t].first[this.state.run]);
    if (!tasks.includes(this.state.task)) this.state.task = tasks[0];
    const known = source.problems(this.state.run, this.state.task);
    if (this.state.problem && !known.includes(this.state.problem) && !keep) this.state.problem = "";
    if (!("search" in change)) this.drawFilters(tasks, known);
    this.load();
  }

  drawFilters(tasks, known) {
    const s = this.state,
      t = DATA.tasks[s.task],
      rate = (p) => {
        const r = t.rate[s.run]?.[t.problems.indexOf(p)];
        return r === null || r === undefined ? "" : ` · ${Math.round(100 * r)}% right`;
      };
    const active = document.activeElement,
      id = this.filters.contains(active) ? active.closest("label, fieldset")?.textContent : null;
    const missing = s.problem && !known.includes(s.problem) ? [[s.problem, s.problem]] : [];
    const find = el("input", {
      type: "search",
      value: s.search,
      oninput: () => {
        clearTimeout(this.typing);
        this.typing = setTimeout(() => this.set({ search: find.value }), DATA.live ? 300 : 80);
      },
    });
    this.filters.replaceChildren(
      select(
        "Run",
        EVALS.map((r) => [r, plainName(r)]),
        s.run,
        (v) => this.set({ run: Number(v) }),
      ),
      select(
        "Task",
        tasks.map((name) => [name, name]),
        s.task,
        (v) => this.set({ task: v, problem: "" }),
      ),
      select(
        "Problem",
        [["", `All (${number(known.length)})`], ...missing, ...known.map((p) => [p, legible(p) + rate(p)])],
        s.problem,
        (v) => this.set({ problem: v }),
      ),
      choice(
        "Verdict",
        [
          ["", "All"],
          ["right", "✓ Right"],
          ["wrong", "✗ Wrong"],
        ],
        s.verdict,
        (v) => this.set({ verdict: v }),
      ),
      el("label", { class: "field" }, el("span", {}, "Text contains"), find),
    );
    if (id)
      [...this.filters.children]
        .find((c) => c.textContent === id)
        ?.querySelector("select, input:checked, input")
        ?.focus();
  }

  async load() {
    const turn = ++this.turn,
      s = this.state;
    let found;
    try {
      found = await source.list(s);
    } catch (e) {
      if (turn === this.turn) this.count.textContent = `Could not load: ${e.message}`;
      return;
    }
    if (turn !== this.turn) return;
    const to = s.offset + found.rows.length;
    this.count.textContent = found.rows.length
      ? `${number(s.offset + 1)}–${number(to)} of ${found.total === null ? (found.more ? "more" : number(to)) : number(found.total)}`
      : "";
    this.list.replaceChildren(...found.rows.map((row) => this.item(row)));
    const turnTo = (offset) => () => this.set({ offset, search: s.search });
    this.pager.replaceChildren(
      ...(s.offset || found.more
        ? [
            el(
              "button",
              { type: "button", disabled: !s.offset, onclick: turnTo(Math.max(0, s.offset - PAGE)) },
              "← Previous",
            ),
            el("button", { type: "button", disabled: !found.more, onclick: turnTo(to) }, "Next →"),
          ]
        : []),
    );
    this.left.textContent = this.leftOut();
    const wanted = this.wanted && found.rows.find((r) => String(r.s) === this.wanted.seed && String(r.i) === this.wanted.index);
    if (found.rows.length) this.open(wanted ?? found.rows[0], !this.touched);
    else this.empty();
  }

  item(row) {
    const text = row.c === undefined ? textOf(row) : row.c;
    const button = el(
      "button",
      { type: "button", onclick: () => this.open(row) },
      el(
        "span",
        { class: "meta" },
        verdictMark(row.v),
        el("bdi", {}, legible(row.p)),
        ` seed ${row.s}, #${row.i} · ${number(row.n)} tokens`,
        row.trace || row.traced ? el("span", { class: "traced", title: "has per-token numbers" }, " ▦") : null,
      ),
      el("bdi", { class: "snippet" }, marked(snippet(text, this.state.search), this.state.search)),
    );
    button.row = row;
    return el("li", {}, button);
  }

  leftOut() {
    const c = DATA.completions?.[this.state.run];
    if (!c) return "";
    const traced = DATA.traces[this.state.run].count;
    const cut = c.cut ? ` ${number(c.cut)} long texts are cut.` : "",
      traces = traced > c.traces ? ` ${number(c.traces)} of ${number(traced)} traces are in it.` : "";
    const all = c.shown === c.stored && !c.cut && traced === c.traces;
    return all
      ? `All ${number(c.stored)} completions of this run are in the page.`
      : `To stay small, this page holds ${number(c.shown)} of the ${number(c.stored)} completions of this run, from ${number(c.problems)} of its ${number(c.of)} problems: right and wrong ones by turns.${cut}${traces} ‘sage-rlvr explore’ has them all.${c.notes.length ? ` Note: ${c.notes.slice(0, 3).join("; ")}.` : ""}`;
  }

  empty() {
    const s = this.state,
      filtered = s.verdict || s.search;
    const why =
      s.problem && !filtered && !DATA.live
        ? `This page holds no completion of ${s.problem} by ${plainName(s.run)}; ‘sage-rlvr explore’ on its folder has them all.`
        : filtered
          ? "No completion fits these filters."
          : "There are no completions here.";
    this.detail.replaceChildren(el("p", { class: "empty" }, why));
    this.sample = null;
  }

  /** ``first``: opened by the page itself, which leaves its address alone. */
  async open(row, first = false) {
    const turn = (this.opening = (this.opening || 0) + 1),
      run = this.state.run;
    for (const b of this.list.querySelectorAll("button"))
      b.setAttribute("aria-current", b.row === row ? "true" : "false");
    let sample;
    try {
      sample = await source.sample(run, row);
    } catch (e) {
      this.detail.replaceChildren(el("p", { class: "empty" }, `Could not load: ${e.message}`));
      return;
    }
    if (turn !== this.opening) return;
    this.sample = sample;
    this.touched = true;
    if (!first) keepPlace(linkTo(run, row));
    const token = this.wanted?.token ? Number(this.wanted.token) - 1 : null;
    this.wanted = null;
    for (const c of charts) if (this.detail.contains(c.figure)) charts.delete(c);
    this.detail.replaceChildren(
      ...this.header(sample, run),
      ...(sample.trace
        ? traceView(sample, this.view, this.state.search, DATA.traces?.[run]?.with || {}, run, row, token)
        : this.plain(sample, run)),
    );
  }

  header(s, run) {
    const facts = [
      ["Run", plainName(run)],
      ["Seed", `${s.s}, sample ${s.i}`],
      ["Tokens", number(s.n)],
      ["Ended", { stop: "by itself", length: "at the length limit", error: "with an error" }[s.f] || s.f],
      ["Answer", s.a === null || s.a === undefined ? "none" : s.a],
      ["log π(y)", s.lp === null ? "–" : brief(s.lp)],
    ];
    const asked = DATA.questions?.[s.t]?.[s.p];
    return [
      el("h3", {}, el("bdi", {}, legible(`${s.t} / ${s.p}`)), " ", verdictMark(s.v)),
      asked ? el("p", { class: "question", dir: "auto" }, legible(asked)) : null,
      el(
        "dl",
        { class: "facts" },
        facts.map(([k, v]) => el("div", {}, el("dt", {}, k), el("dd", {}, el("bdi", {}, legible(String(v)))))),
      ),
    ].filter(Boolean);
  }

  plain(s, run) {
    const text = el(
      "div",
      { class: "text", dir: "auto", tabindex: 0, role: "region", "aria-label": "Completion" },
      marked(s.c, this.state.search),
    );
    const traced = DATA.traces?.[run]?.count > 0;
    const how = el(
      "p",
      { class: "note how" },
      traced
        ? "This completion has no per-token numbers; those marked ▦ have. "
        : "This run has no per-token numbers yet. ",
      el("code", {}, `sage-rlvr trace ${plainName(run)}`),
      " reads stored completions through its checkpoints and writes them.",
    );
    const parts = [how, text];
    if (s.cut !== undefined) parts.push(this.rest(s, run, text));
    return parts;
  }

  /** What is said of a text that was cut; where there is a server, the way to the rest of it. */
  rest(s, run, text) {
    const note = el("p", { class: "note cut" });
    let have = s.c.length;
    const say = () => {
      note.replaceChildren(have < s.cut ? `Cut: the first ${number(have)} of ${number(s.cut)} characters. ` : "");
      if (DATA.live && have < s.cut) note.append(el("button", { type: "button", onclick: more }, "Show more"));
      else if (have < s.cut) note.append("‘sage-rlvr explore’ shows the rest.");
    };
    const more = async () => {
      const next = await source.sample(run, s, have);
      text.append(legible(next.c));
      have += next.c.length;
      say();
    };
    have = [...s.c].length === s.c.length ? have : [...s.c].length;
    say();
    return note;
  }
}

// ---- a place in the explorer as a link -------------------------------------------------------------------------------

/** #explorer?run=…&task=…&problem=…&seed=0&index=3&token=12: what a colleague opens is what you see. */
function linkTo(run, row, token = null) {
  const at = { run: plainName(run), task: row.t, problem: row.p, seed: row.s, index: row.i };
  return `#explorer?${new URLSearchParams(token === null ? at : { ...at, token: token + 1 })}`;
}

function linked() {
  const [section, query] = decodeHash().split("?");
  if (section !== "explorer" || !query) return null;
  const at = Object.fromEntries(new URLSearchParams(query)),
    run = EVALS.find((r) => plainName(r) === at.run);
  return run === undefined ? null : { ...at, run };
}

const decodeHash = () => location.hash.slice(1);

function keepPlace(hash) {
  try {
    history.replaceState(null, "", hash);
  } catch {
    /* some browsers forbid it for files: the link is then not kept */
  }
}

let explorer = null;

function showInExplorer(run, task, problem) {
  if (!explorer) return;
  explorer.set({ run, task, problem, verdict: "", search: "" }, true);
  explorer.drawFilters(
    TASKS.filter((t) => DATA.tasks[t].first[run]),
    source.problems(run, task),
  );
  document.getElementById("explorer").scrollIntoView();
  explorer.filters.querySelector("select")?.focus({ preventScroll: true });
}

function tokenExplorer() {
  const at = body("explorer");
  if (!EVALS.length) {
    at.append(el("p", { class: "note" }, "There are no completions: sage-rlvr eval draws them."));
    return;
  }
  explorer = new Explorer();
  at.append(explorer.root);
  const first = () => {
    const at = linked();
    explorer.wanted = at;
    if (!explorer.turn) explorer.set(at ? { run: at.run, task: at.task, problem: at.problem } : {});
  };
  whenNear(explorer.root, first, false); // nothing is below it, and a server would be asked
}
