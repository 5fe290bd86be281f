"""Knights and knaves: every phrasing of the right assignment, and only the right one."""

import ast
import itertools
import json
import random
import signal
from contextlib import contextmanager

import pytest

from sage_rlvr.tasks import load_task, make_scorer
from sage_rlvr.tasks.knights import read_assignment
from tests.slow import but_few

NAMES = ["Amelia", "Penelope", "Evelyn"]
TRUTH = {"Amelia": True, "Penelope": True, "Evelyn": False}

RIGHT = [
    "Amelia is a knight, Penelope is a knight, and Evelyn is a knave.",
    "(1) Amelia is a knight (2) Penelope is a knight (3) Evelyn is a knave",
    "1. Amelia: knight\n2. Penelope: knight\n3. Evelyn: knave",
    "AMELIA: KNIGHT; PENELOPE: KNIGHT; EVELYN: KNAVE",
    "amelia is a knight and penelope is a knight and evelyn is a knave",
    "Amelia → Knight, Penelope → Knight, Evelyn → Knave",
    "Amelia -> knight\nPenelope => knight\nEvelyn = knave",
    r"Amelia \rightarrow \text{Knight}, Penelope \to \text{Knight}, Evelyn \to \text{Knave}",
    "- Amelia - knight\n- Penelope - knight\n- Evelyn - knave",
    "- Amelia: knight - Penelope: knight - Evelyn: knave",
    "* **Amelia** is a **knight**\n* **Penelope** is a **knight**\n* **Evelyn** is a **knave**",
    "| Name | Role |\n|---|---|\n| Amelia | Knight |\n| Penelope | Knight |\n| Evelyn | Knave |",
    "| Amelia | Penelope | Evelyn |\n|:-:|:-:|:-:|\n| Knight | Knight | Knave |",
    r"Amelia & Knight \\ Penelope & Knight \\ Evelyn & Knave",
    r"\begin{array}{|c|c|} \hline Amelia & Knight \\ Penelope & Knight \\ Evelyn & Knave \end{array}",
    '{"Amelia": "knight", "Penelope": "knight", "Evelyn": "knave"}',
    '{\n  "Amelia": "knight",\n  "Penelope": "knight",\n  "Evelyn": "knave"\n}',
    "{'knights': ['Amelia', 'Penelope'], 'knaves': ['Evelyn']}",
    "knights: Amelia, Penelope; knaves: Evelyn",
    "Knights: Amelia and Penelope. Knave: Evelyn.",
    "Knights:\n- Amelia\n- Penelope\n\nKnaves:\n- Evelyn",
    "Knights: Amelia, Penelope Knaves: Evelyn",
    "Knights: Amelia, Penelope (knaves: Evelyn)",
    "Knight - Amelia, Penelope\nKnave - Evelyn",
    "The knights are Amelia and Penelope, and the knave is Evelyn.",
    "The knaves are Evelyn; the knights are Penelope, Amelia",
    "The knave is Evelyn and Amelia and Penelope are knights.",
    "Evelyn is a knave, and the knights are Amelia and Penelope",
    "Amelia and Penelope are both knights while Evelyn is a knave",
    "Both Amelia and Penelope are knights; Evelyn is not a knight.",
    "Amelia isn't a knave. Penelope is not a knave. Evelyn is not a knight.",
    "Neither Amelia nor Penelope is a knave, and Evelyn is a knave",
    "Amelia is a knight, not a knave; Penelope is a knight; Evelyn is not a knight but a knave.",
    "Amelia, Penelope, Evelyn: knight, knight, knave",
    "(Amelia, Penelope, Evelyn) = (Knight, Knight, Knave)",
    "Amelia, Penelope, and Evelyn are a knight, a knight, and a knave respectively.",
    "Evelyn is the only knave.",
    "Only Evelyn is a knave.",
    "The only knave is Evelyn",
    "Evelyn is a knave and the others are knights.",
    "Evelyn is a knave; everyone else is a knight",
    "The other two are knights and Evelyn is a knave.",
    "Evelyn: knave. All others: knights.",
    "Amelia (knight), Penelope (knight), Evelyn (knave)",
    "Amelia must be a knight, Penelope must therefore also be a knight, and Evelyn has to be a knave.",
    "Amelia is a Knight (truth-teller), Penelope is a Knight (truth-teller), and Evelyn is a Knave (liar).",
    "Amelia's a knight, Penelope’s a knight, and Evelyn’s a knave",
    "Amelia knight, Penelope knight, Evelyn knave",
    "The set of knights is {Amelia, Penelope} and the set of knaves is {Evelyn}",
    r"\text{Amelia is a knight, Penelope is a knight, and Evelyn is a knave}",
    "Amelia=knight,Penelope=knight,Evelyn=knave",
    "<b>Amelia</b>: knight<br>Penelope: knight<br>Evelyn: knave",
    "Knight: Amelia, Knight: Penelope, Knave: Evelyn",
    "Evelyn lies and is a knave, Amelia is a knight, Penelope tells the truth and is a knight.",
    "Therefore Amelia and Penelope are truth-tellers and Evelyn is a liar.",
    "Amelia is a knight. Penelope is a knight. Evelyn is a knave. So Amelia is a knight.",  # said twice, alike
]
WRONG = [
    "",
    "Amelia is a knight, Penelope is a knight",  # someone is missing
    "Amelia is a knight or a knave, Penelope is a knight, Evelyn is a knave",
    "Amelia is a knight, Penelope: knight/knave, Evelyn: knave",
    "Amelia or Penelope is a knight, Evelyn is a knave",
    "Amelia is a knight, Penelope is a knight, and Evelyn is a knave. Amelia is a knave.",  # a contradiction
    "Amelia is both a knight and a knave, Penelope is a knight, Evelyn is a knave",
    "knight, knight, knave",
    "If Amelia is a knight, then Penelope is a knight and Evelyn is a knave",
    "Amelia says Penelope is a knight and Evelyn is a knave and Amelia is a knight",
    "All are knights",
    "Everyone is a knight.",
    "None of them are knights",
    "Amelia is not a knight, Penelope is a knight, Evelyn is a knave",
    "Amelia is a knight, Penelope is a knight, Evelyn is not a knave",
    "The knights are Amelia and Evelyn and the knave is Penelope",
    "knaves: Amelia, Penelope; knights: Evelyn",
    "The knights are Amelia, Penelope and Evelyn are knaves",  # where does the list end?
    "Amelia, Penelope, Evelyn: knight, knave, knight",
    "Amelia, Penelope, Evelyn: knight, knave",
    "Evelyn is the only knight.",
    "Evelyn is a knight and the others are knaves.",
    "Two knights and one knave",
    "Amelia: True, Penelope: True, Evelyn: False",  # true of what?
]


