"""The words of the embedded corpus: one German word for every English one, but for the ambiguous nouns.

Nouns with an irregular declension (der Junge, der Name) and separable verbs are left out, so that the
tables in `grammar` cover everything. Lists of antecedents are parallel over the genders: entry i of
each gender of a kind forms a trio (der Tisch, die Lampe, das Buch) that any "it" sentence accepts.
"""

from typing import Literal, NamedTuple

Gender = Literal["m", "f", "n"]
GENDERS: tuple[Gender, ...] = ("m", "f", "n")


class Noun(NamedTuple):
    english: str
    german: str
    gender: Gender
    mass: bool = False
    """Used without an article."""


class Adjective(NamedTuple):
    english: str
    german: str
    """The stem, to which endings are added; also the predicative form."""


class Adverbial(NamedTuple):
    english: str
    german: str


class Verb(NamedTuple):
    base: str
    third: str
    infinitive: str
    du: str
    er: str
    present: str
    """English form after you and we."""
    plural: str
    """German form after wir and Sie."""


class Frame(NamedTuple):
    """A verb and the kinds of nouns that it goes with: p person, t thing, a animal, w ambiguous."""

    verb: Verb
    subjects: str
    objects: str
    recipient: str | None
    """English preposition of the dative person ("" for none); None where the verb takes no dative."""
    place: Literal["never", "maybe", "always"]
    stative: bool
    """Goes with no adverb of frequency or time."""


class Sense(NamedTuple):
    noun: Noun
    cues: tuple[Noun, ...]


def _nouns(gender: Gender, pairs: str) -> tuple[Noun, ...]:
    return tuple(Noun(*pair.split(), gender) for pair in pairs.split(","))


def _adjectives(pairs: str) -> tuple[Adjective, ...]:
    return tuple(Adjective(*pair.split()) for pair in pairs.split(","))


def _adverbials(pairs: str) -> tuple[Adverbial, ...]:
    return tuple(Adverbial(*(side.strip() for side in pair.split("="))) for pair in pairs.split(","))


def verb(forms: str) -> Verb:
    """A verb from "base third infinitive du er", with "_" for spaces inside an English form."""
    base, third, *german = forms.split()
    infinitive, du, er = german
    base, third = base.replace("_", " "), third.replace("_", " ")
    if infinitive == "sein":
        return Verb(base, third, infinitive, du, er, "are", "sind")
    return Verb(base, third, infinitive, du, er, base, infinitive)


def _frames(table: str) -> tuple[Frame, ...]:
    frames = []
    for line in table.strip().splitlines():
        forms, subjects, objects, recipient, place, kind = (cell.strip() for cell in line.split("|"))
        dative = None if recipient == "-" else recipient
        frames.append(Frame(verb(forms), subjects, objects, dative, place, kind == "stative"))
    return tuple(frames)


ANTECEDENTS: dict[str, dict[Gender, tuple[Noun, ...]]] = {
    "t": {
        "m": _nouns(
            "m",
            "table Tisch,chair Stuhl,suitcase Koffer,umbrella Regenschirm,hat Hut,basket Korb,"
            "plate Teller,coat Mantel,mirror Spiegel,carpet Teppich,ball Ball,spoon Löffel",
        ),
        "f": _nouns(
            "f",
            "lamp Lampe,clock Uhr,bag Tasche,bottle Flasche,cup Tasse,box Kiste,"
            "vase Vase,jacket Jacke,candle Kerze,blanket Decke,doll Puppe,fork Gabel",
        ),
        "n": _nouns(
            "n",
            "book Buch,picture Bild,radio Radio,bicycle Fahrrad,shirt Hemd,bed Bett,"
            "glass Glas,dress Kleid,piano Klavier,pillow Kissen,toy Spielzeug,knife Messer",
        ),
    },
    "a": {
        "m": _nouns(
            "m", "dog Hund,bird Vogel,fox Fuchs,donkey Esel,tiger Tiger,frog Frosch,hedgehog Igel,wolf Wolf"
        ),
        "f": _nouns(
            "f",
            "cat Katze,duck Ente,goat Ziege,cow Kuh,snake Schlange,mouse Maus,turtle Schildkröte,goose Gans",
        ),
        "n": _nouns(
            "n",
            "rabbit Kaninchen,chicken Huhn,sheep Schaf,horse Pferd,crocodile Krokodil,"
            "pig Schwein,lamb Lamm,camel Kamel",
        ),
    },
}

