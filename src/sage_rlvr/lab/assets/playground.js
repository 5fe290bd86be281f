// The exact lab in the browser: a tree of tokens, every completion written out, descent with exact expectations.
// A port of lab/world.py, lab/descent.py and lab/solutions.py; a test holds it against them.

const Lab = {
  /** ref: logits (N × V), reward: (Y). Prefixes are numbered breadth first, completions in lexicographic order. */
  world({ ref, reward, depth }) {
    const width = ref[0].length,
      tokens = [],
      nodes = [];
    for (let y = 0; y < width ** depth; y++) {
      const row = [],
        at = [];
      for (let t = 0, node = 0; t < depth; t++) {
        const token = Math.floor(y / width ** (depth - 1 - t)) % width;
        row.push(token);
        at.push(node);
        node = node * width + token + 1;
      }
      tokens.push(row);
      nodes.push(at);
    }
    return { ref, reward, width, tokens, nodes };
  },

  logSoftmax(row) {
    const top = Math.max(...row),
      total = Math.log(row.reduce((sum, x) => sum + Math.exp(x - top), 0)) + top;
    return row.map((x) => x - total);
  },

  /** log π(y_t | prefix), (Y × T). */
  logps(world, logits) {
    const logp = logits.map(Lab.logSoftmax);
    return world.tokens.map((row, y) => row.map((token, t) => logp[world.nodes[y][t]][token]));
  },

  probs: (logps) => logps.map((row) => Math.exp(row.reduce((a, b) => a + b, 0))),

  /** log q at the reference policy, (Y × T). Entropies are the reference's. */
  logQ(world, guide, { ratio, threshold }) {
    const logp = world.ref.map(Lab.logSoftmax),
      entropy = logp.map((row) => -row.reduce((sum, x) => sum + Math.exp(x) * x, 0));
    const excess = (node) => ratio * Math.max(0, entropy[node] - threshold);
    const of = {
      none: () => 0,
      branch: (node) => Math.log(Math.min(1.4, Math.max(0.6, 1 + excess(node)))),
      tempered: (node, token) => Math.min(0.5, excess(node)) * -logp[node][token],
    }[guide];
    return world.tokens.map((row, y) => row.map((token, t) => of(world.nodes[y][t], token)));
  },

  /** What the theory promises: π ∝ q·π_ref·exp(r/β). */
  promised(world, logQ, beta) {
    const ref = Lab.logps(world, world.ref);
    const weights = world.reward.map((r, y) => ref[y].reduce((sum, x, t) => sum + x + logQ[y][t], 0) + r / beta);
    return Lab.logSoftmax(weights).map(Math.exp);
  },

  /** ∂loss/∂log π(y_t): the reward's part, and that of the penalty in the loss, or of its bonus in the reward. */
  slopes(world, logps, ref, logQ, estimator, beta) {
    const inLoss = {
      k3: (x) => 1 - Math.exp(x),
      k2: (x) => -x,
      "k3+": (x) => -x,
      forward: (x) => -Math.exp(x),
    }[estimator];
    return logps.map((row, y) => {
      const logRho = row.map((x, t) => ref[y][t] + logQ[y][t] - x);
      if (inLoss) return logRho.map((x) => -world.reward[y] + beta * inLoss(x));
      const bonus = logRho.reduce((a, b) => a + b, 0); // k1-reward: one number per completion
      return logRho.map(() => -(world.reward[y] + beta * bonus));
    });
  },

  /** Natural-gradient descent from π_ref: π of every completion where it stops. */
  descend(world, logQ, estimator, beta, steps = 600, rate = 0.5) {
    const ref = Lab.logps(world, world.ref);
    let logits = world.ref.map((row) => [...row]);
    for (let step = 0; step < steps; step++) {
      const logp = logits.map(Lab.logSoftmax),
        own = world.tokens.map((row, y) => row.map((token, t) => logp[world.nodes[y][t]][token])),
        pi = Lab.probs(own),
        slope = Lab.slopes(world, own, ref, logQ, estimator, beta),
        gradient = logits.map((row) => row.map(() => 0)),
        visits = logits.map(() => 0);
      world.tokens.forEach((row, y) =>
        row.forEach((token, t) => {
          const node = world.nodes[y][t],
            weight = pi[y] * slope[y][t];
          visits[node] += pi[y];
          gradient[node][token] += weight;
          for (let v = 0; v < world.width; v++) gradient[node][v] -= weight * Math.exp(logp[node][v]);
        }),
      );
      logits = logits.map((row, n) =>
        row.map((x, v) => {
          const move = (rate * gradient[n][v]) / (visits[n] * Math.exp(logp[n][v]));
          return x - Math.min(1, Math.max(-1, move));
        }),
      );
    }
    return Lab.probs(Lab.logps(world, logits));
  },

  distance: (p, q) => p.reduce((sum, x, i) => sum + Math.abs(x - q[i]), 0) / 2,

  /** Everything that the page shows. */
  run({ world, guide, estimator, beta, ratio, threshold }) {
    const logQ = Lab.logQ(world, guide, { ratio, threshold }),
      plain = Lab.logQ(world, "none", { ratio, threshold });
    const reached = Lab.descend(world, logQ, estimator, beta),
      without = guide === "none" ? reached : Lab.descend(world, plain, estimator, beta),
      promised = Lab.promised(world, logQ, beta);
    const right = (p) => p.reduce((sum, x, y) => sum + x * world.reward[y], 0);
    return {
      ref: Lab.probs(Lab.logps(world, world.ref)),
      promised,
      reached,
      distance: Lab.distance(reached, promised),
      moved: Lab.distance(reached, without),
      pass1: right(reached),
      pass16: 1 - (1 - right(reached)) ** 16,
      kept: reached.filter((x, y) => world.reward[y] && x > 0.01).length,
    };
  },
};