@pytest.mark.parametrize("text", RIGHT)
def test_phrasings_of_the_truth(text):
    assert read_assignment(text, NAMES) == TRUTH


@pytest.mark.parametrize("text", WRONG)
def test_what_is_not_the_truth(text):
    assert read_assignment(text, NAMES) != TRUTH


SAID = "Amelia is a knight, Penelope is a knight, and Evelyn is a knave"
CONTRARY = {name: not role for name, role in TRUTH.items()}
NEGATED = {  # text → what it says, None where it settles nothing or may be read in two ways
    "Amelia is not a knight, Penelope is not a knight, and Evelyn is not a knave": CONTRARY,
    "Amelia isn't a knight, Penelope wasn't a knight, and Evelyn ain't a knave": CONTRARY,
    "Amelia couldn't be a knight, Penelope won't be a knight, and Evelyn can't possibly be a knave": CONTRARY,
    "Amelia is no knight, Penelope can never be a knight, and Evelyn is really not a knave": CONTRARY,
    "Neither Amelia nor Penelope is a knight, and Evelyn is not a knave": CONTRARY,
    "Amelia != knight, Penelope ≠ knight, Evelyn \\neq knave": CONTRARY,
    "Amelia: !knight, Penelope: ¬knight, Evelyn: not knave": CONTRARY,
    "AMELIA ISN'T A KNIGHT. PENELOPE ISN’T A KNIGHT. EVELYN IS NOT A KNAVE.": CONTRARY,
    "Amelia is not a knave, Penelope is not a knave, and Evelyn is not a knight": TRUTH,
    "Only Evelyn isn't a knight.": TRUTH,
    "Amelia is a knight and is not a knave; Penelope is a knight since she is not a knave; Evelyn isn't a knight": TRUTH,
    "Amelia is not lying. Amelia and Penelope are knights, Evelyn is a knave.": TRUTH,
    "Evelyn's claim is not true, so Evelyn is a knave. Hence Amelia and Penelope are knights, Evelyn is a knave.": TRUTH,
    "Nobody is a knight": dict.fromkeys(NAMES, False),
    "There are no knaves.": dict.fromkeys(NAMES, True),
    f"It is not the case that {SAID}.": None,
    f"It's not true that {SAID}.": None,
    f"It isn't so that {SAID}.": None,
    f"It is false that {SAID}.": None,
    f"I don't think that {SAID}.": None,
    f"I doubt that {SAID}.": None,
    f"It is a lie that {SAID}.": None,
    f"It is impossible that {SAID}.": None,
    f"None of this holds: {SAID}.": None,
    f"Not true: {SAID}.": None,
    f"The opposite of this: {SAID}.": None,
    f"The following is wrong:\n{SAID}.": None,
    f"{SAID} is false.": None,
    f"{SAID}. That is not true.": None,
    "Amelia is a knight? No. Penelope is a knight? No. Evelyn is a knave? No.": None,
    "Not Amelia is a knight, not Penelope is a knight, not Evelyn is a knave": None,
    "Neither is Amelia a knight, nor is Penelope a knight, nor is Evelyn a knave": None,
    "¬(Amelia: knight), ¬(Penelope: knight), ¬(Evelyn: knave)": None,
    "The knights are not Amelia and Penelope, and the knave is not Evelyn": None,
    "The knights are neither Amelia nor Penelope, and the knave is not Evelyn": None,
    "Knights: not Amelia, not Penelope; knaves: not Evelyn": None,
    "Amelia is anything but a knight, Penelope is far from a knight, Evelyn is hardly a knave": None,
    "Amelia fails to be a knight, Penelope fails to be a knight, Evelyn fails to be a knave": None,
    "Amelia doesn't seem to be a knight, Penelope doesn't seem to be a knight, Evelyn doesn't seem to be a knave": None,
    "Evelyn is not lying and is a knight; Amelia is a knight; Penelope is a knight": None,
    "Amelia and Penelope are not both knights, Evelyn is a knave": None,
    "Everyone but Evelyn is a knave. Amelia is a knight, Penelope is a knight": None,
    "It is not the case that Evelyn is a knight. The others are knights.": None,
    "The knave is not Evelyn. The others are knaves.": None,
    "Evelyn is not the only knave.": None,
}


