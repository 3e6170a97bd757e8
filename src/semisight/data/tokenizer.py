"""Captions to words, as the public caption metrics do it: Penn Treebank conventions, lower case, no punctuation.

The public evaluation runs a Java tokeniser and drops what it calls punctuation. This is the same in Python, written
from that tokeniser's behaviour and checked against it by tests: contractions (do n't, dog 's), can not, gon na,
abbreviations that keep their period (mr., u.s., a single letter), numbers, hyphens and slashes inside words, brackets
as -lrb- and -rrb- (the public list of punctuation spells them in capitals, so they stay), emoji dropped, other scripts
kept.

Known differences, all rare in captions: telephone numbers, HTML tags and web addresses of unusual shape, rarer
emoticons, letters that joined Unicode after 2010. And the public tokeniser lets the *next* caption's first word decide
whether a caption's final "A." keeps its period; here every caption stands alone.
"""

import re
from collections.abc import Iterable
from functools import cache

DASHES = frozenset(["-", "--", "---", "----"])  # longer ones count as words; other punctuation is not matched at all
TWO_WORDS = {  # written as one, read as two
    "cannot": ("can", "not"),
    "gonna": ("gon", "na"),
    "gotta": ("got", "ta"),
    "wanna": ("wan", "na"),
    "gimme": ("gim", "me"),
    "lemme": ("lem", "me"),
}
WRITTEN_AS = {
    **{"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"},
    **{"¢": "cents", "£": "#", "€": "$", "¤": "$", "½": "1/2", "¼": "1/4", "¾": "3/4", "⅓": "1/3", "⅔": "2/3"},
    **{"’s": "'s", "’d": "'d", "’m": "'m", "’ll": "'ll", "’re": "'re", "’ve": "'ve", "n’t": "n't", "n‘t": "n`t"},
    **{left + "(": left + "-lrb-" for left in (":", ":-", ":'", ";", ";-", "=", ">:")},
    **{left + ")": left + "-rrb-" for left in (":", ":-", ":'", ";", ";-", "=", ">:")},
}
ENTITIES = {"&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&apos;": "'", "&nbsp;": " ", "&mdash;": "—"}

ABBREVIATIONS = (
    "adj adm adv al ala alex apr ariz assn assoc asst atty attys aug ave bhd bldg blvd brig bros calif capt cf cie "
    "cmdr co col colo comdr conn corp cos cpl ct dak dec dept det dr drs elec ens esq est etc ext feb fla fri ft ga "
    "gen gov govs hon inc ind insp intl invt jan jos jr jul jun kan kans ky lieut lt ltd maj mar md messrs mfg mich "
    "minn mlle mme mo mon mont mr mrs ms msgr mt mtg natl neb nev nov oct okla penn pfc ph plc ppte ppty pres prof "
    "profs pte ptes pty ptys pvt rd rep reps rev rt sen sens sep sept seq sfc sgt spc sq sr st ste supt sys tel tenn "
    "thu thurs treas tue tues univ va vs vt wed wis wisc wm wyo"
)
CAPITAL_ABBREVIATIONS = "Ark Az Del Ill La Mass Miss Ore Pa Tex Wash"  # at the car wash. is no state
ABBREVIATIONS_BEFORE_NUMBERS = "art ca fig figs no nos op pp prop"
SENTENCE_STARTERS = (
    "A About According Additionally After An As At But He Her Here However If In It Last Many More Now Once One Other "
    "Our She Since So Some Such That The Their Then There These They This We What When While Yet You"
)
WITH_APOSTROPHE = "c'est c'mon cap'n nat'l nor'easter s'mores"

COMBINING_MARKS = (  # parts of words that Python's \w leaves out
    "\u02c2-\u02c5\u02d2-\u02df\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed\u0711"
    "\u0730-\u074c\u07a6-\u07b0\u0900-\u0903\u093a-\u0963\u0981-\u0983\u09bc-\u09e3\u0a01-\u0a51\u0a81-\u0a83\u0abc-\u0acd"
    "\u0b82\u0bbe-\u0bcd\u0c01-\u0c03\u0c3e-\u0c56\u0d3e-\u0d4d\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1-\u0ecd"
)
SYMBOLS = (  # one token each; what is neither here nor in a word is dropped
    "¡-ª¬-º¼-¿×÷€₠\u037e\u0387\u0589\u05be\u05c0\u05c3\u05c6\u05f3-\u060f\u061b-\u061f\u066a\u066d\u06d4\u0700-\u070d\u0964"
    "\u0965\u0e3f\u0e4f\u2016\u2017\u201a\u201e-\u2023\u2030-\u2038\u203b-\u2042\u2070-\u208e\u20a4\u2100\u2101\u2103-\u2106"
    "\u2108\u2109\u2114\u2116-\u2123\u2125\u2127\u2129\u212e\u2140-\u2144\u214a-\u214f\u2153-\u215e\u2190-\u2bff\u3001\u3002"
    "\u3012\u30fb\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65\uffe0-\uffe6"
)

_ENTITY = re.compile("|".join(ENTITIES))
_BEYOND_BMP = re.compile("[\U00010000-\U0010ffff]")  # emoji among them: dropped, and they part the words at their sides
_PLAIN = re.compile(r"[A-Za-z\s,]*\.?\s*")
_NOT_PLAIN = {*TWO_WORDS, *ABBREVIATIONS.split(), *CAPITAL_ABBREVIATIONS.lower().split()}


