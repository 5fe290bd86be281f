// Colours, then every section in order; what is below the fold is drawn when it comes near.

function themes() {
  const button = document.getElementById("theme-button"),
    order = ["system", "light", "dark"];
  const marks = { system: "◐", light: "☀", dark: "☾" },
    words = { system: "as the system", light: "light", dark: "dark" };
  let now = "system";
  try {
    now = localStorage.getItem("sage-theme") || "system";
  } catch {
    /* a file without storage: as the system */
  }
  const set = (theme) => {
    now = order.includes(theme) ? theme : "system";
    if (now === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = now;
    button.textContent = marks[now];
    button.setAttribute("aria-label", `Colours: ${words[now]}. Change`);
    button.title = `Colours: ${words[now]}`;
    repaint();
  };
  button.addEventListener("click", () => {
    set(order[(order.indexOf(now) + 1) % 3]);
    try {
      localStorage.setItem("sage-theme", now);
    } catch {
      /* not kept */
    }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  set(now);
}

const repaint = () => redraw(); // canvases hold their colours: they are drawn again

const before = placeBefore();
if (!DATA.only_tokens) {
  firstScreen();
  resultsTable();
  passCurves();
  trainingCurves();
  supportGrids();
  runsPanel();
}
overview();
tokenExplorer();
foot();
themes();
settle(before !== null);
if (before) goBack(before);
if (DATA.live) follow();
document.documentElement.dataset.ready = "true";
performance.mark("ready");
