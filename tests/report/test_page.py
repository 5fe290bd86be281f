"""The page in Chromium: from a file, with no network, for eyes, keys and hostile completions."""

import pytest

from sage_rlvr.evaluate.results import support
from sage_rlvr.report.page import build_report
from tests.report.browser import Browser, needs_browser
from tests.report.synthetic import write_everything, write_log, write_store, write_trace

pytestmark = needs_browser
RLO, ZWSP = "\u202e", "\u200b"


@pytest.fixture(scope="module")
def browser():
    b = Browser()
    yield b
    b.close()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_everything(tmp_path_factory.mktemp("runs"), problems=12, n=8)


@pytest.fixture(scope="module")
def page(root):
    return build_report([root, root / "gone"], root / "report.html", resamples=200)


@pytest.fixture
def opened(browser, page):
    browser.size(1440)
    browser.open(page)
    return browser


PICK = """
const field = [...document.querySelectorAll('#explorer .field')].find((f) => f.textContent.startsWith(arguments[0]));
const box = field.querySelector('select');
box.value = [...box.options].find((o) => o.textContent.includes(arguments[1])).value;
box.dispatchEvent(new Event('change'));
"""
INK = """
const c = document.querySelector('#curves canvas');
return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((x, i) => i % 4 === 3 && x);
"""
NAMELESS = """
const all = document.querySelectorAll('button, input, select, canvas[tabindex], [role=img], [role=region]');
const name = (x) => x.getAttribute('aria-label') || x.textContent.trim() || x.labels?.[0]?.textContent.trim();
return [...all].filter((x) => x.offsetParent && !name(x)).map((x) => x.outerHTML.slice(0, 90));
"""
OUTLINE = """
const now = document.activeElement, seen = getComputedStyle(now.matches('[type=radio]') ? now.nextSibling : now);
return seen.outlineStyle + seen.outlineWidth;
"""
HIDDEN = """
const panel = document.querySelector('.numbers'), found = [];
for (const x of document.querySelectorAll('#explorer button, #explorer input, #explorer select, #explorer [tabindex="0"]')) {
  document.activeElement.blur();
  window.scrollTo({ top: arguments[0], behavior: 'instant' });
  x.focus();
  const own = x.getBoundingClientRect(), over = panel.getBoundingClientRect();
  const beside = own.bottom <= over.top + 1 || own.top >= over.bottom || own.right <= over.left || own.left >= over.right;
  const apart = document.activeElement === x && own.height && !panel.contains(x) && !x.contains(panel);
  if (apart && !beside && own.height <= innerHeight - over.height) found.push(x.outerHTML.slice(0, 80));
}
return found;
"""
CONTRAST = """
const linear = (x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
const light = (c) => 0.2126 * linear(c[0] / 255) + 0.7152 * linear(c[1] / 255) + 0.0722 * linear(c[2] / 255);
const probe = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
const rgba = (c) => {
  probe.clearRect(0, 0, 1, 1);
  probe.fillStyle = c;
  probe.fillRect(0, 0, 1, 1);
  return [...probe.getImageData(0, 0, 1, 1).data];
};
const over = (low, top) => low.map((x, i) => x * (1 - top[3] / 255) + (top[i] * top[3]) / 255);
const ground = (e) => {
  const layers = [];
  for (let n = e; n; n = n.parentElement) layers.push(rgba(getComputedStyle(n).backgroundColor));
  return layers.reverse().reduce(over, [255, 255, 255]);
};
const bad = new Set();
for (const e of document.querySelectorAll('main *, header *, footer *')) {
  const says = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!says || !e.offsetParent || e.disabled || e.tagName === 'OPTION' || e.classList.contains('hidden')) continue;
  const [a, b] = [light(rgba(getComputedStyle(e).color)), light(ground(e))].sort();
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) bad.add(`${e.tagName}.${e.className} ${ratio.toFixed(2)} ${e.textContent.slice(0, 20)}`);
}
return [...bad];
"""


def pick(b, label, text):
    """Chooses an option of the explorer's select by its text."""
    b.js(PICK, label, text)


def press(b, text, inside="#explorer"):
    b.js(
        "[...document.querySelectorAll(arguments[1] + ' .choice label')].find(l => l.textContent === arguments[0]).click()",
        text,
        inside,
    )


