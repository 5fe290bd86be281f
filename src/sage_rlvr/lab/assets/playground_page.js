// The playground's controls and its picture.

(() => {
  const WORLDS = JSON.parse(document.getElementById("worlds").textContent).map((w) => [w.name, Lab.world(w)]);
  const PAYS = { "the reward itself": null, ...JSON.parse(document.getElementById("pays").textContent) };
  const state = { world: 0, advantage: "the reward itself", guide: "branch", estimator: "k3", beta: 0.3, ratio: 0.8, threshold: 1.0 };
  const $ = (id) => document.getElementById(id);
  const svg = (tag, attributes, ...children) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };

  function draw() {
    const world = WORLDS[state.world][1],
      pay = PAYS[state.advantage],
      found = Lab.run({ ...state, world, pay });
    const order = world.reward.map((_, y) => y).sort((a, b) => world.reward[b] - world.reward[a] || found.ref[b] - found.ref[a]);
    const w = $("picture").clientWidth,
      h = 240,
      each = w / order.length,
      top = Math.max(...found.ref, ...found.promised, ...found.reached) * 1.15;
    const y = (v) => h - (v / top) * h;
    const right = order.filter((i) => world.reward[i]).length;
    const bars = order.flatMap((i, x) =>
      ["ref", "promised", "reached"].map((kind, k) =>
        svg(
          "rect",
          { class: kind, x: (x + 0.1 + 0.8 * (k / 3)) * each, y: y(found[kind][i]), width: (0.8 * each) / 3, height: h - y(found[kind][i]) },
          svg("title", {}, `${world.reward[i] ? "right" : "wrong"}: π_ref ${found.ref[i].toFixed(4)}, promised ${found.promised[i].toFixed(4)}, reached ${found.reached[i].toFixed(4)}`),
        ),
      ),
    );
    $("picture").replaceChildren(
      svg("rect", { class: "right", x: 0, y: 0, width: right * each, height: h }),
      svg("text", { x: 6, y: 16 }, `${right} right`),
      svg("text", { x: right * each + 6, y: 16 }, `${order.length - right} wrong completions`),
      svg("text", { x: w - 6, y: 16, "text-anchor": "end" }, `full height: ${top.toFixed(2)}`),
      ...bars,
    );
    $("picture").setAttribute("viewBox", `0 0 ${w} ${h}`);
    $("picture").setAttribute("aria-label", `64 completions: distance between reached and promised ${found.distance.toFixed(3)}`);
    for (const name of ["distance", "moved", "pass1", "pass16", "gap"]) $(name).textContent = found[name].toFixed(3);
    $("kept").textContent = `${found.kept} of ${right}`;
    $("paid").textContent = pay ? "gap·r" : "r";
    $("push").textContent = pay
      ? `Where it stops, a right completion's advantage is ${found.gap.toFixed(3)} above a wrong one's: the same as the reward itself with β = ${(state.beta / found.gap).toFixed(3)}.`
      : "A right completion is paid 1 and a wrong one 0, whatever the others of its group are.";
    $("why").textContent =
      Anchor.refusal(state.guide, state.estimator) ??
      (state.estimator === "k1-reward"
        ? "The penalty is a reward here: the gradient is exact, and what is reached is what is promised."
        : state.guide === "none"
          ? "No guide: the anchor is π_ref, as in GRPO."
          : "This estimator follows another gradient: what is reached is not what is promised.");
    document.documentElement.dataset.drawn = JSON.stringify(state);
  }

  $("advantage").replaceChildren(...Object.keys(PAYS).map((name) => new Option(name, name)));
  for (const id of ["guide", "estimator", "advantage"])
    $(id).addEventListener("change", (e) => {
      state[id] = e.target.value;
      draw();
    });
  $("world").replaceChildren(...WORLDS.map(([name], i) => new Option(name, i)));
  $("world").addEventListener("change", (e) => {
    state.world = Number(e.target.value);
    draw();
  });
  for (const id of ["beta", "ratio", "threshold"])
    $(id).addEventListener("input", (e) => {
      state[id] = Number(e.target.value);
      $(`${id}-value`).textContent = e.target.value;
      draw();
    });
  addEventListener("resize", draw);
  draw();
})();