PERSONS = {
    "m": _nouns(
        "m",
        "baker Bäcker,teacher Lehrer,pupil Schüler,gardener Gärtner,painter Maler,hunter Jäger,"
        "cook Koch,mayor Bürgermeister,fisherman Fischer,king König,man Mann",
    ),
    "f": _nouns(
        "f",
        "woman Frau,grandmother Großmutter,nurse Krankenschwester,princess Prinzessin,"
        "actress Schauspielerin,queen Königin,witch Hexe",
    ),
    "n": _nouns("n", "girl Mädchen"),
}

FAMILIAR = (  # addressed with du
    *_nouns("m", "friend Freund,brother Bruder,son Sohn,uncle Onkel,father Vater,grandson Enkel"),
    *_nouns("f", "sister Schwester,daughter Tochter,mother Mutter,aunt Tante,niece Nichte"),
    *_nouns("n", "child Kind"),
)
FORMAL = (  # addressed with Sie
    *_nouns(
        "m",
        "boss Chef,director Direktor,doctor Arzt,lawyer Anwalt,judge Richter,minister Minister,"
        "professor Professor,officer Offizier,landlord Vermieter",
    ),
    *_nouns("f", "landlady Vermieterin,countess Gräfin,duchess Herzogin"),
)
PERSONAL_SERVICE = frozenset(("boss", "doctor", "lawyer", "professor", "landlord", "landlady"))
"""Formal addressees that also take a possessive: her lawyer, but not her minister."""

PLACES = (
    *_nouns("m", "garden Garten,forest Wald,cellar Keller,park Park,tower Turm,shop Laden,station Bahnhof"),
    *_nouns(
        "f", "kitchen Küche,school Schule,city Stadt,church Kirche,library Bibliothek,barn Scheune,hall Halle"
    ),
    *_nouns("n", "house Haus,village Dorf,room Zimmer,museum Museum,hotel Hotel,office Büro,castle Schloss"),
)
PLACE_PREPOSITIONS = (Adverbial("in", "in"),) * 3 + _adverbials("behind = hinter,beside = neben,near = bei")
TEXTS = (
    *_nouns("f", "story Geschichte"),
    *_nouns("n", "poem Gedicht,song Lied"),
    *_nouns("m", "text Text,report Bericht"),
)

_GENERAL = "old alt,small klein,big groß,beautiful schön,strange seltsam,famous berühmt"
ADJECTIVES = {
    "t": _adjectives(
        _GENERAL + ",new neu,red rot,blue blau,white weiß,black schwarz,green grün,cheap billig,"
        "heavy schwer,dirty schmutzig"
    ),
    "a": _adjectives(
        _GENERAL + ",young jung,clever klug,hungry hungrig,brave mutig,wild wild,white weiß,"
        "black schwarz,sad traurig"
    ),
    "p": _adjectives(
        _GENERAL + ",young jung,clever klug,hungry hungrig,brave mutig,sad traurig,rich reich,"
        "poor arm,friendly freundlich"
    ),
    "w": _adjectives(_GENERAL + ",new neu"),
    "place": _adjectives(_GENERAL + ",new neu,quiet ruhig,cold kalt,warm warm,dirty schmutzig"),
    "text": _adjectives(_GENERAL + ",new neu,sad traurig,short kurz,long lang"),
    "addressee": _adjectives(
        "old alt,young jung,clever klug,sad traurig,rich reich,poor arm,friendly freundlich,famous berühmt"
    ),
}

TIMES = _adverbials(
    "today = heute,now = jetzt,tonight = heute Abend,every morning = jeden Morgen,"
    "every evening = jeden Abend,every day = jeden Tag,on Sunday = am Sonntag,on Monday = am Montag,"
    "on Friday = am Freitag,in winter = im Winter,in summer = im Sommer,at night = nachts"
)
FREQUENCIES = _adverbials(
    "often = oft,always = immer,never = nie,rarely = selten,sometimes = manchmal,usually = meistens"
)
OPINIONS = _adverbials(
    "probably = wahrscheinlich,certainly = bestimmt,still = noch,perhaps = vielleicht,"
    "apparently = anscheinend"
)
DEGREES = _adverbials("very = sehr,quite = ziemlich,too = zu,not = nicht")

MODALS = tuple(
    map(
        verb,
        (
            "can can können kannst kann",
            "must must müssen musst muss",
            "may may dürfen darfst darf",
            "should should sollen sollst soll",
        ),
    )
)
MATRIX_VERBS = tuple(
    map(
        verb,
        (
            "know knows wissen weißt weiß",
            "believe believes glauben glaubst glaubt",
            "hear hears hören hörst hört",
            "hope hopes hoffen hoffst hofft",
            "say says sagen sagst sagt",
        ),
    )
)
BE = "sein"