def traced(b):
    b.show("explorer")
    pick(b, "Run", "branch/eval")
    b.wait("return document.querySelectorAll('.tokens span').length > 10")


def test_it_opens_from_a_file_without_a_word_or_a_request(opened):
    b = opened
    for section in ("overview", "results", "curves", "training", "support", "explorer"):
        b.show(section)
    traced(b)
    assert b.errors() == []
    own = ("file://", "data:", "chrome")  # the last: what the browser's first, empty tab draws
    assert [u for u in b.requests() if not u.startswith(own)] == []
    assert b.js("return performance.getEntriesByType('resource').length") == 0


def test_a_section_asked_for_stays_in_view_while_the_rest_draws(browser, page):
    b = browser
    b.size(1440)
    b.open(page.resolve().as_uri() + "#explorer")
    b.wait("return document.querySelectorAll('canvas').length > 12")  # everything above it has been drawn
    b.wait("return Math.abs(document.getElementById('explorer').getBoundingClientRect().top) < 120")


def test_runs_that_are_not_whole_are_named(opened):
    said = opened.text("#wrong")
    for name in ("gone", "other/eval", "broken/eval", "half/eval"):
        assert name in said
    assert "version 99" in said
    assert "step 30 of 100" in said
    assert "half/eval" in opened.text("#results table")


def test_table_sorts_and_shows_paired_differences(opened):
    b = opened
    column = "return [...document.querySelectorAll('#results tbody tr')].map(r => r.children[1].firstChild.textContent)"
    b.click("#results .sort")
    values = [float(x) for x in b.js(column)]
    assert values == sorted(values, reverse=True)
    assert b.js("return document.activeElement.className") == "sort"
    press(b, "Difference from base/eval", "#results")
    assert "(reference)" in b.js(column)
    assert "+" in b.text("#results tbody")


def test_curves_draw_follow_the_keys_and_have_tables(opened):
    b = opened
    b.show("curves")
    assert len(b.all("#curves figure")) == 3
    assert b.js(INK)
    plot = b.find("#curves .plot")
    assert "from" in plot.get_attribute("aria-label")
    plot.send_keys("\ue011")  # Home
    assert b.text("#curves .legend .where") == "at k = 1"
    plot.send_keys("\ue014")  # →
    assert b.text("#curves .legend .where") == "at k = 2"
    b.click("#curves details summary")
    b.wait("return document.querySelectorAll('#curves details tbody tr').length === 4")  # k = 1, 2, 4, 8
    b.js("document.querySelectorAll('#curves .check input')[1].click()")
    assert b.js("return document.querySelector('#curves figure').hidden")


def test_switching_a_run_off_takes_it_out_of_charts(opened):
    b = opened
    b.show("curves")
    b.click("#runs-button")
    b.js("[...document.querySelectorAll('#runs-panel label')].find(l => l.textContent === 'grpo/eval').click()")
    assert "grpo/eval" not in b.js(
        "return [...document.querySelectorAll('#curves .legend bdi')].map(x => x.textContent)"
    )
    b.find("#runs-panel input").send_keys("\ue00c")  # Escape
    assert b.js("return document.getElementById('runs-panel').hidden && document.activeElement.id") == "runs-button"


def test_training_curves_are_all_there(opened):
    b = opened
    b.show("training")
    titles = b.js("return [...document.querySelectorAll('#training figcaption')].map(x => x.textContent)")
    for title in (
        "Training reward",
        "KL, shaped",
        "KL, plain",
        "Entropy",
        "Gradient norm",
        "mean q",
        "Held out: aime/pass@1",
    ):
        assert any(title in t for t in titles)
    assert titles[:2] == ["Training reward", "Held out: aime/pass@1"]  # what a reader asks first


