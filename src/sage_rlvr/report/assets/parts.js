// Small parts that every section uses. Text from runs only ever enters the page through textContent.

const DATA = JSON.parse(document.getElementById("data").textContent);
const EVALS = DATA.runs.map((r, i) => i).filter((i) => DATA.runs[i].kind === "evaluation");
const TRAINS = DATA.runs.map((r, i) => i).filter((i) => DATA.runs[i].kind === "training");
const TASKS = Object.keys(DATA.tasks);
const SHOWN_AT_FIRST = 8; // of each kind: as many as there are colours

/** el("p", {class: "note", onclick: f}, "text", child, …): an element; strings become text, never markup. */
function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
  return node;
}

const body = (section) => document.querySelector(`#${section} .body`);
const number = (x) => Number(x).toLocaleString("en");
const share = (x) => (x === null || x === undefined ? "–" : Math.min(Math.max(x, 0), 1).toFixed(3));

/** Any number, short: 4 significant digits. */
function brief(x) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  const size = Math.abs(x);
  return size !== 0 && (size < 0.001 || size >= 100000) ? x.toExponential(2) : String(Number(x.toPrecision(4)));
}

/** "0.163 [0.150, 0.177]" */
const interval = (t) => (t[1] === null ? share(t[0]) : `${share(t[0])} [${share(t[1])}, ${share(t[2])}]`);

function table(head, rows, caption) {
  return el(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el(
      "table",
      {},
      el("caption", {}, caption),
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          head.map((h) => el("th", { scope: "col" }, h)),
        ),
      ),
      el(
        "tbody",
        {},
        rows.map((row) =>
          el(
            "tr",
            {},
            row.map((c, i) => el(i ? "td" : "th", i ? {} : { scope: "row" }, c)),
          ),
        ),
      ),
    ),
  );
}

/** A data table that is only made when it is opened: the figure in words. */
function behind(caption, make, title = "Data table") {
  const details = el(
    "details",
    { class: "data" },
    el("summary", {}, title, el("span", { class: "hidden" }, `: ${caption}`)),
  );
  details.addEventListener("toggle", () => {
    if (!details.open) return;
    while (details.children.length > 1) details.lastChild.remove();
    const [head, rows] = make();
    details.append(table(head, rows, caption));
  });
  return details;
}

/** Radio buttons that look like one control. */
function choice(label, options, value, onpick) {
  const name = `c${(choice.count = (choice.count || 0) + 1)}`;
  return el(
    "fieldset",
    { class: "choice" },
    el("legend", {}, label),
    options.map(([id, text]) =>
      el(
        "label",
        {},
        el("input", { type: "radio", name, value: id, checked: id === value, onchange: () => onpick(id) }),
        el("span", {}, text),
      ),
    ),
  );
}

/** Which score the charts and tables show. */
function measure(onpick) {
  const scores = [
    ["pass", "pass@k"],
    ["majority", "majority@k"],
  ];
  return choice("Measure", scores, "pass", onpick);
}

function select(label, options, value, onpick) {
  const box = el("select", { onchange: () => onpick(box.value) });
  box.replaceChildren(
    ...options.map(([id, text]) => el("option", { value: id, selected: String(id) === String(value) }, text)),
  );
  return el("label", { class: "field" }, el("span", {}, label), box);
}

function check(label, on, onpick) {
  const box = el("input", { type: "checkbox", checked: on, onchange: () => onpick(box.checked) });
  return el("label", { class: "check" }, box, el("span", {}, label));
}

const plainName = (run) => DATA.runs[run].name;

// ---- which runs are drawn, and in which colour ---------------------------------------------------------------------

const COLOURS = 8; // --run-0 … --run-7 in page.css; dashes tell apart what shares a colour
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
const shown = new Set([...EVALS.slice(0, SHOWN_AT_FIRST), ...TRAINS.slice(0, SHOWN_AT_FIRST)]);
const watchers = [];
const variantOf = (run) => (DATA.first?.variants ?? []).findIndex((v) => v.runs.includes(run)); // its seeds share a colour
const places = DATA.runs.map((r, run) => (EVALS.includes(run) ? tintOf(run) : partner(run)));
const place = (run) => places[run];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colour = (run, tint = place(run)) => css(`--run-${tint % COLOURS}`);
const dash = (run, tint = place(run)) => DASHES[Math.floor(tint / COLOURS) % DASHES.length];
const visible = (runs) => runs.filter((run) => shown.has(run));
const redraw = () => watchers.forEach((f) => f());

/** Variants first, in their order; then what is in none of them. */
function tintOf(run) {
  const own = variantOf(run),
    rest = EVALS.filter((e) => variantOf(e) < 0);
  return own >= 0 ? own : (DATA.first?.variants.length ?? 0) + rest.indexOf(run);
}

/** A training run shares the colour of the evaluation of the same name, where there is one. */
function partner(run) {
  const leaf = (name) => name.replace(" (training)", "").split("/");
  const mine = leaf(plainName(run));
  const same = EVALS.findIndex((e) => {
    const its = leaf(plainName(e));
    return its.some((part) => part === mine[mine.length - 1]) && its[0] === mine[0];
  });
  return same >= 0 ? tintOf(EVALS[same]) : TRAINS.indexOf(run) + (EVALS.length ? 1 : 0);
}

function swatch(run, tint = place(run)) {
  return el("span", {
    class: `swatch run-${tint % COLOURS} dash-${Math.floor(tint / COLOURS) % DASHES.length}`,
    "aria-hidden": "true",
  });
}

function runsPanel() {
  const button = document.getElementById("runs-button"),
    panel = document.getElementById("runs-panel");
  const boxes = new Map();
  const label = () => {
    button.textContent = `Runs ${shown.size}/${DATA.runs.length}`;
  };
  const set = (run, on) => {
    if (on) shown.add(run);
    else shown.delete(run);
    boxes.get(run).querySelector("input").checked = on;
  };
  const group = (title, runs) =>
    runs.length &&
    el(
      "div",
      { class: "group" },
      el("h3", {}, title),
      runs.map((run) => {
        const box = el(
          "label",
          { class: "check" },
          el("input", {
            type: "checkbox",
            checked: shown.has(run),
            onchange: (e) => {
              set(run, e.target.checked);
              label();
              redraw();
            },
          }),
          swatch(run),
          el("bdi", {}, plainName(run)),
        );
        boxes.set(run, box);
        return box;
      }),
    );
  const all = (on) => {
    [...boxes].forEach(([run, box]) => {
      if (!box.hidden) set(run, on);
    });
    label();
    redraw();
  };
  const find = el("input", {
    type: "search",
    placeholder: "Filter by name",
    "aria-label": "Filter runs by name",
    oninput: () => {
      for (const [run, box] of boxes) box.hidden = !plainName(run).toLowerCase().includes(find.value.toLowerCase());
    },
  });
  panel.append(
    el(
      "div",
      { class: "controls" },
      find,
      el("button", { type: "button", onclick: () => all(true) }, "All"),
      el("button", { type: "button", onclick: () => all(false) }, "None"),
    ),
    el("div", { class: "groups" }, group("Evaluations", EVALS), group("Trainings", TRAINS)),
  );
  const open = (on) => {
    panel.hidden = !on;
    button.setAttribute("aria-expanded", on);
  };
  button.addEventListener("click", () => open(panel.hidden));
  document.addEventListener("keydown", (e) => {
    if (e.key === "Escape" && !panel.hidden) {
      open(false);
      button.focus();
    }
  });
  document.addEventListener("click", (e) => {
    if (!panel.hidden && !panel.contains(e.target) && e.target !== button) open(false);
  });
  label();
}
