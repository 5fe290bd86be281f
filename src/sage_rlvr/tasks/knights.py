"""Who is called what: reads an assignment of knight and knave to names out of any phrasing of it.

The answer is spelt as a string of signs, one letter a word ("Ann and Bo are knights" is ``NaNvK``), and patterns over that
string bind names to roles in either order: sentences, "Ann: knave", "knights: Ann, Bo; knave: Cy", tables, JSON.
It is sober: a person called both, or by a hedge ("knight or knave"), or not called at all, makes the answer wrong.
"""

import re
from collections.abc import Sequence

MAX_CHARACTERS = 20_000

_WORDS = {
    "k": "knight knave truth-teller truthteller liar",  # a role, and below in the plural
    "K": "knights knaves truth-tellers truthtellers liars",
    "x": "not isn't isnt aren't arent never no can't cannot",
    "n": "neither none nobody",
    "o": "or",
    "a": "and nor but",
    "b": "is was be",
    "v": "are were",
    "Q": "all everyone everybody",
    "T": "others other rest remaining else",
    "Y": "only sole",
    "S": "if whether unless says said say claims claimed told would",  # supposes or reports: names no role of its subject
    "": "a an the of them both each as well s",  # stand anywhere, say nothing
}
_SIGN = {word: sign for sign, words in _WORDS.items() for word in words.split()}
_KNIGHT = re.compile(r"knight|truth-?teller")
_MARKS = {
    ",": ",",
    "&": ",",
    "|": ",",
    "(": ",",
    ")": ",",
    "/": "o",
    ";": "E",
    ".": "E",
    "?": "E",
    "\n": "L",
}  # others: c

_RULE = re.compile(r"^[\s|:+=-]+$", re.MULTILINE)  # the line under a table's head
_TYPESETTING = re.compile(r"\\[a-zA-Z]+\*?|\\[,;:! ]|[*_`~$\"“”{}\[\]]|</?\w+>")
_ARROW = re.compile(r"\\(?:long)?(?:right|Right)arrow(?![a-zA-Z])|\\(?:to|mapsto)(?![a-zA-Z])|[-=]+>|[→⇒↦]|:=|=+")
_LIST_NUMBER = re.compile(r"(?<![\w.])\(?\d{1,2}[.):]?(?!\w)")

# "the knight is Ann" takes one name; "knights: Ann, Bo" a list, but no name that goes on to a role of its own.
_ROLE_AHEAD = r"(?![bvc][wxQY]{0,3}[kK](?![wY]{0,2}[bvc]))"
_LISTED = rf"[NT]{_ROLE_AHEAD}(?:[,aLc]++[NT]{_ROLE_AHEAD})*"
_HEAD = re.compile(rf"(?P<role>[kK])(?:(?<=k)[wY]{{0,2}}b(?P<one>[NT])|[wY]{{0,2}}[bvc]++[L,c]*+(?P<many>{_LISTED}))")
# (?=[nQNT]): a group is never empty, and the reader always moves on.
_GROUP = re.compile(r"(?=[nQNT])(?P<not>n?)(?P<who>Q?[NT](?:[,a]++Q?[NT])*+|(?:Q|(?<=n))w{0,2}(?=[bv]))")
_RUN = r"(?P<run>[kK](?:[,a]*+x?[kK](?![wY]{0,2}[bvc]))*)"
_ROLES = re.compile(rf"(?P<link>[,cbvwxQYa]{{0,6}}){_RUN}")
_COLUMNS = re.compile(rf"(?P<link>[,cbvwQL]{{0,8}}){_RUN}")  # the roles may stand on the next line, one a name
_ASIDE = re.compile(r"S[^EL]*+")
_HEDGE = re.compile(r"[NTkK]o[wxaQ]*+[NTkK]")
_OTHERS = "\0others"


