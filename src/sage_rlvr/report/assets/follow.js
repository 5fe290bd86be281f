// A served page follows its runs: it asks whether their files have changed, and loads itself again at the reader's place.

const POLL = 2000; // ms
const QUIET = 10000; // ms without a key: who types or reads by keyboard is not interrupted
const chosen = () => [...document.querySelectorAll("main section:not(#explorer) :is(input, select)")];
const valueOf = (c) => (c.type === "select-one" ? c.value : c.checked);
const labelOf = (c) =>
  [c.closest("section").id, c.closest("fieldset, label")?.textContent, c.type === "select-one" || c.value].join("|");

/** The reader's place: section and pixels into it, runs on and off, what is chosen in each section and in the explorer. */
function readersPlace() {
  const sections = [...document.querySelectorAll("main > section")],
    section = sections.findLast((s) => s.getBoundingClientRect().top <= 120) ?? sections[0],
    named = (on) => [...DATA.runs.keys()].filter((run) => shown.has(run) === on).map(plainName);
  return {
    section: section.id,
    into: -section.getBoundingClientRect().top,
    on: named(true),
    off: named(false),
    chosen: chosen().map((c) => [labelOf(c), valueOf(c)]),
    explorer: explorer?.turn ? { run: plainName(explorer.state.run), state: explorer.state, view: explorer.view } : null,
  };
}

/** The place before the page loaded itself again, or null. Comes before anything is drawn. */
function placeBefore() {
  const before = DATA.live ? JSON.parse(sessionStorage.getItem("sage-place")) : null;
  if (!before) return null;
  sessionStorage.removeItem("sage-place");
  for (const run of DATA.runs.keys()) {
    if (before.off.includes(plainName(run))) shown.delete(run);
    else if (before.on.includes(plainName(run))) shown.add(run);
  }
  return before;
}

function goBack(before) {
  const was = new Map(before.chosen);
  for (const c of chosen()) {
    const value = was.get(labelOf(c));
    if (value === undefined || value === valueOf(c)) continue;
    if (c.type === "select-one") {
      c.value = value;
      c.dispatchEvent(new Event("change"));
    } else if (value || c.type === "checkbox") c.click();
  }
  const run = EVALS.find((r) => plainName(r) === before.explorer?.run);
  if (run !== undefined) {
    Object.assign(explorer.state, before.explorer.state, { run });
    Object.assign(explorer.view, before.explorer.view);
    explorer.wanted = linked();
    explorer.set({ offset: explorer.state.offset });
  }
  const section = document.getElementById(before.section);
  const grown = new ResizeObserver(() =>
    scrollTo({ top: section.getBoundingClientRect().top + scrollY + before.into, behavior: "instant" }),
  );
  grown.observe(document.getElementById("main")); // figures are drawn as they come near: until the reader moves
  for (const kind of ["wheel", "touchmove", "keydown", "pointerdown"])
    addEventListener(kind, () => grown.disconnect(), { once: true });
}

function follow() {
  history.scrollRestoration = "manual";
  const word = el("span", { id: "live", role: "status" }, "live");
  document.querySelector(".tools").prepend(word);
  let key = -QUIET;
  addEventListener("keydown", () => (key = performance.now()));
  setInterval(async () => {
    if (document.hidden || performance.now() - key < QUIET) return;
    const now = await fetch("api/version").then(
      (reply) => reply.text(),
      () => null,
    );
    word.textContent = now === null ? "server ended" : "live";
    if (now === null || now === DATA.live) return;
    sessionStorage.setItem("sage-place", JSON.stringify(readersPlace()));
    location.reload();
  }, POLL);
}
