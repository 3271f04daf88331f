"""The German of the embedded corpus against tables and a parser that know nothing of the generator."""

import re
from collections import Counter

import pytest

from flaxnmt.data.discourse import generate, lexicon
from flaxnmt.data.discourse.grammar import NounPhrase

MASCULINE = """Tisch Stuhl Koffer Regenschirm Hut Korb Teller Mantel Spiegel Teppich Ball Löffel Hund
Vogel Fuchs Esel Tiger Frosch Igel Wolf Bäcker Lehrer Schüler Gärtner Maler Jäger Koch Bürgermeister
Fischer König Mann Freund Bruder Sohn Onkel Vater Enkel Chef Direktor Arzt Anwalt Richter Minister
Professor Offizier Vermieter Garten Wald Keller Park Turm Laden Bahnhof Text Bericht Schläger Kranich
Kran Schlüssel Maulwurf Schnabel Bogen Herrscher Vorstand Rüssel Kofferraum Stern Star Fluss See Vampir
Teich Hafen Berg Einbrecher Computer Schiedsrichter Motor Boden Adler Pinguin Seemann Klempner Pfeil
Tischler Zoo Zirkus"""
FEMININE = """Lampe Uhr Tasche Flasche Tasse Kiste Vase Jacke Kerze Decke Puppe Gabel Katze Ente Ziege
Kuh Schlange Maus Schildkröte Gans Frau Großmutter Krankenschwester Prinzessin Schauspielerin Königin
Hexe Schwester Tochter Mutter Tante Nichte Vermieterin Gräfin Herzogin Küche Schule Stadt Kirche
Bibliothek Scheune Halle Geschichte Bank Fledermaus Robbe Feder Quelle Taste Nuss Schraubenmutter
Rechnung Pfeife Schleife Pflanze Fabrik Feile Datei Höhle Matratze Tür Tastatur Maschine Wiese Haut Jagd
Blume Industrie Werkstatt Firma Wirtschaft"""
NEUTER = """Buch Bild Radio Fahrrad Hemd Bett Glas Kleid Klavier Kissen Spielzeug Messer Kaninchen Huhn
Schaf Pferd Krokodil Schwein Lamm Kamel Mädchen Kind Haus Dorf Zimmer Museum Hotel Büro Schloss Gedicht
Lied Ufer Siegel Streichholz Spiel Muttermal Rohr Lineal Brett Meer Dokument Nest Eichhörnchen Restaurant
Geschenk Reich Internet Auto Teleskop Kino Theater"""
GENDER = {
    noun: gender
    for gender, nouns in (("m", MASCULINE), ("f", FEMININE), ("n", NEUTER))
    for noun in nouns.split()
}

# (gender, case): definite article, ending of ein-words, ending of dieser, adjective after der, after ein
DECLENSION = {
    ("m", "nom"): ("der", "", "er", "e", "er"),
    ("m", "acc"): ("den", "en", "en", "en", "en"),
    ("m", "dat"): ("dem", "em", "em", "en", "en"),
    ("f", "nom"): ("die", "e", "e", "e", "e"),
    ("f", "acc"): ("die", "e", "e", "e", "e"),
    ("f", "dat"): ("der", "er", "er", "en", "en"),
    ("n", "nom"): ("das", "", "es", "e", "es"),
    ("n", "acc"): ("das", "", "es", "e", "es"),
    ("n", "dat"): ("dem", "em", "em", "en", "en"),
}
STEMS = set(
    """alt klein groß schön seltsam berühmt neu rot blau weiß schwarz grün billig schwer schmutzig jung klug
    hungrig mutig wild traurig reich arm freundlich ruhig kalt warm kurz lang""".split()
)
# du and er of verbs that change their stem; the others follow the rule in `regular`.
IRREGULAR = {
    row.split()[0]: row.split(maxsplit=1)[1]
    for row in """sein bist ist, gefallen gefällst gefällt, helfen hilfst hilft, schlafen schläfst schläft,
    laufen läufst läuft, sehen siehst sieht, tragen trägst trägt, vergessen vergisst vergisst,
    waschen wäschst wäscht, geben gibst gibt, sprechen sprichst spricht, treffen triffst trifft,
    lesen liest liest, wissen weißt weiß, können kannst kann, müssen musst muss, dürfen darfst darf,
    sollen sollst soll, handeln handelst handelt, füttern fütterst füttert""".split(",")
}
TIMES = (
    "heute Abend|heute|jetzt|jeden Morgen|jeden Abend|jeden Tag|am Sonntag|am Montag|am Freitag|im Winter"
    "|im Sommer|nachts"
)
CASE_OF_PREPOSITION = {
    "in": "dat",
    "hinter": "dat",
    "neben": "dat",
    "bei": "dat",
    "von": "dat",
    "mit": "dat",
    "über": "acc",
}
CONTRACTED = {"im": "in dem", "am": "an dem", "vom": "von dem", "beim": "bei dem"}
DATIVE_VERBS = ("gehör", "gefall", "gefäll", "helf", "hilf", "dank")
TWO_OBJECT_VERBS = ("zeig", "geb", "gib", "bring")
NOUN_PHRASE = re.compile(
    r"(?:\b(?P<prep>in|hinter|neben|bei|von|mit|über) )?"
    r"\b(?P<article>der|die|das|den|dem|(?:dies|ein|sein|ihr)(?:e|en|em|er|es)?) "
    r"(?:(?P<adjective>[a-zäöüß]+) )?(?P<noun>[A-ZÄÖÜ][a-zäöüß]+)"
)


