"""Who is called what: reads an assignment of knight and knave to names out of any phrasing of it.

The answer is spelt as a string of signs, one letter per word ("Ann and Bo are knights" is ``NaNvK``), and patterns over that
string bind names to roles in either order: sentences, "Ann: knave", "knights: Ann, Bo; knave: Cy", tables, JSON.
It is sober: a person called both, or by a hedge ("knight or knave"), or not called at all, makes the answer wrong. A "not" is
read where it stands before its role; where it may mean more ("it is not the case that …"), its sentence claims nothing. Every
step is linear in the text.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

MAX_CHARACTERS = 20_000

_WORDS = {
    "k": "knight knave truth-teller truthteller liar",  # a role, and below in the plural
    "K": "knights knaves truth-tellers truthtellers liars",
    "x": "not never no non cannot cant isnt arent wasnt werent wont dont doesnt didnt",  # and whatever ends in n't
    # Takes back what its sentence says
    "D": "false wrong untrue incorrect invalid mistaken falsely wrongly incorrectly opposite contrary reverse inverse "
    "deny denies denied doubt doubts doubtful refuted disagree impossible unlikely hardly scarcely barely far fail fails failed "
    "anything nothing except excepting excluding besides",
    "n": "neither none nobody",
    "o": "or",
    "a": "and nor but",
    "b": "is was be",
    "v": "are were",
    "Q": "all everyone everybody",
    "T": "others other rest remaining else",
    "Y": "only sole",
    "S": "if whether unless says said say claims claimed told would",  # supposes or reports: names no role of its subject
    # stand anywhere, say nothing
    "": "a an the of them both each as well s really actually possibly certainly definitely clearly surely simply indeed",
}
_SIGN = {word: sign for sign, words in _WORDS.items() for word in words.split()}
_KNIGHT = re.compile(r"knight|truth-?teller")
_MARKS = {
    **dict.fromkeys(",&|()", ","),
    **dict.fromkeys(";.?", "E"),
    **dict.fromkeys("✗✘❌", "D"),
    "/": "o",
    "\n": "L",
}  # others: c

_RULE = re.compile(r"^[\s|:+=-]+$", re.MULTILINE)  # the line under a table's head
_TYPESETTING = re.compile(r"\\[a-zA-Z]+\*?|\\[,;:! ]|[*_`~$\"“”{}\[\]]|</?\w+>")
_ARROW = re.compile(
    r"\\(?:long)?(?:right|Right)arrow(?![a-zA-Z])|\\(?:to|mapsto)(?![a-zA-Z])|(?<![-=])[-=]+>|[→⇒↦]|:=|=+"
)
_LIST_NUMBER = re.compile(r"(?<![\w.])\(?\d{1,2}[.):]?(?!\w)")
_REWORDED = [  # what takes several words or none, in words of the list above
    (re.compile(pattern, re.IGNORECASE), plain)
    for pattern, plain in (
        (r"!=+|\\not\s?=|\\(?:neq?|neg|lnot)(?![a-z])|[≠¬↛⇏]|!(?=\w)|(?<=[\s(:,|])~(?=\w)", " not "),
        (r"\bno[ -]one\b", "none"),
        (r"\bnor(?= (?:is|are|was|were|does|do|did|can|could)\b)", "not"),
        (r"\bthere (?:is|are) no (?=kn|liar|truth)", "nobody is a "),
        (r"(?:\b(?:not|never|cannot)|n't) (?:both|all|each|every\w*)\b", " false "),
        (r"\b(?:all|every ?(?:one|body)|any ?(?:one|body)|none|nobody) but\b", " false "),
        (r"\bnone of (?:this|that|these|it|the above)\b|\ba lie\b", " false "),
    )
]

# "the knight is Ann" takes one name; "knights: Ann, Bo" a list, but no name that goes on to a role of its own.
_ROLE_AHEAD = r"(?![bvc][wxQY]{0,3}[kK](?![wY]{0,2}[bvc]))"
_LISTED = rf"[NT]{_ROLE_AHEAD}(?:[,aLc]++[NT]{_ROLE_AHEAD})*"
_HEAD = re.compile(rf"(?P<role>[kK])(?:(?<=k)[wY]{{0,2}}b(?P<one>[NT])|[wY]{{0,2}}[bvc]++[L,c]*+(?P<many>{_LISTED}))")
# (?=[nQNT]): a group is never empty, and the reader always moves on.
_GROUP = re.compile(r"(?=[nQNT])(?P<not>n?)(?P<who>Q?[NT](?:[,a]++Q?[NT])*+|(?:Q|(?<=n))w{0,2}(?=[bv]))")
_RUN = r"(?P<run>[kK](?:(?:[,a]*+|[,aw]{0,3}[bv]?x[bv]?)[kK](?![wY]{0,2}[bvc]))*)"
# "not lying and a knight" negates no role
_ROLES = re.compile(rf"(?P<link>(?:[,cbvwQYa]|x(?=[xbv]{{0,3}}[kK])){{0,6}}){_RUN}")
_COLUMNS = re.compile(rf"(?P<link>[,cbvwQL]{{0,8}}){_RUN}")  # the roles may stand on the next line, one a name
_NONE = re.compile(r"[kK][wY]{0,2}[bvc]++[L,c]*+n(?![bvNT])")  # "knaves: none"
_ASIDE = re.compile(r"S[^EL]*+")
_HEDGE = re.compile(r"[NTkK]o[wxaQ]*+[NTkK]")
_OTHERS = "\0others"


@dataclass
class _Claim:
    """What signs[start:end] say: (name, is a knight); ``only`` these, so that the others are not."""

    start: int
    end: int
    roles: list[tuple[str, bool]]
    only: bool


def read_assignment(text: str, names: Sequence[str]) -> dict[str, bool] | None:
    """name → is a knight, for every name, or None if the text does not settle that."""
    if len(text) > MAX_CHARACTERS or not all(names):
        return None
    signs, words = _spell(text, names)
    if _HEDGE.search(signs):
        return None
    read = _read(signs, words, names)
    upheld = read and _upheld(signs, words, *read)
    if not upheld:
        return None
    claims, doubted = upheld
    claimed: dict[str, set[bool]] = {}  # name → the roles that claims give it
    for claim in claims:
        for name, role in claim.roles:
            claimed.setdefault(name, set()).add(role)
            if claim.only:
                claimed.setdefault(_OTHERS, set()).add(not role)
    calls = {name: claimed.get(name) or (set() if name in doubted else claimed.get(_OTHERS, set())) for name in names}
    return {n: roles == {True} for n, roles in calls.items()} if all(len(r) == 1 for r in calls.values()) else None


def _read(signs: str, words: list[str], names: Sequence[str]) -> tuple[list[_Claim], set[int]] | None:
    """The claims in order, and where a sign needs no other reading (in a claim or an aside); None for an endless list."""
    claims: list[_Claim] = []
    settled: set[int] = set()
    at, list_end = 0, -9
    while at < len(signs):
        start, roles = at, []
        if head := _HEAD.match(signs, at):
            at = head.end()
            role = _is_knight(words[head.start("role")])
            roles = [(name, role) for name in _who(head.group("one") or head.group("many"), words, at, names)]
            list_end = at if head.group("many") else list_end
        elif group := _GROUP.match(signs, at):
            who = _who(group.group("who"), words, group.end(), names)
            bound = None if _of_a_head(signs, group) else _bind(signs, words, who, group)
            at = group.end()
            if bound:
                roles, at = bound
                if len(who) == 1 and start - list_end <= 2 and "v" in signs[group.end() : at]:
                    return None  # "the knights are Ann, Bo and Cy are knaves": where the list ends is anyone's guess
        elif aside := _NONE.match(signs, at) or _ASIDE.match(signs, at):
            at = aside.end()
            settled.update(range(start, at))
        else:
            at += 1
        if roles:
            claims.append(_Claim(start, at, roles, "Y" in signs[max(start - 1, 0) : at]))
            settled.update(range(start, at))
    return claims, settled


def _upheld(
    signs: str, words: list[str], claims: list[_Claim], settled: set[int]
) -> tuple[list[_Claim], set[str]] | None:
    """The claims of sentences without a stray negation, and who is named in the others: they are not "the others" of a claim.
    None where a stray negation has no person or role beside it: "That is false." """
    sentence = list(accumulate(s in "EL" for s in signs))
    about = {sentence[i] for i, s in enumerate(signs) if s in "NTQkK"}
    stray = [i for i, s in enumerate(signs) if s in "xnD" and i not in settled]
    if any(signs[i] != "n" and sentence[i] not in about for i in stray):
        return None
    denied = {sentence[i] for i in stray}
    doubted = {words[i] for i, s in enumerate(signs) if s == "N" and sentence[i] in denied}
    return [c for c in claims if denied.isdisjoint(range(sentence[c.start], sentence[c.end - 1] + 1))], doubted


def _of_a_head(signs: str, group: re.Match[str]) -> bool:
    """ "The knights are neither Ann nor Bo": the role stands before, and none is to be looked for behind."""
    before = signs[max(group.start() - 4, 0) : group.start()]
    return bool(group.group("not") and re.search(r"[kK][wY]{0,2}[bv]$", before))


def _bind(
    signs: str, words: list[str], who: list[str], group: re.Match[str]
) -> tuple[list[tuple[str, bool]], int] | None:
    """The roles that follow a group of names: one for all of them or one for each, and where they end."""
    for pattern in (_COLUMNS, _ROLES):
        match = pattern.match(signs, group.end())
        if not match:
            continue
        flip = (match.group("link").count("x") + bool(group.group("not"))) % 2 == 1
        roles = []
        for i in range(match.start("run"), match.end()):
            if signs[i] in "kK":
                roles.append(_is_knight(words[i]) != flip)
                flip = False
            elif signs[i] == "x":
                flip = True
        if len(roles) == len(who) > 1:
            return list(zip(who, roles)), match.end()
        if pattern is _ROLES:  # two roles for one person contradict each other, and are kept so
            return [(name, role) for name in dict.fromkeys(who) for role in sorted(set(roles))], match.end()
    return None


def _who(signs: str, words: list[str], end: int, names: Sequence[str]) -> list[str]:
    """The names under these signs, which end at ``end``; "others" for whoever is not named, everyone where none is."""
    start = end - len(signs)
    who = [words[start + i] if s == "N" else _OTHERS for i, s in enumerate(signs) if s in "NT"]
    return who or list(names)


def _is_knight(word: str) -> bool:
    return bool(_KNIGHT.match(word))


def _spell(text: str, names: Sequence[str]) -> tuple[str, list[str]]:
    """The text as one sign per word, and the words themselves (names as they are in ``names``)."""
    text = text.replace("’", "'")
    for pattern, plain in _REWORDED:
        text = pattern.sub(plain, text)
    text = text.replace("\\\\", "\n").replace("\\n", "\n").replace("\\&", "&")
    text = _RULE.sub("", text)
    text = _TYPESETTING.sub(" ", _ARROW.sub(" : ", text))
    text = _LIST_NUMBER.sub(" ", text)
    # A name of one letter counts in its own case only: "a" is an article.
    ordered = sorted(names, key=len, reverse=True)
    spelt = "|".join(f"({re.escape(n)})" if len(n) == 1 else f"((?i:{re.escape(n)}))" for n in ordered)
    signs, words = [], []
    for m in re.finditer(rf"(?<!\w)(?:{spelt})(?!\w)|(\w+(?:[-'](?!s\b)\w+)*)|([^\w\s']|\n)|'(s)\b", text):
        *_, word, mark, is_ = m.groups()
        name = None
        if word:
            word = word.casefold()
            sign = "x" if word.endswith("n't") else _SIGN.get(word, "w")
        elif mark or is_:
            sign = "b" if is_ else _MARKS.get(mark, "c")
        else:  # which name is known by its group: (?i) matches "ı" for "i", and no case rule brings that back
            sign, name = "N", ordered[(m.lastindex or 1) - 1]
        if sign:
            signs.append(sign)
            words.append(name or word or "")
    return "".join(signs), words