FRAMES = _frames("""
be is sein bist ist                             | t a w p |     | -  | never  | stative
lie lies liegen liegst liegt                    | t a     |     | -  | always | -
stay stays bleiben bleibst bleibt               | t a p   |     | -  | always | -
disappear disappears verschwinden verschwindest verschwindet | t a |  | -  | maybe  | -
belong belongs gehören gehörst gehört           | t a     |     | to | never  | stative
please pleases gefallen gefällst gefällt        | t a w   |     |    | never  | stative
help helps helfen hilfst hilft                  | t a p   |     |    | maybe  | -
surprise surprises überraschen überraschst überrascht | t a w p | p | - | maybe | -
disturb disturbs stören störst stört            | t a p   | p   | -  | maybe  | -
sleep sleeps schlafen schläfst schläft          | a p     |     | -  | always | -
wait waits warten wartest wartet                | a p     |     | -  | always | -
run runs laufen läufst läuft                    | a       |     | -  | maybe  | -
jump jumps springen springst springt            | a       |     | -  | maybe  | -
play plays spielen spielst spielt               | a p     |     | -  | always | -
sit sits sitzen sitzt sitzt                     | a p     |     | -  | always | -
work works arbeiten arbeitest arbeitet          | p       |     | -  | always | -
sing sings singen singst singt                  | p       |     | -  | always | -
see sees sehen siehst sieht                     | p       | t a w | -  | maybe | -
find finds finden findest findet                | p       | t a w | -  | maybe | -
buy buys kaufen kaufst kauft                    | p       | t a | -  | maybe  | -
sell sells verkaufen verkaufst verkauft         | p       | t a | -  | maybe  | -
look_for looks_for suchen suchst sucht          | p       | t a w | -  | maybe | -
need needs brauchen brauchst braucht            | p       | t a w | -  | maybe | -
love loves lieben liebst liebt                  | p       | t a w | -  | never | stative
carry carries tragen trägst trägt               | p       | t a | -  | maybe  | -
hide hides verstecken versteckst versteckt      | p       | t a | -  | maybe  | -
clean cleans putzen putzt putzt                 | p       | t   | -  | maybe  | -
repair repairs reparieren reparierst repariert  | p       | t   | -  | maybe  | -
forget forgets vergessen vergisst vergisst      | p       | t w | -  | maybe  | -
wash washes waschen wäschst wäscht              | p       | a   | -  | maybe  | -
feed feeds füttern fütterst füttert             | p       | a   | -  | maybe  | -
draw draws zeichnen zeichnest zeichnet          | p       | t a w | -  | maybe | -
paint paints malen malst malt                   | p       | t a w | -  | maybe | -
describe describes beschreiben beschreibst beschreibt | p | t a w | -  | maybe | -
photograph photographs fotografieren fotografierst fotografiert | p | t a w | - | maybe | -
show shows zeigen zeigst zeigt                  | p       | t a w | to | never | -
give gives geben gibst gibt                     | p       | t a | to | never  | -
bring brings bringen bringst bringt             | p       | t a | to | never  | -
""")


class Contact(NamedTuple):
    """A verb between a person and an addressee or theme, with the case (and preposition) that it governs."""

    verb: Verb
    german: str
    """Preposition, or "" for a bare object."""
    case: Literal["acc", "dat"]


ADDRESSING = (
    Contact(verb("talk_to talks_to sprechen sprichst spricht"), "mit", "dat"),
    Contact(verb("greet greets grüßen grüßt grüßt"), "", "acc"),
    Contact(verb("visit visits besuchen besuchst besucht"), "", "acc"),
    Contact(verb("meet meets treffen triffst trifft"), "", "acc"),
    Contact(verb("ask asks fragen fragst fragt"), "", "acc"),
    Contact(verb("thank thanks danken dankst dankt"), "", "dat"),
)
TELLING = (
    Contact(verb("talk_about talks_about sprechen sprichst spricht"), "über", "acc"),
    Contact(verb("write_about writes_about schreiben schreibst schreibt"), "über", "acc"),
    Contact(verb("read_about reads_about lesen liest liest"), "über", "acc"),
    Contact(verb("dream_about dreams_about träumen träumst träumt"), "von", "dat"),
)
IS_ABOUT = Contact(verb("be_about is_about handeln handelst handelt"), "von", "dat")


