// The exact lab in the browser: a tree of tokens, every completion written out, descent with exact expectations.
// A port of lab/world.py, lab/descent.py, lab/solutions.py and lab/groups.py; a test compares their numbers. Guides and
// penalties are those of anchor.js.

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
      entropy = logp.map((row) => -row.reduce((sum, x) => sum + Math.exp(x) * x, 0)),
      args = { ratio, threshold, source: "reference" };
    return world.tokens.map((row, y) =>
      row.map((token, t) => {
        const node = world.nodes[y][t];
        return Anchor.logQ(guide, args, { refLogp: logp[node][token], refEntropy: entropy[node] });
      }),
    );
  },

  /** [right, wrong]: an advantage averaged over the groups that may be drawn at p = π(right). pay: its values by the number of
   * other right completions in the group; null: the reward itself. */
  credits(pay, p) {
    if (!pay) return [1, 0];
    const n = pay.right.length - 1,
      sums = [0, 0];
    for (let c = 0, ways = 1; c <= n; ways = (ways * (n - c)) / (c + 1), c++) {
      const chance = ways * p ** c * (1 - p) ** (n - c);
      sums[0] += chance * pay.right[c];
      sums[1] += chance * pay.wrong[c];
    }
    return sums;
  },

  gap(pay, p) {
    const [right, wrong] = Lab.credits(pay, p);
    return right - wrong;
  },

  right: (world, pi) => pi.reduce((sum, x, y) => sum + x * world.reward[y], 0),

  /** π ∝ q·π_ref·exp(gap·r/β). */
  tilted(world, logQ, tilt) {
    const ref = Lab.logps(world, world.ref);
    const weights = world.reward.map((r, y) => ref[y].reduce((sum, x, t) => sum + x + logQ[y][t], 0) + r * tilt);
    return Lab.logSoftmax(weights).map(Math.exp);
  },

  /** What the theory promises: the gap of the credits agrees with the p that it leads to. */
  promised(world, logQ, beta, pay) {
    const logit = (p) => Math.log(p / (1 - p)),
      start = logit(Lab.right(world, Lab.tilted(world, logQ, 0)));
    const p = (x) => 1 / (1 + Math.exp(-x)),
      short = (x) => start + Lab.gap(pay, p(x)) / beta - x;
    let low = logit(Lab.right(world, Lab.probs(Lab.logps(world, world.ref))));
    const step = short(low) > 0 ? 0.1 : -0.1;
    while (short(low + step) * step > 0) low += step;
    let high = low + step;
    for (let i = 0; i < 60; i++) {
      const middle = (low + high) / 2;
      if (short(middle) * step > 0) low = middle;
      else high = middle;
    }
    return Lab.tilted(world, logQ, Lab.gap(pay, p(low)) / beta);
  },

  /** Natural-gradient descent from π_ref: π of every completion where it stops. Flat arrays: some 20 ms. */
  descend(world, logQ, estimator, beta, pay = null, steps = 600, rate = 0.5) {
    const { reward, width } = world,
      depth = world.tokens[0].length,
      anchor = Float64Array.from(Lab.logps(world, world.ref).flatMap((row, y) => row.map((x, t) => x + logQ[y][t]))),
      edge = Int32Array.from(world.tokens.flatMap((row, y) => row.map((token, t) => world.nodes[y][t] * width + token))),
      inLoss = estimator === "k1-reward" ? null : Anchor.slope[estimator];
    const logits = Float64Array.from(world.ref.flat()),
      logp = new Float64Array(logits.length),
      weight = new Float64Array(logits.length), // Σ_y π(y)·∂loss/∂log π(y_t), by prefix and token
      visits = new Float64Array(logits.length), // Σ_y π(y), likewise
      pi = new Float64Array(reward.length);
    const norm = () => {
      for (let n = 0; n < logits.length; n += width) logp.set(Lab.logSoftmax([...logits.subarray(n, n + width)]), n);
      pi.fill(0);
      edge.forEach((e, i) => (pi[Math.floor(i / depth)] += logp[e]));
      pi.forEach((x, y) => (pi[y] = Math.exp(x)));
    };
    norm();
    for (let step = 0, largest = 1; step < steps && largest > 1e-12; step++) {
      const [right, wrong] = Lab.credits(pay, Lab.right(world, pi));
      weight.fill(0);
      visits.fill(0);
      for (let y = 0; y < reward.length; y++) {
        let credit = reward[y] ? right : wrong;
        if (!inLoss) for (let i = y * depth; i < (y + 1) * depth; i++) credit += beta * (anchor[i] - logp[edge[i]]);
        for (let i = y * depth; i < (y + 1) * depth; i++) {
          visits[edge[i]] += pi[y];
          weight[edge[i]] += pi[y] * ((inLoss ? beta * inLoss(anchor[i] - logp[edge[i]]) : 0) - credit);
        }
      }
      largest = 0;
      for (let n = 0; n < logits.length; n += width) {
        let total = 0,
          visited = 0;
        for (let v = n; v < n + width; v++) {
          total += weight[v];
          visited += visits[v];
        }
        for (let v = n; v < n + width; v++) {
          // gradient over Fisher: the mean slope of the completions through this token, minus that of all through its prefix
          const move = rate * (weight[v] / visits[v] - total / visited),
            held = Math.min(1, Math.max(-1, move));
          logits[v] -= held;
          largest = Math.max(largest, Math.abs(held));
        }
      }
      norm();
    }
    return [...pi];
  },

  distance: (p, q) => p.reduce((sum, x, i) => sum + Math.abs(x - q[i]), 0) / 2,

  /** Everything that the page shows. */
  run({ world, guide, estimator, beta, ratio, threshold, pay = null }) {
    const logQ = Lab.logQ(world, guide, { ratio, threshold }),
      plain = Lab.logQ(world, "none", { ratio, threshold });
    const reached = Lab.descend(world, logQ, estimator, beta, pay),
      without = guide === "none" ? reached : Lab.descend(world, plain, estimator, beta, pay),
      promised = Lab.promised(world, logQ, beta, pay),
      p = Lab.right(world, reached);
    return {
      ref: Lab.probs(Lab.logps(world, world.ref)),
      promised,
      reached,
      distance: Lab.distance(reached, promised),
      moved: Lab.distance(reached, without),
      pass1: p,
      pass16: 1 - (1 - p) ** 16,
      gap: Lab.gap(pay, p),
      kept: reached.filter((x, y) => world.reward[y] && x > 0.01).length,
    };
  },
};
