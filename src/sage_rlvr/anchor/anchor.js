// guides.py, verified.py and penalty.py for one token, in the browser: the playground and the report use the same formulas.
// A token is { logp, refLogp, entropy, refEntropy, reward }, in nats; null: not known. Tests compare with the Python code.

const Anchor = {
  /** What each guide has unless it is told otherwise. */
  defaults: {
    none: {},
    branch: { ratio: 0.3, threshold: 1.2, q_min: 0.6, q_max: 1.4, source: "policy" },
    tempered: { ratio: 0.5, threshold: 1.2, kappa_max: 0.5, source: "policy" },
    verified: { kappa: 0.5, level: false, source: "reference" },
  },

  /** log q; null where the token lacks a number that the guide reads. */
  logQ(guide, args, token) {
    const a = { ...Anchor.defaults[guide], ...args },
      reference = a.source === "reference",
      entropy = reference ? token.refEntropy : token.entropy,
      logp = reference ? token.refLogp : token.logp,
      excess = a.ratio * Math.max(0, entropy - a.threshold);
    const reads = { none: [], branch: [entropy], tempered: [entropy, token.refLogp], verified: [token.reward, logp, a.level ? entropy : 0] };
    if (reads[guide].some((x) => x === null || x === undefined)) return null;
    if (guide === "branch") return Math.log(Math.min(a.q_max, Math.max(a.q_min, 1 + excess)));
    if (guide === "tempered") return Math.min(a.kappa_max, excess) * -token.refLogp;
    if (guide === "verified") return a.kappa * token.reward * (-logp - (a.level ? entropy : 0));
    return 0;
  },

  /** Slope of the penalty in log π, from log w with w = q·π_ref/π. k1-reward: what the token is charged, minus its bonus. */
  slope: {
    k3: (x) => 1 - Math.exp(x),
    k2: (x) => -x,
    "k3+": (x) => -x,
    forward: (x) => -Math.exp(x),
    "forward-value": (x) => -x * Math.exp(x),
    "k1-reward": (x) => -x,
  },

  /** Why training refuses the pair; null where it does not. */
  refusal: (guide, estimator) =>
    guide === "branch" && ["k2", "k3+"].includes(estimator)
      ? `${guide} under ${estimator} changes nothing: q depends on the state alone, and this estimator's gradient averages it away. Training refuses the pair.`
      : null,
};