def _sense(noun: str, *cues: str) -> Sense:
    """From "die Bank" and cues such as "river der Fluss" or, without an article, "money das Geld -"."""
    gender = {"der": "m", "die": "f", "das": "n"}
    article, german = noun.split()
    parsed = []
    for cue in cues:
        english, cue_article, cue_german, *mass = cue.split()
        parsed.append(Noun(english, cue_german, gender[cue_article], bool(mass)))
    return Sense(Noun("", german, gender[article]), tuple(parsed))


def _ambiguous(english: str, *senses: Sense) -> tuple[Sense, ...]:
    return tuple(sense._replace(noun=sense.noun._replace(english=english)) for sense in senses)


AMBIGUOUS = (
    _ambiguous(
        "bank",
        _sense("die Bank", "money das Geld -", "gold das Gold -"),
        _sense("das Ufer", "river der Fluss", "lake der See"),
    ),
    _ambiguous(
        "bat",
        _sense("die Fledermaus", "cave die Höhle", "vampire der Vampir"),
        _sense("der Schläger", "baseball der Baseball -", "tennis das Tennis -"),
    ),
    _ambiguous(
        "seal",
        _sense("die Robbe", "sea das Meer", "ice das Eis -"),
        _sense("das Siegel", "document das Dokument", "wax das Wachs -"),
    ),
    _ambiguous(
        "crane",
        _sense("der Kranich", "pond der Teich", "nest das Nest"),
        _sense("der Kran", "harbour der Hafen", "concrete der Beton -"),
    ),
    _ambiguous(
        "spring",
        _sense("die Feder", "mattress die Matratze", "mechanics die Mechanik -"),
        _sense("die Quelle", "mountain der Berg", "water das Wasser -"),
    ),
    _ambiguous(
        "key",
        _sense("der Schlüssel", "door die Tür", "burglar der Einbrecher"),
        _sense("die Taste", "computer der Computer", "keyboard die Tastatur"),
    ),
    _ambiguous(
        "match",
        _sense("das Streichholz", "fire das Feuer -", "smoke der Rauch -"),
        _sense("das Spiel", "football der Fußball -", "referee der Schiedsrichter"),
    ),
    _ambiguous(
        "nut",
        _sense("die Nuss", "chocolate die Schokolade -", "squirrel das Eichhörnchen"),
        _sense("die Schraubenmutter", "machine die Maschine", "engine der Motor"),
    ),
    _ambiguous(
        "mole",
        _sense("der Maulwurf", "meadow die Wiese", "soil der Boden"),
        _sense("das Muttermal", "skin die Haut", "beauty die Schönheit -"),
    ),
    _ambiguous(
        "bill",
        _sense("die Rechnung", "restaurant das Restaurant", "electricity der Strom -"),
        _sense("der Schnabel", "eagle der Adler", "penguin der Pinguin"),
    ),
    _ambiguous(
        "pipe",
        _sense("die Pfeife", "tobacco der Tabak -", "sailor der Seemann"),
        _sense("das Rohr", "gas das Gas -", "plumber der Klempner"),
    ),
    _ambiguous(
        "bow",
        _sense("der Bogen", "arrow der Pfeil", "hunt die Jagd"),
        _sense("die Schleife", "gift das Geschenk", "fashion die Mode -"),
    ),
    _ambiguous(
        "plant",
        _sense("die Pflanze", "flower die Blume", "botany die Botanik -"),
        _sense("die Fabrik", "industry die Industrie", "steel der Stahl -"),
    ),
    _ambiguous(
        "ruler",
        _sense("das Lineal", "geometry die Geometrie -", "mathematics die Mathematik -"),
        _sense("der Herrscher", "empire das Reich", "politics die Politik -"),
    ),
    _ambiguous(
        "file",
        _sense("die Feile", "workshop die Werkstatt", "metal das Metall -"),
        _sense("die Datei", "internet das Internet", "software die Software -"),
    ),
    _ambiguous(
        "board",
        _sense("das Brett", "wood das Holz -", "carpenter der Tischler"),
        _sense("der Vorstand", "company die Firma", "economy die Wirtschaft"),
    ),
    _ambiguous(
        "trunk",
        _sense("der Rüssel", "zoo der Zoo", "circus der Zirkus"),
        _sense("der Kofferraum", "car das Auto", "traffic der Verkehr -"),
    ),
    _ambiguous(
        "star",
        _sense("der Stern", "telescope das Teleskop", "astronomy die Astronomie -"),
        _sense("der Star", "cinema das Kino", "theatre das Theater"),
    ),
)