def test_support_agrees_with_evaluate_and_opens_the_explorer(opened, root):
    b = opened
    b.show("support")
    cells = "[...r.children].map((c) => c.textContent)"
    rows = b.js(f"return [...document.querySelectorAll('#support figure .scroll tbody tr')].map((r) => {cells})")
    wanted = support(root / "base" / "eval", root / "grpo_nokl" / "eval", 8)["aime"].metrics
    mine = next(r for r in rows if r[0] == "grpo_nokl/eval")
    assert [int(x) for x in mine[1:5]] == [wanted.P, wanted.E, wanted.S, wanted.O]
    assert float(mine[5]) == pytest.approx(wanted.SRR, abs=6e-4)
    grid = b.find("#support canvas")
    grid.send_keys("\ue014")  # →
    problem = b.text("#support .readout").split(" ")[0]
    grid.send_keys("\ue007")  # Enter
    b.wait("return document.querySelector('#explorer .detail h3') !== null")
    assert problem in b.text("#explorer .detail h3")


def test_filters_and_search(opened):
    b = opened
    b.show("explorer")
    press(b, "✗ Wrong")
    b.wait(
        "return document.querySelectorAll('.samples .v-wrong').length > 0 && !document.querySelector('.samples .v-right')"
    )
    press(b, "✓ Right")
    b.wait(
        "return document.querySelectorAll('.samples .v-right').length > 0 && !document.querySelector('.samples .v-wrong')"
    )
    pick(b, "Problem", "aime-002")
    b.wait("return [...document.querySelectorAll('.samples .meta bdi')].every(x => x.textContent === 'aime-002')")
    pick(b, "Problem", "All")
    press(b, "All")
    search = b.find("#explorer input[type=search]")
    search.send_keys("CONTRADICTION")
    b.wait("return document.querySelectorAll('.samples mark').length > 0")
    assert b.js(
        "return [...document.querySelectorAll('.samples mark')].every(m => m.textContent.toLowerCase() === 'contradiction')"
    )
    search.send_keys(" no such words")
    b.wait("return document.querySelector('.detail').textContent.includes('No completion fits')")


def test_plain_completions_say_how_to_make_traces(opened):
    b = opened
    b.show("explorer")
    pick(b, "Run", "base/eval")
    b.wait("return document.querySelector('#explorer .how') !== null")
    assert "sage-rlvr trace base/eval" in b.text("#explorer .how")
    assert len(b.text("#explorer .text")) > 50


def test_tokens_are_shaded_read_and_stepped_through(opened):
    from selenium.webdriver import ActionChains

    b = opened
    traced(b)
    shades = "return [...document.querySelectorAll('.tokens span')].map(s => s.className).join(',')"
    seen = [b.js(shades)]
    assert "c9" in seen[0]  # q above 1 under k3: pushed down less
    for name in ("Pull", "Shift", "Entropy"):
        press(b, name)
        seen.append(b.js(shades))
    assert len(set(seen)) == 4
    assert "checkpoint-100 (4 of 4)" in b.text(".stepper output")
    b.click("[aria-label='Earlier checkpoint']")
    assert "checkpoint-60 (3 of 4)" in b.text(".stepper output")  # in the order of training, not of the file
    assert b.js(shades) != seen[3]
    b.find(".stepper input").send_keys("\ue012")  # ←
    assert "checkpoint-20 (2 of 4)" in b.text(".stepper output")
    ActionChains(b.driver).move_to_element(b.all(".tokens span")[4]).perform()
    assert "token 5 of" in b.text(".numbers")
    for fact in ("Entropy", "Surprisal", "Shift", "q", "Pull", "Guide's effect", "Reference surprisal"):
        assert fact in b.text(".numbers")


