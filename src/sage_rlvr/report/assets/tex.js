// TeX in problems and completions, drawn by the browser as MathML: only what is on the screen, element by element (never as
// markup). A formula with a command that is not known here stays as it was written.

/** "alpha α beta β" → {alpha: "α", beta: "β"}; without a prototype, so that \constructor is no command. */
const named = (text) =>
  text.split(" ").reduce((out, x, i, all) => (i % 2 ? { __proto__: null, ...out, [all[i - 1]]: x } : out), {});
const LETTERS = named(
  "alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι kappa κ lambda λ mu μ nu ν xi ξ " +
    "pi π rho ρ sigma σ tau τ upsilon υ phi ϕ varphi φ chi χ psi ψ omega ω Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ " +
    "Phi Φ Psi Ψ Omega Ω infty ∞ ell ℓ hbar ℏ emptyset ∅ varnothing ∅ angle ∠ triangle △ square □ partial ∂ nabla ∇ Re ℜ Im ℑ " +
    "degree ° dots … ldots … cdots ⋯ vdots ⋮ ddots ⋱ dotsc … dotsb ⋯ blacksquare ■ star ⋆ top ⊤ bot ⊥ checkmark ✓",
);
const OPERATORS = named(
  "lt < gt > cdot · times × div ÷ pm ± mp ∓ ast ∗ circ ∘ bullet • le ≤ leq ≤ leqslant ≤ ge ≥ geq ≥ geqslant ≥ ne ≠ neq ≠ ll ≪ gg ≫ " +
    "approx ≈ equiv ≡ sim ∼ simeq ≃ cong ≅ propto ∝ in ∈ notin ∉ ni ∋ subset ⊂ subseteq ⊆ supset ⊃ supseteq ⊇ cup ∪ cap ∩ " +
    "setminus ∖ backslash ∖ land ∧ wedge ∧ lor ∨ vee ∨ neg ¬ lnot ¬ forall ∀ exists ∃ to → rightarrow → longrightarrow ⟶ " +
    "leftarrow ← gets ← Rightarrow ⇒ Longrightarrow ⟹ implies ⟹ Leftarrow ⇐ iff ⟺ Leftrightarrow ⇔ leftrightarrow ↔ mapsto ↦ " +
    "therefore ∴ because ∵ mid ∣ nmid ∤ parallel ∥ perp ⊥ oplus ⊕ otimes ⊗ prime ′ colon : lvert | rvert | vert | lVert ‖ " +
    "rVert ‖ Vert ‖ langle ⟨ rangle ⟩ lfloor ⌊ rfloor ⌋ lceil ⌈ rceil ⌉ lbrace { rbrace } lbrack [ rbrack ] { { } } | ‖ % % $ $ " +
    "# # & & _ _ int ∫ iint ∬ oint ∮ uparrow ↑ downarrow ↓ bigcup ⋃ bigcap ⋂ sum ∑ prod ∏ coprod ∐",
);
const LARGE = new Set(["∑", "∏", "∐", "⋃", "⋂", "lim", "max", "min", "sup", "inf", "gcd", "lcm"]);
const FUNCTIONS = new Set(
  (
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp min max sup inf lim gcd lcm det dim deg ker " +
    "arg Pr mod"
  ).split(" "),
);
const SPACES = { __proto__: null, ",": 0.17, ":": 0.22, ";": 0.28, ">": 0.22, "!": 0, " ": 0.28, quad: 1, qquad: 2 };
const WORDS = new Set("text textbf textit textrm texttt mathrm operatorname operatorname* mbox hbox tag".split(" "));
const FONTS = new Set(["mathbf", "boldsymbol", "bm", "mathit", "mathsf", "mathcal", "mathscr", "mathfrak"]);
const OVER = named("hat ^ widehat ^ bar ‾ overline ‾ vec → overrightarrow → tilde ~ widetilde ~ dot ˙ ddot ¨ overbrace ⏞");
const UNDER = named("underline ‗ underbrace ⏟");
const BLACKBOARD = { __proto__: null, C: "ℂ", E: "𝔼", F: "𝔽", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ" };
const FENCES = { __proto__: null, pmatrix: "()", bmatrix: "[]", Bmatrix: "{}", vmatrix: "||", Vmatrix: "‖‖", cases: "{ " };
const TABLES = new Set([
  ..."aligned align align* split gather gather* gathered equation equation* array matrix smallmatrix".split(" "),
  ...Object.keys(FENCES),
]);
const SAME = named("dfrac frac tfrac frac cfrac frac dbinom binom tbinom binom fbox boxed overset stackrel");
const SILENT = /^(displaystyle|textstyle|limits|nolimits|(big|Big|bigg|Bigg)[lrm]?|middle|nonumber|notag|hfill)$/;
const DEEPEST = 40;

function mathml(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/1998/Math/MathML", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** One formula, read from left to right. Throws at what it does not know. */
class Formula {
  constructor(text, display) {
    this.words = text.match(/\\[A-Za-z]+\*?|\\[\s\S]|\d{1,3}(?:,\d{3})+(?!\d)|\d+(?:\.\d+)?|\s+|[\s\S]/gu) ?? [];
    this.display = display;
    this.at = 0;
    this.depth = 0;
  }

  whole() {
    const inside = this.row(() => false);
    return mathml("math", this.display ? { display: "block" } : {}, inside);
  }

  peek() {
    while (this.at < this.words.length && /^\s/.test(this.words[this.at])) this.at += 1;
    return this.words[this.at];
  }

  next(wanted) {
    const word = this.peek();
    if (word === undefined || (wanted && word !== wanted)) throw new Error(`${wanted ?? "something"} is missing`);
    this.at += 1;
    return word;
  }

  row(ends) {
    if (++this.depth > DEEPEST) throw new Error("too deep");
    const out = [];
    for (let word = this.peek(); word !== undefined && !ends(word); word = this.peek()) {
      const before = out[out.length - 1],
        first = !before || (before.localName === "mo" && !/^[)\]}|‖⟩⌋⌉!′]$/.test(before.textContent));
      out.push(this.scripted());
      if (first && /^[-+]$/.test(word)) out[out.length - 1].setAttribute("form", "prefix"); // of a number: no space after it
    }
    this.depth -= 1;
    return mathml("mrow", {}, ...out);
  }

  group(close = "}") {
    const row = this.row((word) => word === close);
    this.next(close);
    return row;
  }

  /** A group in braces, or the next sign alone: of 12 the 1. */
  argument() {
    const word = this.peek() ?? "";
    if (/^\d./.test(word)) {
      this.words.splice(this.at, 1, word[0], word.slice(1));
      return mathml("mn", {}, this.next());
    }
    return this.atom();
  }

  /** An atom with what hangs below and above it. */
  scripted() {
    const base = this.atom(),
      scripts = {};
    for (let word = this.peek(); ["_", "^", "'"].includes(word) || SILENT.test(word?.slice(1)); word = this.peek()) {
      this.next();
      if (word === "'") scripts.high = mathml("mo", {}, (scripts.high?.textContent ?? "") + "′");
      else if (word === "_" || word === "^") {
        const name = word === "_" ? "low" : "high";
        if (scripts[name] && name === "low") throw new Error("two below");
        scripts[name] = this.argument();
      }
    }
    const { low, high } = scripts,
      far = (this.display && LARGE.has(base.textContent)) || base.braced;
    if (low && high) return mathml(far ? "munderover" : "msubsup", {}, base, low, high);
    if (low) return mathml(far ? "munder" : "msub", {}, base, low);
    return high ? mathml(far ? "mover" : "msup", {}, base, high) : base;
  }

  atom() {
    const word = this.next();
    if (word === "{") return this.group();
    if (word === "}" || word === "&" || word === "_" || word === "^") throw new Error(`${word} is alone`);
    if (word === "~") return mathml("mspace", { width: "0.28em" });
    if (word[0] === "\\") return this.command(word.slice(1));
    if (/^\d/.test(word)) return mathml("mn", {}, word);
    if (/^\p{L}$/u.test(word)) return mathml("mi", {}, word);
    return operator(legible(word === "-" ? "−" : word));
  }

  command(name) {
    if (name in LETTERS) return mathml("mi", {}, LETTERS[name]);
    if (name in OPERATORS) return operator(OPERATORS[name]);
    if (FUNCTIONS.has(name)) return mathml("mi", { class: "function" }, name);
    if (name in SPACES) return mathml("mspace", { width: `${SPACES[name]}em` });
    if (SILENT.test(name)) return mathml("mrow", {});
    if (WORDS.has(name)) return mathml("mtext", {}, legible(name === "tag" ? ` (${this.raw()})` : this.raw()));
    if (FONTS.has(name)) return mathml("mrow", /^b|bf$/.test(name) ? { class: "bold" } : {}, this.argument());
    if (name in OVER) return this.accent("mover", OVER[name], name === "overbrace");
    if (name in UNDER) return this.accent("munder", UNDER[name], name === "underbrace");
    const own = {
      frac: () => mathml("mfrac", {}, this.argument(), this.argument()),
      binom: () => this.binomial(),
      sqrt: () => this.root(),
      mathbb: () => {
        const letter = this.raw();
        if (!(letter in BLACKBOARD)) throw new Error(`no blackboard ${letter}`);
        return mathml("mi", {}, BLACKBOARD[letter]);
      },
      boxed: () => mathml("mrow", { class: "boxed" }, this.argument()),
      left: () => this.fenced(),
      pmod: () => mathml("mrow", {}, mathml("mtext", {}, " (mod "), this.argument(), mathml("mtext", {}, ")")),
      bmod: () => mathml("mo", {}, "mod"),
      not: () => operator({ "=": "≠", "\\in": "∉", "\\mid": "∤" }[this.peek()] ?? "", this.next()),
      stackrel: () => {
        const above = this.argument();
        return mathml("mover", {}, this.argument(), above);
      },
      begin: () => this.table(),
      "\\": () => mathml("mspace", { linebreak: "newline" }),
      __proto__: null,
    }[SAME[name] ?? name];
    if (!own) throw new Error(`\\${name} is not known`);
    return own();
  }

  binomial() {
    const inside = mathml("mfrac", { linethickness: "0" }, this.argument(), this.argument());
    return mathml("mrow", {}, mathml("mo", {}, "("), inside, mathml("mo", {}, ")"));
  }

  accent(tag, mark, brace) {
    const kind = tag === "mover" ? "accent" : "accentunder";
    const out = mathml(tag, brace ? {} : { [kind]: "true" }, this.argument(), mathml("mo", {}, mark));
    out.braced = brace; // what it is called stands above or below it
    return out;
  }

  root() {
    if (this.peek() !== "[") return mathml("msqrt", {}, this.argument());
    this.next("[");
    const degree = this.group("]");
    return mathml("mroot", {}, this.argument(), degree);
  }

  fenced() {
    const one = this.fence(),
      inside = this.row((word) => word === "\\right");
    this.next("\\right");
    return mathml("mrow", {}, ...one, inside, ...this.fence());
  }

  fence() {
    const word = this.next(),
      mark = word[0] === "\\" ? OPERATORS[word.slice(1)] : word;
    if (!mark || mark.length > 1) throw new Error(`${word} is no fence`);
    const shape = { "<": "⟨", ">": "⟩" }[mark] ?? mark;
    return mark === "." ? [] : [mathml("mo", { fence: "true", stretchy: "true" }, shape)];
  }

  table() {
    const name = this.raw();
    if (!TABLES.has(name)) throw new Error(`${name} is not known`);
    if (name === "array") this.raw();
    const rows = [[]],
      ends = (word) => ["&", "\\\\", "\\end"].includes(word);
    for (let word = "&"; word !== "\\end"; word = this.next()) {
      if (word === "\\\\") rows.push([]);
      rows[rows.length - 1].push(mathml("mtd", {}, this.row(ends)));
    }
    if (this.raw() !== name) throw new Error(`${name} does not end`);
    if (!rows[rows.length - 1].some((cell) => cell.textContent)) rows.pop();
    const kind = /align|split/.test(name) ? "aligned" : name === "cases" ? "cases" : "grid";
    const made = mathml("mtable", { class: kind }, ...rows.map((cells) => mathml("mtr", {}, ...cells)));
    const [open, close] = FENCES[name] ?? "  ",
      mark = (x) => (x === " " ? [] : [mathml("mo", { fence: "true", stretchy: "true" }, x)]);
    return mathml("mrow", {}, ...mark(open), made, ...mark(close));
  }

  /** Words between braces, as they are written. */
  raw() {
    this.next("{");
    let out = "";
    for (let open = 1; open; ) {
      const word = this.words[this.at++];
      if (word === undefined) throw new Error("} is missing");
      open += word === "{" ? 1 : word === "}" ? -1 : 0;
      if (open) out += /^\\[\s$%&#_{}]$/.test(word) ? word[1] : word;
    }
    if (/\\|\$/.test(out)) throw new Error("a formula in words");
    return out;
  }
}