def regular(infinitive: str) -> str:
    stem = infinitive.removesuffix("en")
    if stem.endswith(("d", "t", "chn")):
        return f"{stem}est {stem}et"
    return f"{stem}{'t' if stem.endswith(('ß', 'z', 's')) else 'st'} {stem}t"


def all_verbs() -> list[lexicon.Verb]:
    contacts = (*lexicon.ADDRESSING, *lexicon.TELLING, lexicon.IS_ABOUT)
    verbs = [f.verb for f in lexicon.FRAMES] + [c.verb for c in contacts]
    return [*verbs, *lexicon.MODALS, *lexicon.MATRIX_VERBS]


VERBS = {
    infinitive: IRREGULAR.get(infinitive) or regular(infinitive)
    for infinitive in (verb.infinitive for verb in all_verbs())
}
FINITE = {
    "du": {forms.split()[0] for forms in VERBS.values()},
    "er": {forms.split()[1] for forms in VERBS.values()},
    "plural": {"sind" if infinitive == "sein" else infinitive for infinitive in VERBS},
}
SUBJECT_PERSON = {"du": "du", "er": "er", "sie": "er", "es": "er", "wir": "plural", "Sie": "plural"}


def expand(sentence: str) -> str:
    """Without capital at the start, times replaced by ZEIT, contractions undone."""
    text = sentence[0].lower() + sentence[1:-1]
    text = re.sub(rf"\b({TIMES})\b", "ZEIT", text)
    return re.sub(r"\b(im|am|vom|beim)\b", lambda m: CONTRACTED[m[0]], text)


def clauses(sentence: str) -> list[tuple[str, bool]]:
    """Clauses with whether they are subordinate."""
    main, *rest = expand(sentence).split(", dass ")
    return [(main, False), *((clause, True) for clause in rest)]


def fragment(match: re.Match) -> str:
    return match[0].removeprefix(f"{match['prep']} ") if match["prep"] else match[0]


def parse(clause: str, subordinate: bool, formal: bool) -> tuple[list[NounPhrase], str, str]:
    """Noun phrases with the case that position, preposition and verb give them; person; finite verb.

    Fails where word order or agreement is not that of a German clause.
    """
    words = clause.split()
    verbs = {word for forms in FINITE.values() for word in forms}
    inverted = words[0] == "ZEIT" or (not subordinate and words[0] in verbs)
    rest = words[words.index("ZEIT") + 1 :] if words[0] == "ZEIT" else words
    if inverted:
        finite, rest = rest[0], rest[1:]
        assert finite in verbs, f"no verb in second place: {clause}"
    phrases = list(NOUN_PHRASE.finditer(clause))
    if rest[0] in SUBJECT_PERSON or (formal and rest[0] == "sie"):
        person = "plural" if formal and rest[0] in ("sie", "Sie") else SUBJECT_PERSON[rest[0]]
        size, subject = 1, None
    else:
        assert phrases and " ".join(rest).startswith(phrases[0][0]), f"no subject: {clause}"
        person, subject = "er", phrases[0]
        size = len(subject[0].split())
    if subordinate:
        finite = words[-1]
    elif not inverted:
        finite = rest[size]
    assert finite in FINITE[person], f"{finite} does not agree in: {clause}"
    modal = any(finite in (VERBS[m.infinitive] + " " + m.infinitive).split() for m in lexicon.MODALS)
    if modal:
        main = words[-2] if subordinate else words[-1]
        assert main in VERBS, f"no infinitive at the end: {clause}"
    else:
        main = finite

    cases = []
    bare = [p for p in phrases if p["prep"] is None and p is not subject]
    for phrase in phrases:
        if phrase["prep"]:
            case = CASE_OF_PREPOSITION[phrase["prep"]]
        elif phrase is subject:
            case = "nom"
        elif main.startswith(DATIVE_VERBS) or (main.startswith(TWO_OBJECT_VERBS) and phrase is bare[0]):
            case = "dat"
        else:
            case = "acc"
        cases.append(NounPhrase(fragment(phrase), case, GENDER[phrase["noun"]]))
    return cases, person, main