@pytest.mark.parametrize("text", NEGATED)
def test_a_negation_is_read_or_settles_nothing(text):
    assert read_assignment(text, NAMES) == NEGATED[text]


@pytest.mark.parametrize("who", NAMES)
@pytest.mark.parametrize(
    "more", ["{} is a knight, {} is a knave", "{} is a knave or a knight", "knights: {}; knaves: {}"]
)
def test_a_contradiction_settles_nothing(who, more):
    said = ", ".join(f"{n} is a {'knight' if k else 'knave'}" for n, k in TRUTH.items())
    assert read_assignment(f"{said}. {more.replace('{}', who)}", NAMES) is None
    assert read_assignment(f"{more.replace('{}', who)}. {said}", NAMES) is None


def test_everyone_at_once():
    everyone = dict.fromkeys(NAMES, True)
    texts = ["All are knights", "Everyone is a knight.", "All three of them are knights", "Nobody is a knave"]
    texts += ["No one is a knave", "Amelia, Penelope and Evelyn are all knights"]
    texts += ["Knights: Amelia, Penelope, Evelyn; Knaves: none"]
    for text in texts:
        assert read_assignment(text, NAMES) == everyone, text
    assert read_assignment("All of Amelia, Penelope and Evelyn are knaves", NAMES) == dict.fromkeys(NAMES, False)