function operator(text) {
  if (!text) throw new Error("a sign that is not known");
  return mathml("mo", /^[()[\]{}|‖⟨⟩⌊⌋⌈⌉∣]$/.test(text) ? { stretchy: "false" } : {}, text);
}

// what stays as it is (code, drawings), then $$…$$, \[…\], \(…\), $…$, an environment, and a box outside of a formula
const LONGEST = "{1,3000}?";
const TEX = new RegExp(
  [
    "(```[\\s\\S]{0,9000}?```|\\[asy\\][\\s\\S]{0,9000}?\\[/asy\\])",
    `\\$\\$([\\s\\S]${LONGEST})\\$\\$`,
    `\\\\\\[([\\s\\S]${LONGEST})\\\\\\]`,
    `\\\\\\(([\\s\\S]${LONGEST})\\\\\\)`,
    "(?<![$\\\\\\d])\\$(?=\\S)((?:\\\\[\\s\\S]|[^$\\\\\\n]){1,1000}?)(?<=\\S)\\$(?![\\d$])",
    `(\\\\begin\\{([a-z]{1,12}\\*?)\\}[\\s\\S]${LONGEST}\\\\end\\{\\7\\})`,
    "(\\\\boxed\\{(?:[^{}\\n]|\\{(?:[^{}\\n]|\\{[^{}\\n]{0,200}\\}){0,200}\\}){0,300}\\})",
  ].join("|"),
  "g",
);
const PROSE = /[A-Za-z]{4,} [A-Za-z]{2,}/; // between two prices, not in a formula

