r"""The one answer that a sentence states: ``The walk takes 204 minutes.`` says 204.

Found without a look at the gold, and only where there is one thing to find, so that a policy gains nothing over saying that
thing alone. A word that may change what is said of it (not, or, at least, halves, million) makes it no answer.
"""

import re

_TEXT = re.compile(r"\\text(?:bf|it|rm)?\s*\{([^{}]*)\}")
_SPAN = re.compile(r"\$\$([^$]+)\$\$|\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_BREAK = re.compile(r"[.?!]\s|\?")  # a second sentence, a question
_OPERATOR = re.compile(r"\s*([-+/^=<>]+)\s+|\s+([+/^=<>]+)\s*")  # "x = 5" is one thing
_FACTOR = re.compile(r"(?<=\d)\s+(?=[A-Za-z]\b)")  # and so are "5 x" and "5 m"
_WORD = re.compile(r"[A-Za-z]+(?:['’-][A-Za-z]+)*")
_DOUBT = (
    r"no|not|\w+n['’]t|cannot|never|nor|none|neither|either|or|and|but|if|unless|except|excluding|without|instead|rather"
    r"|maybe|perhaps|may|might|could|can\s+be|should|would|possibly|probably|likely|guess\w*|assum\w*|suppos\w*|unsure"
    r"|unknown|wrong|incorrect|false|impossible|undefined"
)
_BOUND = (
    r"at\s+(?:the\s+)?(?:very\s+)?(?:least|most)|than|more|less|fewer|greater|larger|bigger|smaller|higher|lower|above|below"
    r"|under|over|beyond|exceed\w*|up|between|within|about|around|approx\w*|roughly|nearly|almost|close"
)
_ARITHMETIC = (
    r"of(?=\s+(?:\$|\\[(\[])?\s*-?(?:\d|\\[a-z]))|negative|minus|plus|times|divided|squared|cubed|root|power|factorial"
    r"|mod(?:ulo)?|inverse|reciprocal|opposite|pi|sqrt|log|twice|double|triple|percent\w*|half|halves|thirds|quarters"
    r"|\d+(?:st|nd|rd|th)|(?:four|fif|six|seven|eigh|nin|ten|hundred|thousand|million)ths"
    r"|dozens?|hundreds?|thousands?|(?:m|b|tr)illions?"
)
TURNED = re.compile(rf"(?<!\\)\b(?:{_DOUBT}|{_BOUND}|{_ARITHMETIC})\b", re.IGNORECASE)
# "5 more", "5 times" are 5
TURNS_A_UNIT = re.compile(rf"\b(?:{_DOUBT}|than|(?!times\b)(?:{_ARITHMETIC}))\b", re.IGNORECASE)


def stated(text: str) -> str | None:
    r"""The only ``$…$`` or ``\(…\)``, or else the only thing that is no word, in a sentence that plainly states it; or None."""
    text = _TEXT.sub(r"\1", text).strip().rstrip(".")
    if _BREAK.search(text) or TURNED.search(text):
        return None
    spans = [next(filter(None, m.groups())).strip() for m in _SPAN.finditer(text)]
    spans = [span for span in spans if not re.fullmatch("[A-Za-z]", span)]  # "the value of $x$"
    prose = _FACTOR.sub("", _OPERATOR.sub(r"\1\2", _SPAN.sub(" ", text)))
    parts = [part.strip('.,:;*"') for part in prose.split()]
    words = [part for part in parts if _WORD.fullmatch(part.strip("()")) and len(part) > 1]
    terms = spans + [part for part in parts if part and not _WORD.fullmatch(part.strip("()"))]
    prosaic = len(words) > 1 or (words and spans) or "answer" in text.casefold()  # "5 ab" is a product, no sentence
    return terms[0] if prosaic and len(terms) == 1 else None