def expected_text(phrase: NounPhrase) -> str:
    """What the declension table says for the stems of a noun phrase."""
    article, *adjective, noun = phrase.text.split()
    definite, ein, dieser, weak, mixed = DECLENSION[phrase.gender, phrase.case]
    kind = re.match(r"dies|ein|sein|ihr|", article)[0]
    if kind == "dies":
        article, ending = kind + dieser, weak
    elif kind:
        article, ending = kind + ein, mixed
    else:
        article, ending = definite, weak
    stems = [max((stem for stem in STEMS if word.startswith(stem)), key=len) + ending for word in adjective]
    return " ".join((article, *stems, noun))


@pytest.fixture(scope="module")
def sentences():
    """(German sentence, its annotated noun phrases, whether its "you" is formal)."""
    rows = []
    for split in ("train", "test"):
        for made in generate(split, 800, seed=11):
            addresses = [a for a in made.annotations if a.phenomenon == "address"]
            formal = {a.sentence for a in addresses if "Sie" in a.target_words}
            for i, (sentence, phrases) in enumerate(zip(made.document, made.noun_phrases, strict=True)):
                rows.append((sentence.target, phrases, i in formal))
    return rows


def test_every_noun_phrase_follows_the_declension_table(sentences):
    for target, annotated, formal in sentences:
        found = [phrase for clause in clauses(target) for phrase in parse(*clause, formal)[0]]
        for phrase in found:
            assert phrase.text == expected_text(phrase), target
        capital = [NounPhrase(p.text[0].lower() + p.text[1:], *p[1:]) for p in annotated]
        assert sorted(found) == sorted(capital), target


def test_the_corpus_uses_the_whole_table(sentences):
    seen = Counter()
    for _, phrases, _ in sentences:
        for phrase in phrases:
            article = re.match(r"dies|ein|sein|ihr|", phrase.text)[0] or "der"
            seen[phrase.gender, phrase.case, article, len(phrase.text.split()) > 2] += 1
    for gender, case in DECLENSION:
        for adjective in (False, True):
            assert seen[gender, case, "der", adjective] >= 20
            if case != "dat":
                assert seen[gender, case, "ein", adjective] >= 20


def test_the_table_notices_a_wrong_ending(sentences):
    wrong = NounPhrase("der alten Hund", "nom", "m")
    assert expected_text(wrong) == "der alte Hund"
    with pytest.raises(AssertionError):
        parse("der Hund heute schläft im Garten", False, False)


def test_every_noun_has_its_gender():
    nouns = [sense.noun for senses in lexicon.AMBIGUOUS for sense in senses]
    nouns += [cue for senses in lexicon.AMBIGUOUS for sense in senses for cue in sense.cues if not cue.mass]
    for group in (lexicon.ANTECEDENTS["t"], lexicon.ANTECEDENTS["a"], lexicon.PERSONS):
        nouns += [noun for gender in group.values() for noun in gender]
    nouns += [*lexicon.FAMILIAR, *lexicon.FORMAL, *lexicon.PLACES, *lexicon.TEXTS]
    assert {noun.german: noun.gender for noun in nouns} == GENDER
    antecedents = [n for kind in lexicon.ANTECEDENTS.values() for nouns in kind.values() for n in nouns]
    assert len(antecedents) >= 60 and len(lexicon.AMBIGUOUS) >= 12


@pytest.mark.parametrize("verb", all_verbs(), ids=lambda verb: verb.infinitive)
def test_verbs_are_conjugated(verb):
    assert f"{verb.du} {verb.er}" == VERBS[verb.infinitive]
    assert verb.plural == ("sind" if verb.infinitive == "sein" else verb.infinitive)


def test_every_ambiguous_word_has_its_form(sentences):
    persons = Counter(parse(*clauses(target)[-1], formal)[1] for target, _, formal in sentences)
    assert min(persons["du"], persons["plural"], persons["er"]) >= 200