/** The text in pieces: {source} is text, {source, code} code, {source, tex, display} a formula. */
function formulas(text) {
  const out = [];
  let from = 0;
  for (const hit of text.matchAll(TEX)) {
    const [source, asIs, dollars, bracketed, round, inline, environment, , box] = hit;
    const tex = dollars ?? bracketed ?? round ?? inline ?? environment ?? box;
    if (asIs === undefined && PROSE.test(tex.replace(/\\(text|mbox)\w*\{[^}]*\}|\\[A-Za-z]+/g, " "))) continue;
    if (hit.index > from) out.push({ source: text.slice(from, hit.index) });
    if (asIs !== undefined) out.push({ source, code: true });
    else out.push({ source, tex, display: Boolean(dollars ?? bracketed ?? environment) });
    from = hit.index + source.length;
  }
  if (from < text.length) out.push({ source: text.slice(from) });
  return out;
}

/** A formula as an element, null where it cannot be drawn. */
function asMath({ tex, display }) {
  try {
    return tex === undefined ? null : new Formula(tex, display).whole();
  } catch {
    return null;
  }
}

/** Text with its formulas drawn; each keeps its source as a title. One on a line of its own needs no empty lines around it. */
function rendered(text) {
  const all = formulas(text).map((piece) => ({ ...piece, math: asMath(piece) })),
    block = (piece) => piece?.math && piece.display;
  return all.map(({ source, code, math }, i) => {
    if (code) return el("code", {}, legible(source));
    if (math) {
      math.setAttribute("title", legible(source));
      return math;
    }
    const start = block(all[i - 1]) ? source.replace(/^\s*\n/, "") : source;
    return legible(block(all[i + 1]) ? start.replace(/\n\s*$/, "") : start);
  });
}

const hasTex = (text) => formulas(text).some((piece) => asMath(piece));
