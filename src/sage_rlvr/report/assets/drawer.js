// The drawer under a token's numbers: q and pull of that token under other settings, by the formulas of anchor.js. It starts at
// the run's own settings and follows the token that the explorer tells of (the event sage:token).

const DIALS = { ratio: ["ratio", 2], threshold: ["threshold τ", 3], kappa_max: ["κ at most", 1], kappa: ["κ", 1], beta: ["β", 0.2] }; // name, end
const UNSTORED = {
  random: "the noise that training drew",
  token: "the noise that training drew and the whole completion",
  "branch-quantile": "the entropies of the whole rollout batch",
  "tempered-quantile": "the entropies of the whole rollout batch",
  group: "the solve rate of the training group",
  value: "hidden states and the value head",
};

class Drawer {
  constructor() {
    this.controls = el("div", { class: "controls" });
    this.why = el("p", { class: "note why", "aria-live": "polite" });
    this.numbers = el("div", {});
    this.root = el(
      "details",
      { class: "drawer" },
      el("summary", {}, "Try other settings on this token"),
      this.controls,
      this.numbers,
      this.why,
    );
    document.addEventListener("sage:token", (e) => this.follow(e.detail));
  }

  /** The token of the event, unless the reader stands on another one or is busy in the drawer. */
  follow(token) {
    const active = document.activeElement;
    const held = active?.closest(".tokens") ? active.i !== token.index : this.root.contains(active) && this.token;
    if (held && this.root.isConnected && this.root.open) return;
    const settings = [token.run, token.guide, token.guideArgs, token.estimator, token.beta],
      same = JSON.stringify(settings) === this.settings;
    this.token = { ...token, reward: token.reward ?? explorer?.sample?.v ?? null };
    this.settings = JSON.stringify(settings);
    if (!same) this.reset();
    else this.draw();
    document.querySelector("#explorer .detail .numbers")?.after(this.root);
  }

  reset() {
    const { guide, guideArgs, estimator, beta } = this.token;
    this.own = { guide: guide ?? "none", estimator, beta: beta ?? 0.05, args: { ...Anchor.defaults[guide], ...guideArgs } };
    this.now = structuredClone(this.own);
    this.drawControls();
    this.draw();
  }

  drawControls() {
    const { guide, estimator, args } = this.now,
      known = Object.keys(Anchor.defaults),
      guides = known.includes(this.own.guide) ? known : [this.own.guide, ...known];
    const dials = [...Object.keys(args).filter((name) => name in DIALS && guide in Anchor.defaults), "beta"];
    this.controls.replaceChildren(
      select("Guide", guides.map((g) => [g, g]), guide, (g) => this.pick(g)),
      select("Estimator", Object.keys(Anchor.slope).map((e) => [e, e]), estimator, (e) => {
        this.now.estimator = e;
        this.draw();
      }),
      ...dials.map((name) => this.dial(name, name === "beta" ? this.now : args)),
      el("button", { type: "button", onclick: () => this.reset() }, "Back to the run's settings"),
    );
  }

  /** A guide starts at the run's arguments where it is the run's, else at its defaults. */
  pick(guide) {
    this.now.guide = guide;
    this.now.args = { ...(guide === this.own.guide ? this.own.args : Anchor.defaults[guide]) };
    this.drawControls();
    this.controls.querySelector("select").focus();
    this.draw();
  }

  dial(name, at) {
    const [label, end] = DIALS[name],
      value = el("b", {}, brief(at[name])); // an <output> would take the label
    const input = el("input", {
      type: "range",
      min: 0,
      max: Math.max(end, 2 * at[name]),
      step: "any",
      value: at[name],
      "data-dial": name,
      oninput: () => {
        at[name] = Number(input.value);
        value.textContent = brief(at[name]);
        this.draw();
      },
    });
    return el("label", { class: "field" }, el("span", {}, `${label} `, value), input);
  }

  /** [log q, why it is not what the reader may expect]. */
  logQ() {
    const { token, now, own } = this,
      stored = token.logq;
    const stays = `q stays as stored${stored === null ? ", and this trace has none" : ""}.`;
    if (!(now.guide in Anchor.defaults))
      return [stored, `q of ${now.guide} depends on ${UNSTORED[now.guide] ?? "more than this token"}, which a trace does not store: ${stays}`];
    const computed = Anchor.logQ(now.guide, now.args, token),
      settled = now.guide === own.guide && JSON.stringify(now.args) === JSON.stringify(own.args);
    if (computed === null) {
      const what = now.guide === "verified" && token.reward === null ? "the verdict" : `the ${now.args.source}'s entropy`;
      return [settled ? stored : null, `${now.guide} reads ${what}, which this trace does not store: ${settled ? stays : "no q can be computed."}`];
    }
    if (!settled || stored === null) return [computed, null];
    // the page's numbers are rounded to thousandths: the stored q is the better one where the formula agrees with it
    const rounding = 0.001 * (2 + (now.args.ratio ?? 0) * (1 + Math.abs(token.refLogp)));
    if (Math.abs(computed - stored) <= rounding) return [stored, null];
    return [stored, `The formula gives q = ${Math.exp(computed).toFixed(3)}, the run had ${Math.exp(stored).toFixed(3)}: something else shaped it too, such as guide_center.`];
  }

  draw() {
    const { token, now, own } = this,
      plain = token.logp === null || token.refLogp === null ? null : token.refLogp - token.logp,
      [logQ, why] = this.logQ();
    const numbers = (q, { estimator, beta }) => {
      const of = (x) => (x === null || plain === null ? null : pull(plain + x, estimator)),
        pulled = of(q);
      return [q === null ? null : Math.exp(q), pulled, pulled === null ? null : pulled - of(0), pulled === null ? null : beta * pulled];
    };
    const run = numbers(token.logq, token.beta === null ? { ...own, beta: NaN } : own),
      here = numbers(logQ, now),
      digits = (x) => (x === null || !Number.isFinite(x) ? "–" : x.toFixed(3));
    this.numbers.replaceChildren(
      table(
        ["", "This run", "Yours"],
        [
          ["Pull, with w = q·π_ref/π", PULLS[own.estimator] ?? "−log w", PULLS[now.estimator]],
          ...["q", "Pull", "Guide's effect", "β · pull"].map((name, i) => [name, digits(run[i]), digits(here[i])]),
        ],
        `Token ${number(token.index + 1)} under other settings`,
      ),
    );
    const refusal = Anchor.refusal(now.guide, now.estimator);
    this.why.textContent = [why, refusal && `${refusal} The guide's effect is the same for every token of this state, so it moves none of them.`]
      .filter(Boolean)
      .join(" ");
  }
}

new Drawer();