def tokenize(text: str) -> tuple[str, ...]:
    """The words of one caption: "A man's dog isn't here." gives a, man, 's, dog, is, n't, here."""
    if _PLAIN.fullmatch(text):  # most captions, several times faster
        words = text.lower().replace(",", " ").replace(".", " ").split()
        if words and len(words[-1]) > 1 and _NOT_PLAIN.isdisjoint(words):
            return tuple(words)
    if "&" in text:
        text = _ENTITY.sub(lambda match: ENTITIES[match[0]], text)
    ascii_only = text.isascii()
    if not ascii_only:
        text = _BEYOND_BMP.sub(" ", text).replace("\u00ad", "")  # soft hyphens
    words = []
    for match in _tokens(ascii_only).finditer(text):
        word = match[0].lower()
        if word in TWO_WORDS and text[match.end() : match.end() + 1] not in ("'", "’"):
            words.extend(TWO_WORDS[word])
        elif word not in DASHES:
            words.append(WRITTEN_AS.get(word, word))
    return tuple(words)


def readable(words: Iterable[str]) -> str:
    """Words as people write them: `do n't` and `dog 's` joined, brackets as brackets."""
    text = " ".join(words)
    for kind, opening, closing in (("r", "(", ")"), ("s", "[", "]"), ("c", "{", "}")):
        text = text.replace(f"-l{kind}b- ", opening).replace(f" -r{kind}b-", closing)
    return re.sub(r" (n't|'(?:s|d|m|ll|re|ve))(?!\S)", r"\1", text)


def either(words: str) -> str:
    return words.replace(" ", "|")


@cache
def _tokens(ascii_only: bool) -> re.Pattern[str]:
    """One pattern of alternatives, the longest readings first; the plain one is faster and fits nearly all captions."""
    if ascii_only:
        letter, alnum, symbol, q, join, negation = "[A-Za-z]", "[A-Za-z0-9]", "(?!)", "'", "[-_]", "(?i:n['`]t)"
    else:
        unlike = "²³¹ªº¼-¾\u2070-\u209c\u2150-\u218b"  # letters and digits to Python, symbols here
        letter = rf"(?:[^\W\d_{unlike}]|[{COMBINING_MARKS}])"
        alnum = rf"(?:[^\W_{unlike}]|[{COMBINING_MARKS}])"
        symbol, q, join, negation = f"[{SYMBOLS}]", "['’]", "[-_\u058a\u2010\u2011]", "(?i:n['`’‘]t)"
    name = rf"(?:[A-HJ-XZdlno]{q}{letter}{{2,}}|{alnum}+)"  # o'clock, D'Artagnan, t, 4x4
    hyphens = rf"(?:{join}{name})*"
    listed = either(WITH_APOSTROPHE).replace("'", q)
    web = r"[^\s\"<>|()]*[^\s\"<>|.!?(){},'-]"
    alternatives = [
        r"[A-Za-z]+(?=[\s,]|$)",  # most words: first, for speed
        rf"https?://{web}|(?i:www\.){web}|\w[\w.+-]*@\w+(?:[.-]\w+)*",
        r"</?[A-Za-z][A-Za-z0-9]*(?:\s[^<>]*)?/?>",
        r">?[:;=]['-]?[()]|>?[:;=]-?[DdPp](?![A-Za-z0-9])|\^_\^",
        rf"(?i:(?:[a-z]\.){{2,}}(?:-{alnum}+{hyphens}|(?!{letter}))|ph\.d\.(?!{letter}))",  # U.S., a.m., U.S.-based
        rf"(?:(?i:{either(ABBREVIATIONS)})|{either(CAPITAL_ABBREVIATIONS)})\.(?!{letter})",
        rf"(?i:{either(ABBREVIATIONS_BEFORE_NUMBERS)})\.(?=\s*\d)",
        rf"[A-Za-z]\.(?!{letter}|\s*(?:{either(SENTENCE_STARTERS)})\b)",
        rf"{alnum}+\.(?=[,;:])",
        # No space after a period: one word, as the public tokeniser has it.
        rf"{letter}{alnum}*(?:[.!?]{letter}{alnum}*)+(?:(?<=\.com|\.net|\.org|\.edu)/{web}|(?:-{name})*)",
        rf"{q}[nN]{q}|{q}[nN](?!{alnum}|-)|{q}(?i:em|till?|cause)|'[tT](?=(?i:is|was))",
        rf"(?<!\d){q}\d\d(?:s|(?!\d|{q}s|{alnum}))",  # '80s
        rf"'(?i:s|d|m|ll|re|ve)(?!{alnum})|(?!')(?:{q}(?i:ll|re|ve|s|d|m)|{q}[nN])",  # a curly one parts any word
        rf"{negation}(?!{alnum})|{alnum}+?(?<![nN])(?={negation}(?!{alnum}))",
        rf"(?i:y{q}(?=[aehiou])|(?-i:j){q}(?=[aehiou])|ol{q}(?!{alnum})|[dl]{q}(?!{letter}{{2}}|s))",
        rf"(?i:(?:{listed}|{letter}*[aeiouy]{q}(?!em)[aeiou]){letter}*)",  # ma'am, Hawai'i
        r"[A-Z]+(?:&[A-Z]+)+|[A-Z]{1,2}\$",
        rf"[-+]?\d*(?:[.,:]\d+)+{hyphens}|(?<!-)[-+]\d+",
        rf"{name}{hyphens}(?:/{name}{hyphens}){{0,2}}",
        rf"\#{letter}+|@[A-Za-z]\w*|&\#\d+;|\*+|\#+|_+|@+|[!?]{{2,}}|-+|<<|>>",
        rf"[][(){{}}~^+=|\\%$&<>/]|{symbol}",
    ]
    return re.compile("|".join(f"(?:{a})" for a in alternatives))