@pytest.mark.parametrize("aside", ["Neither is lying.", "None was", "No one was there.", "None of them are sure."])
def test_neither_need_not_be_a_knight_or_a_knave(aside):
    """The reader stood still at these: "neither is" promises a role that does not come."""
    said = "Amelia and Penelope are knights, Evelyn is a knave."
    with _ends():
        assert read_assignment(f"{said} {aside}", NAMES) == TRUTH
        assert read_assignment(aside, NAMES) is None


@pytest.mark.parametrize("most", but_few([3, 4], {0}))
def test_every_text_of_up_to_so_many_signs_is_read_to_its_end(most):
    """One word or mark for each sign the reader knows, in every order."""
    words = ["knight", "knaves", "not", "neither", "or", "and", "is", "are", "all", "others", "only", "says", "Evelyn"]
    words += ["seems", ",", ".", "\n", ":"]
    read = 0
    with _ends():
        for n in range(1, most + 1):
            for text in itertools.product(words, repeat=n):
                read_assignment(" ".join(text), NAMES)
                read += 1
    assert read == sum(len(words) ** n for n in range(1, most + 1))


@contextmanager
def _ends():
    """A generous guard against hanging: a reader that stands still would take the whole suite along."""

    def stood_still(number, frame):
        raise AssertionError("the reader stands still")

    before = signal.signal(signal.SIGALRM, stood_still)
    signal.alarm(1200)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_one_letter_names_are_not_articles():
    assert read_assignment("A is a knight and B is a knave", ["A", "B"]) == {"A": True, "B": False}
    assert read_assignment("B is a knave", ["A", "B"]) is None
    assert read_assignment("knights: A; knaves: B", ["A", "B"]) == {"A": True, "B": False}


def _of(who, role):
    return [name for name, its in who if its == role]


def _prose(who):
    def sentence(role):
        names = _of(who, role)
        return f"{' and '.join(names)} {'are ' + role + 's' if len(names) > 1 else 'is a ' + role}"

    return ". ".join(sentence(role) for role in ("knight", "knave") if _of(who, role))


STYLES = {
    "sentence": lambda who: ", ".join(f"{n} is a {r}" for n, r in who),
    "negated": lambda who: "; ".join(f"{n} is not a {'knave' if r == 'knight' else 'knight'}" for n, r in who),
    "colon lines": lambda who: "\n".join(f"{i}. **{n}**: {r.title()}" for i, (n, r) in enumerate(who, 1)),
    "json": lambda who: json.dumps(dict(who)),
    "table": lambda who: "\n".join(f"| {n} | {r} |" for n, r in who),
    "columns": lambda who: " | ".join(n for n, _ in who) + "\n---|---\n" + " | ".join(r for _, r in who),
    "arrows": lambda who: " ".join(f"{n} → {r.upper()}," for n, r in who),
    "groups": lambda who: "; ".join(f"{r}s: {', '.join(_of(who, r)) or 'none'}" for r in ("knight", "knave")),
    "grouped json": lambda who: json.dumps({f"{r}s": _of(who, r) for r in ("knave", "knight")}),
    "prose": _prose,
}


