// Where the explorer's completions come from: the page itself, or the server of `sage-rlvr explore`.

const PAGE = 50;

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