@pytest.mark.parametrize("estimator", ["k3", "k2", "k3+", "k1-reward"])
def test_pull_and_effect_are_the_slopes_of_the_runs_own_penalty(browser, tmp_path, estimator):
    """Against autograd through anchor_penalty (k1-reward: minus anchor_reward), token by token."""
    import pyarrow.parquet as pq
    import torch

    from sage_rlvr.anchor import anchor_penalty

    b, folder = browser, write_store(tmp_path / "runs" / "branch" / "eval", {"aime": [0.5]}, n=1)
    write_trace(folder, [("aime", "aime-000", 0, 0)], ["checkpoint-1", "checkpoint-2"])
    write_log(tmp_path / "runs" / "branch", steps=2, anchor_estimator=estimator)
    b.size(1440)
    b.open(build_report(tmp_path / "runs", tmp_path / "out.html", resamples=50))
    b.show("explorer")
    b.wait("return document.querySelectorAll('.tokens span').length > 10")
    b.js(
        "[...document.querySelectorAll('#explorer details summary')].find((s) => s.textContent.startsWith('Every')).click()"
    )
    b.wait("return document.querySelectorAll('#explorer details[open] tbody tr').length > 10")
    cells = "[...r.children].map((c) => c.textContent)"
    read = f"return [...document.querySelectorAll('#explorer details[open] tbody tr')].map((r) => {cells})"
    shown = [[float(x) for x in row[2:5]] for row in b.js(read)]  # effect, pull, shift
    row = pq.read_table(folder / "trace").to_pylist()[1]
    logps, ref, q = (torch.tensor(row[c], dtype=torch.float64) for c in ("logps", "ref_logps", "q"))

    def slope(log_q):
        x = logps.clone().requires_grad_()
        charge = x - ref - log_q if estimator == "k1-reward" else anchor_penalty(x, ref, log_q, estimator)
        if estimator == "k1-reward":  # a reward: what the token is charged, not a slope
            return charge.detach()
        charge.sum().backward()
        return x.grad

    pulled, plain = slope(q.log()), slope(torch.zeros_like(q))
    wanted = torch.stack([pulled - plain, pulled, logps - ref], 1)
    scale = 1 + (ref - logps).exp().max().item()  # three digits are shown, and ρ multiplies them
    assert torch.tensor(shown, dtype=torch.float64) == pytest.approx(wanted.numpy(), abs=2e-3 * scale)


def test_tokens_by_keyboard_alone(opened):
    b = opened
    traced(b)
    first = b.find(".tokens span[tabindex='0']")
    first.send_keys("\ue014")  # →
    assert "token 2 of" in b.text(".numbers")
    assert b.js(OUTLINE) == "solid2px"
    b.driver.switch_to.active_element.send_keys("\ue010")  # End
    assert b.js("return document.activeElement === document.querySelector('.tokens').lastChild")
    b.driver.switch_to.active_element.send_keys("\ue013")  # ↑
    assert b.js("return document.activeElement !== document.querySelector('.tokens').lastChild")


def test_every_control_is_reached_by_tab_with_a_name_and_a_visible_focus(opened):
    b = opened
    for section in ("curves", "training", "support", "explorer"):
        b.show(section)
    assert b.js(NAMELESS) == []
    b.js("scrollTo(0, 0); document.activeElement.blur()")
    for _ in range(12):
        b.driver.switch_to.active_element.send_keys("\ue004")  # Tab
        assert b.js(OUTLINE).startswith("solid")


@pytest.mark.parametrize("height", [500, 900])
def test_what_has_the_focus_is_never_under_the_panel_of_numbers(browser, page, height):
    browser.size(1440, height)
    browser.open(page)
    traced(browser)
    for at in range(0, browser.js("return document.body.scrollHeight"), height // 3):
        hidden = browser.js(HIDDEN, at)
        assert not hidden, f"from {at} pixels down: {hidden}"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1440, 390])
def test_contrast_and_width(browser, page, width, dark):
    b = browser
    b.size(width, 900, dark)
    b.open(page)
    for section in ("overview", "results", "curves", "training", "support"):
        b.show(section)
    traced(b)
    press(b, "Pull")
    assert b.js(CONTRAST) == []
    assert b.js("return document.documentElement.scrollWidth <= innerWidth")
    assert b.js(
        "return getComputedStyle(document.body).colorScheme !== '' && getComputedStyle(document.body).backgroundColor"
    ) == ("rgb(20, 23, 27)" if dark else "rgb(246, 247, 249)")


def test_colours_can_be_chosen(opened):
    b = opened
    ground = "return getComputedStyle(document.body).backgroundColor"
    b.click("#theme-button")  # light
    b.click("#theme-button")  # dark
    assert b.js(ground) == "rgb(20, 23, 27)"
    b.click("#theme-button")  # as the system
    assert b.js(ground) == "rgb(246, 247, 249)"