def read_assignment(text: str, names: Sequence[str]) -> dict[str, bool] | None:
    """name → is a knight, for every name, or None if the text does not settle that."""
    if len(text) > MAX_CHARACTERS:
        return None
    signs, words = _spell(text, names)
    if _HEDGE.search(signs):
        return None
    said: dict[str, set[bool]] = {}
    at, list_end = 0, -9
    while at < len(signs):
        claims: list[tuple[str, bool]] = []
        only = at > 0 and signs[at - 1] == "Y"
        if head := _HEAD.match(signs, at):
            at = head.end()
            role = _is_knight(words[head.start("role")])
            claims = [(name, role) for name in _who(head.group("one") or head.group("many"), words, at, names)]
            list_end = at if head.group("many") else list_end
            only |= "Y" in head.group()
        elif group := _GROUP.match(signs, at):
            who = _who(group.group("who"), words, group.end(), names)
            bound = _bind(signs, words, who, group)
            start, at = at, group.end()
            if bound:
                claims, at, only = bound[0], bound[1], only or "Y" in signs[at : bound[1]]
                if len(who) == 1 and start - list_end <= 2 and "v" in signs[group.end() : at]:
                    return None  # "the knights are Ann, Bo and Cy are knaves": where the list ends is anyone's guess
        else:
            aside = _ASIDE.match(signs, at)
            at = aside.end() if aside else at + 1
        for name, role in claims:
            said.setdefault(name, set()).add(role)
            if only:
                said.setdefault(_OTHERS, set()).add(not role)
    calls = {name: said.get(name) or said.get(_OTHERS, set()) for name in names}
    return {n: roles == {True} for n, roles in calls.items()} if all(len(r) == 1 for r in calls.values()) else None


def _bind(
    signs: str, words: list[str], who: list[str], group: re.Match[str]
) -> tuple[list[tuple[str, bool]], int] | None:
    """The roles that follow a group of names: one for all of them or one for each, and where they end."""
    for pattern in (_COLUMNS, _ROLES):
        found = pattern.match(signs, group.end())
        if not found:
            continue
        first = found.start("run")
        flip = (found.group("link").count("x") + bool(group.group("not"))) % 2 == 1
        roles = []
        for i in range(first, found.end()):
            if signs[i] in "kK":
                negated = flip if i == first else signs[i - 1] == "x"
                roles.append(_is_knight(words[i]) != negated)
        if len(roles) == len(who) > 1:
            return list(zip(who, roles)), found.end()
        if pattern is _ROLES:  # two roles for one person contradict each other, and are kept so
            return [(name, role) for name in who for role in roles], found.end()
    return None


def _who(signs: str, words: list[str], end: int, names: Sequence[str]) -> list[str]:
    """The names under these signs, which end at ``end``; "others" for whoever is not named, everyone where none is."""
    start = end - len(signs)
    who = [words[start + i] if s == "N" else _OTHERS for i, s in enumerate(signs) if s in "NT"]
    return who or list(names)


def _is_knight(word: str) -> bool:
    return bool(_KNIGHT.match(word))


def _spell(text: str, names: Sequence[str]) -> tuple[str, list[str]]:
    """The text as one sign a word, and the words themselves (names as they are in ``names``)."""
    text = text.replace("’", "'").replace("\\\\", "\n").replace("\\n", "\n").replace("\\&", "&")
    text = _RULE.sub("", text)
    text = _TYPESETTING.sub(" ", _ARROW.sub(" : ", text))
    text = re.sub(r"(?i)\bno[ -]one\b", "none", text)
    text = _LIST_NUMBER.sub(" ", text)
    real = {name.casefold(): name for name in names}
    # A name of one letter counts in its own case only: "a" is an article.
    spelt = "|".join(
        re.escape(n) if len(n) == 1 else f"(?i:{re.escape(n)})" for n in sorted(names, key=len, reverse=True)
    )
    signs, words = [], []
    for m in re.finditer(rf"(?<!\w)(?:({spelt}))(?!\w)|(\w+(?:[-'](?!s\b)\w+)*)|([^\w\s']|\n)|'(s)\b", text):
        name, word, mark, is_ = m.groups()
        if name:
            sign = "N"
        elif word:
            sign = _SIGN.get(word.casefold(), "w")
        else:
            sign = "b" if is_ else _MARKS.get(mark, "c")
        if sign:
            signs.append(sign)
            words.append(real[name.casefold()] if name else (word or "").casefold())
    return "".join(signs), words