@pytest.mark.parametrize("style", STYLES)
def test_every_assignment_of_up_to_five_people(style):
    """Written in one style, read back: the same assignment and no other, for all 2ⁿ."""
    people = ["Zoey", "Jackson", "Mia", "Sophia", "Oliver"]
    rng = random.Random(0)
    for n in range(2, 6):
        for roles in itertools.product([True, False], repeat=n):
            who = [(name, "knight" if role else "knave") for name, role in zip(people, roles)]
            rng.shuffle(who)
            want = {name: role == "knight" for name, role in who}
            assert read_assignment(STYLES[style](who), people[:n]) == want


def test_the_judge_against_brute_force_over_the_statements(shared):
    """The one assignment under which knights' statements hold and knaves' do not scores 1, every other 0."""
    scorer = make_scorer("knights-knaves")
    problems = load_task("knights-knaves", shared)
    for p in problems:
        names = p.meta["names"]
        statements = ast.literal_eval(p.meta["statements"])
        worlds = list(itertools.product([True, False], repeat=len(names)))
        consistent = [w for w in worlds if all(_holds(s, w) == w[i] for i, s in enumerate(statements))]
        texts = [", ".join(f"{n} is a {'knight' if k else 'knave'}" for n, k in zip(names, w)) for w in worlds]
        verdicts = scorer.score([f"<SOLUTION>{t}</SOLUTION>" for t in texts], [p.answer] * len(texts))
        assert [w for w, v in zip(worlds, verdicts) if v == 1.0] == consistent
        assert len(consistent) == 1
        assert set(verdicts) == {0.0, 1.0}


def _holds(statement, world) -> bool:
    op, *rest = statement
    if op in ("telling-truth", "lying"):
        return world[rest[0]] == (op == "telling-truth")
    values = [_holds(s, world) for s in rest]
    return {
        "not": lambda: not values[0],
        "and": lambda: all(values),
        "or": lambda: any(values),
        "->": lambda: not values[0] or values[1],
        "<=>": lambda: values[0] == values[1],
    }[op]()


def test_where_the_answer_is_looked_for():
    gold = json.dumps({"names": NAMES, "solution": [True, True, False]})
    right = "Amelia is a knight,\nPenelope is a knight,\nEvelyn is a knave"
    strict, lenient = make_scorer("knights-knaves"), make_scorer("knights-knaves", fallback=True)
    boxed = r"\boxed{\text{Amelia: knight, Penelope: knight, Evelyn: knave}}"
    assert strict.score([f"<SOLUTION>{right}</SOLUTION>", boxed, right], [gold] * 3) == [1.0, 1.0, 0.0]
    assert lenient.score([f"Amelia is a knave?\n\n{right}"], [gold]) == [1.0]


def test_hostile_answers_are_wrong():
    gold = json.dumps({"names": NAMES, "solution": [True, True, False]})
    repeated = [
        "Amelia, ",
        "knights: ",
        "Amelia and ",
        "knight ",
        "-",
        "not ",
        "Amelia or ",
        "\\",
        "all ",
        "the only ",
        "if Amelia ",
    ]
    texts = [piece * (19_000 // len(piece)) for piece in [*repeated, "1. ", "\0", "\n"]]
    texts += ["knights:\n" + "\n" * 19_000, "(" * 10**6, "Amelia is a knight " * 10**5]
    for text in texts:
        assert make_scorer("knights-knaves").score([f"<SOLUTION>{text}</SOLUTION>"], [gold]) == [0.0]


@pytest.mark.parametrize("bad", ["", "{}", '{"names": ["A"], "solution": []}', '{"names": [], "solution": []}', "[]"])
def test_a_gold_that_is_none_is_not_scored(bad):
    assert make_scorer("knights-knaves").score(["<SOLUTION>A is a knight</SOLUTION>"], [bad]) == [None]