def test_a_trace_without_q_offers_none(browser, tmp_path):
    """Where training's q is not known it is not traced; the rest is shown, and the choice between measures does without it."""
    b, folder = browser, write_store(tmp_path / "runs" / "branch" / "eval", {"aime": [0.5]}, n=2)
    write_trace(folder, [("aime", "aime-000", 0, i) for i in (0, 1)], ["base", "checkpoint-1"], q=False)
    b.size(1440)
    b.open(build_report(tmp_path / "runs", tmp_path / "out.html", resamples=50))
    b.show("explorer")
    b.wait("return document.querySelectorAll('.tokens span').length > 1")
    labels = b.js("return [...document.querySelectorAll('#explorer .choice label')].map((x) => x.textContent)")
    assert {"Entropy", "Surprisal", "Shift"} <= set(labels)
    assert not {"Guide's effect", "Pull"} & set(labels)
    b.js("document.querySelector('.tokens span').focus()")
    b.wait("return document.querySelector('.numbers dl') !== null")
    facts = b.js("return [...document.querySelectorAll('.numbers dl div')].map((x) => x.innerText.split(/\\s+/))")
    assert {"q": "–", "Pull": "–"}.items() <= {f[0]: f[-1] for f in facts}.items()
    assert b.errors() == []


HOSTILE = {
    0: "</script><script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'>",
    1: '<a href="javascript:window.pwned=3">click</a> javascript:alert(1) <!--<script> ]]> ${1+1} {{7*7}}',
    2: f"left {RLO}thgir{ZWSP} \u0000\u0007 שלום עולם مرحبا \ufeff end",
    3: "word " * 2_000_000,  # 10 MB
    4: "x" * 10_000_000,
    5: "z" + "\u0300" * 5000,
}


def test_hostile_completions_neither_run_nor_break(browser, tmp_path):
    b = browser
    name = "<img src=x onerror=window.pwned=4>"
    texts = {("aime", "aime-000", 0, i): t for i, t in HOSTILE.items()}
    folder = write_store(tmp_path / "runs" / name, {"aime": [0.5, 0.5]}, n=6, texts=texts, model="<b>bold</b>")
    write_trace(folder, [("aime", "aime-000", 0, i) for i in (0, 1, 2)], ["<i>base</i>", "checkpoint-1"])
    write_store(tmp_path / "runs" / "plain", {"aime": [0.5, 0.5]}, n=6, texts=texts)
    page = build_report(tmp_path / "runs", tmp_path / "out.html", resamples=50)
    assert page.stat().st_size < 2_000_000
    b.size(390)
    b.open(page)
    for section in ("overview", "results", "curves", "support", "explorer"):
        b.show(section)
    for run in (name, "plain"):
        pick(b, "Run", run)
        b.wait("return document.querySelectorAll('.samples button').length === 12")
        for i in range(12):
            b.js("document.querySelectorAll('.samples button')[arguments[0]].click()", i)
            b.wait("return document.querySelector('.text, .tokens') !== null")
            mine = "aime-000" in b.text(".detail h3")
            if mine and "sample 2" in b.text(".facts"):
                said = b.text(".text, .tokens")
                assert "‹U+202E›" in said
                assert "‹U+200B›" in said
                assert RLO not in said
            if mine and "sample 3" in b.text(".facts"):
                assert "Cut: the first 20,000 of 10,000,000 characters" in b.text(".cut")
    assert b.js("return window.pwned") is None
    assert b.js("return document.querySelectorAll('main img, main a, main script, main b img').length") == 0
    assert b.js("return document.documentElement.scrollWidth <= innerWidth")
    assert b.errors() == []
    own = ("file://", "data:", "chrome")  # the last: what the browser's first, empty tab draws
    assert [u for u in b.requests() if not u.startswith(own)] == []


def test_one_lonely_run_and_no_training(browser, tmp_path):
    b = browser
    write_store(tmp_path / "only", {"aime": [1.0]}, n=1)
    b.size(1440)
    b.open(build_report(tmp_path / "only", tmp_path / "out.html", resamples=50))
    for section in ("results", "curves", "support", "explorer"):
        b.show(section)
    assert "No training run was found" in b.text("#training")
    assert "1.000" in b.text("#results table")
    assert b.errors() == []


def test_training_alone(browser, root, tmp_path):
    b = browser
    (tmp_path / "t").mkdir()
    for name in ("run.json", "log.jsonl"):
        (tmp_path / "t" / name).write_bytes((root / "grpo" / name).read_bytes())
    b.open(build_report(tmp_path / "t", tmp_path / "out.html"))
    b.show("training")
    assert "No evaluation" in b.text("#results")
    assert b.errors() == []
