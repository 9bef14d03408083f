"""The words of the embedded English-French task, as tables. One line is one lemma with all forms the grammar uses.

English and French columns are parted by `|`. Everything is lower case; the grammar in `english_french.py` does
elision and contraction, so forms stand here as they are before a consonant.
"""

from dataclasses import dataclass
from functools import cache


def _rows(table):
    return [[side.split() for side in line.split("|")] for line in table.strip().splitlines()]


# ---------------------------------------------------------------------------------------------------------- nouns
# one, several | one, several, gender | kind

@dataclass(frozen=True, eq=False)
class Noun:
    """English and French singular and plural, French gender ("m" or "f"), and what kind of thing it names."""

    english: tuple[str, str]
    french: tuple[str, str]
    gender: str
    kind: str


_NOUNS = """
    man men               | homme hommes m            | person
    woman women           | femme femmes f            | person
    child children        | enfant enfants m          | person
    girl girls            | fille filles f            | person
    boy boys              | garçon garçons m          | person
    friend friends        | ami amis m                | person
    queen queens          | reine reines f            | person
    king kings            | roi rois m                | person
    teacher teachers      | professeur professeurs m  | person
    nurse nurses          | infirmière infirmières f  | person
    doctor doctors        | médecin médecins m        | person
    neighbour neighbours  | voisin voisins m          | person
    actress actresses     | actrice actrices f        | person
    student students      | étudiant étudiants m      | person
    princess princesses   | princesse princesses f    | person
    farmer farmers        | fermier fermiers m        | person
    aunt aunts            | tante tantes f            | person
    uncle uncles          | oncle oncles m            | person
    lady ladies           | dame dames f              | person
    soldier soldiers      | soldat soldats m          | person
    witch witches         | sorcière sorcières f      | person
    baker bakers          | boulanger boulangers m    | person
    dog dogs              | chien chiens m            | animal
    cat cats              | chat chats m              | animal
    horse horses          | cheval chevaux m          | animal
    bird birds            | oiseau oiseaux m          | animal
    cow cows              | vache vaches f            | animal
    mouse mice            | souris souris f           | animal
    wolf wolves           | loup loups m              | animal
    bear bears            | ours ours m               | animal
    owl owls              | hibou hiboux m            | animal
    goat goats            | chèvre chèvres f          | animal
    apple apples          | pomme pommes f            | food
    cake cakes            | gâteau gâteaux m          | food
    egg eggs              | œuf œufs m                | food
    pear pears            | poire poires f            | food
    book books            | livre livres m            | text
    letter letters        | lettre lettres f          | text
    story stories         | histoire histoires f      | text
    newspaper newspapers  | journal journaux m        | text
    key keys              | clé clés f                | thing
    flower flowers        | fleur fleurs f            | thing
    hat hats              | chapeau chapeaux m        | thing
    coat coats            | manteau manteaux m        | thing
    dress dresses         | robe robes f              | thing
    bag bags              | sac sacs m                | thing
    box boxes             | boîte boîtes f            | thing
    bottle bottles        | bouteille bouteilles f    | thing
    knife knives          | couteau couteaux m        | thing
    lamp lamps            | lampe lampes f            | thing
    clock clocks          | horloge horloges f        | thing
    umbrella umbrellas    | parapluie parapluies m    | thing
    gift gifts            | cadeau cadeaux m          | thing
    ring rings            | bague bagues f            | thing
    axe axes              | hache haches f            | thing
    plate plates          | assiette assiettes f      | thing
    car cars              | voiture voitures f        | thing
    bicycle bicycles      | vélo vélos m              | thing
    table tables          | table tables f            | furniture
    chair chairs          | chaise chaises f          | furniture
    bed beds              | lit lits m                | furniture
    garden gardens        | jardin jardins m          | area
    village villages      | village villages m        | area
    city cities           | ville villes f            | area
    forest forests        | forêt forêts f            | area
    house houses          | maison maisons f          | area
    school schools        | école écoles f            | site
    market markets        | marché marchés m          | site
    church churches       | église églises f          | site
    castle castles        | château châteaux m        | site
    hotel hotels          | hôtel hôtels m            | site
    library libraries     | bibliothèque bibliothèques f | site
    museum museums        | musée musées m            | site
    station stations      | gare gares f              | site
    beach beaches         | plage plages f            | top
    island islands        | île îles f                | top
    bridge bridges        | pont ponts m              | top
    hill hills            | colline collines f        | top
"""
NOUNS = [Noun(tuple(english), tuple(french[:2]), french[2], kind) for english, french, (kind,) in _rows(_NOUNS)]
PLACES = ("area", "site", "top")


@cache
def nouns_of(*kinds):
    return [noun for noun in NOUNS if noun.kind in kinds]



# name | gender: the same in both languages
NAMES = {name: gender for (name,), (gender,) in _rows("""
    paul    | m
    marie   | f
    anne    | f
    louis   | m
    alice   | f
    pierre  | m
    julie   | f
    antoine | m
""")}

# French words with an h that nothing is elided before: le hibou, la hache.
ASPIRATED = ("hibou", "hiboux", "hache", "haches")


# ----------------------------------------------------------------------------------------------------- adjectives
# English | one m, one f, several m, several f (and one m before a vowel) | place | kinds of nouns

@dataclass(frozen=True, eq=False)
class Adjective:
    """French forms: masculine, feminine, masculine plural, feminine plural, masculine before a vowel."""

    english: str
    french: tuple[str, str, str, str, str]
    before: bool
    kinds: tuple[str, ...]


_ADJECTIVES = """
    small       | petit petite petits petites                    | before | all
    big         | grand grande grands grandes                    | before | all
    beautiful   | beau belle beaux belles bel                    | before | all
    old         | vieux vieille vieux vieilles vieil             | before | all
    new         | nouveau nouvelle nouveaux nouvelles nouvel     | before | all
    good        | bon bonne bons bonnes                          | before | person food text site
    young       | jeune jeune jeunes jeunes                      | before | person animal
    red         | rouge rouge rouges rouges                      | after  | animal food thing furniture site
    black       | noir noire noirs noires                        | after  | animal thing furniture site
    white       | blanc blanche blancs blanches                  | after  | animal thing furniture site
    green       | vert verte verts vertes                        | after  | animal food thing furniture site
    blue        | bleu bleue bleus bleues                        | after  | animal food thing furniture site
    expensive   | cher chère chers chères                        | after  | animal food text thing furniture site
    clean       | propre propre propres propres                  | after  | animal thing furniture area site top
    quiet       | calme calme calmes calmes                      | after  | animal area site top
    famous      | célèbre célèbre célèbres célèbres              | after  | person site text
    strange     | étrange étrange étranges étranges              | after  | person animal text site top
    happy       | heureux heureuse heureux heureuses             | after  | person animal
    sad         | triste triste tristes tristes                  | after  | person animal text
    tired       | fatigué fatiguée fatigués fatiguées            | after  | person animal
    rich        | riche riche riches riches                      | after  | person area
    intelligent | intelligent intelligente intelligents intelligentes | after | person animal
    dangerous   | dangereux dangereuse dangereux dangereuses     | after  | person animal thing area top
"""
_ALL = ("person", "animal", "food", "text", "thing", "furniture", "area", "site", "top")
ADJECTIVES = [
    Adjective(english, tuple((french + french[:1])[:5]), place == "before", _ALL if kinds == ["all"] else tuple(kinds))
    for (english,), french, (place,), kinds in _rows(_ADJECTIVES)
]


@cache
def adjectives_of(kind):
    """Those that go with a kind of noun: before the French noun, behind it."""
    fitting = [adjective for adjective in ADJECTIVES if kind in adjective.kinds]
    return [a for a in fitting if a.before], [a for a in fitting if not a.before]


# ---------------------------------------------------------------------------------------------------------- verbs
# English: base, with -s, past (- none), particle | French: infinitive, il, ils, participle | kinds of objects
#
# `i` and `we` take the helpers below, the past (j'ai vu) and, `i` alone, the regular verbs in -er, whose je is their
# il. The fifty other forms (je vois, nous voyons) would be too rare here to be learnt.

@dataclass(frozen=True, eq=False)
class Verb:
    """English base, third person, past, particle ("" if none); French infinitive, finite forms, participle; objects.

    french: {(person, plural): form}.
    """

    english: tuple[str, str, str, str]
    infinitive: str
    french: dict
    participle: str
    objects: tuple[str, ...]


def _verbs(table):
    verbs = []
    for english, (infinitive, *persons, participle), objects in _rows(table):
        if len(persons) == 4:
            keys = [(1, False), (3, False), (1, True), (3, True)]
        else:
            keys = [(3, False), (3, True)]
            if infinitive.endswith("er") and infinitive != "aller":
                keys, persons = [(1, False), *keys], [persons[0], *persons]
        verbs.append(Verb(tuple((english + [""])[:4]), infinitive, dict(zip(keys, persons)), participle, tuple(objects)))
    return verbs


INTRANSITIVE = _verbs("""
    sleep sleeps slept   | dormir dort dorment dormi                  |
    work works worked    | travailler travaille travaillent travaillé |
    sing sings sang      | chanter chante chantent chanté             |
    dance dances danced  | danser danse dansent dansé                 |
    laugh laughs laughed | rire rit rient ri                          |
    run runs ran         | courir court courent couru                 |
    swim swims swam      | nager nage nagent nagé                     |
""")
TRANSITIVE = _verbs("""
    see sees saw            | voir voit voient vu                | person animal thing area
    like likes liked        | aimer aime aiment aimé             | person animal text area site
    eat eats ate            | manger mange mangent mangé         | food
    find finds found        | trouver trouve trouvent trouvé     | animal thing text
    look looks looked at    | regarder regarde regardent regardé | animal thing furniture
    look looks looked for   | chercher cherche cherchent cherché | person animal thing text
    wait waits waited for   | attendre attend attendent attendu  | person
    buy buys bought         | acheter achète achètent acheté     | food thing furniture
    write writes wrote      | écrire écrit écrivent écrit        | text
    take takes took         | prendre prend prennent pris        | food thing text
    lose loses lost         | perdre perd perdent perdu          | thing text
    hear hears heard        | entendre entend entendent entendu  | person animal
    follow follows followed | suivre suit suivent suivi          | person animal
    help helps helped       | aider aide aident aidé             | person
    carry carries carried   | porter porte portent porté         | thing furniture
    hide hides hid          | cacher cache cachent caché         | thing food text
    visit visits visited    | visiter visite visitent visité     | area site top
    invite invites invited  | inviter invite invitent invité     | person
    choose chooses chose    | choisir choisit choisissent choisi | thing food text furniture
    forget forgets forgot   | oublier oublie oublient oublié     | thing text
""")
# Helpers, with all persons: infinitive, je, il, nous, ils, participle.
STATIVE = _verbs("""
    have has -             | avoir ai a avons ont eu                                     | animal thing furniture text
    want wants -           | vouloir veux veut voulons veulent voulu                     | animal thing furniture food
""")
HAVE = STATIVE[0]
DITRANSITIVE = _verbs("""
    give gives gave      | donner donne donnent donné         | thing food text
    show shows showed    | montrer montre montrent montré     | thing text furniture
    send sends sent      | envoyer envoie envoient envoyé     | thing text
    bring brings brought | apporter apporte apportent apporté | thing food text
    sell sells sold      | vendre vend vendent vendu          | thing food furniture
""")
ADDRESSING = _verbs("""
    speak speaks spoke to | parler parle parlent parlé | person
""")
# Verbs that take a place with one preposition. The past of `aller` and `venir` needs `être`, so they have none here.
PLACED = _verbs("""
    go goes - to        | aller va vont allé             | area site top
    come comes - from   | venir vient viennent venu      | area site top
    live lives lived in | habiter habite habitent habité | area
""")
REPORTING = _verbs("""
    say says said             | dire dit disent dit        |
    think thinks thought      | penser pense pensent pensé |
    know knows knew           | savoir sait savent su      |
    believe believes believed | croire croit croient cru   |
""")
(BE,) = _verbs("""
    be is -                | être suis est sommes sont été                               |
""")
# Before an infinitive: `going` stands between a form of `be` and `to`.
MODALS = _verbs("""
    can can -              | pouvoir peux peut pouvons peuvent pu                        |
    must must -            | devoir dois doit devons doivent dû                          |
    want wants - to        | vouloir veux veut voulons veulent voulu                     |
    going going - to       | aller vais va allons vont allé                              |
""")


# What an animal may do to things and to others.
_ANIMALS_CAN = "voir aimer manger trouver regarder chercher attendre entendre suivre cacher"
ANIMAL_VERBS = [verb for verb in TRANSITIVE if verb.infinitive in _ANIMALS_CAN.split()]


# ------------------------------------------------------------------------------------------------- the small words

FREQUENCY = {"often": "souvent", "always": "toujours", "sometimes": "parfois", "also": "aussi"}
AFTER_NOT = ("often", "always")
MANNER = {"slowly": "lentement", "quickly": "rapidement", "here": "ici", "outside": "dehors"}
OPENINGS = {  # at the start of a sentence, before a comma; by the time of the verb
    "present": {"today": "aujourd'hui", "now": "maintenant", "this evening": "ce soir"},
    "past": {"yesterday": "hier", "this morning": "ce matin"},
}
VERY = {"very": "très"}

# English (person, plural, gender) -> the French pronoun. `they` stands for a mixed group, so it is always `ils`.
SUBJECTS = {"he": ("il", 3, False, "m"), "she": ("elle", 3, False, "f"), "they": ("ils", 3, True, "m"),
            "i": ("je", 1, False, "m"), "we": ("nous", 1, True, "m")}
# French puts objects before the verb, in the order of RANK. `it` has no gender in English: always `le`.
DIRECT = {"him": "le", "her": "la", "it": "le", "them": "les", "me": "me", "us": "nous"}
INDIRECT = {"him": "lui", "her": "lui", "them": "leur", "me": "me", "us": "nous"}
RANK = {"me": 0, "nous": 0, "le": 1, "la": 1, "les": 1, "lui": 2, "leur": 2}

# English one, several | French one m, one f, several
DETERMINERS = {key: (tuple(english), tuple(french)) for (key,), english, french in _rows("""
    the   | the the     | le la les
    a     | a some      | un une des
    none  | a any       | de de de
    my    | my my       | mon ma mes
    his   | his his     | son sa ses
    her   | her her     | son sa ses
    our   | our our     | notre notre nos
    their | their their | leur leur leurs
    this  | this these  | ce cette ces
    each  | each -      | chaque chaque -
    two   | - two       | - - deux
    three | - three     | - - trois
    many  | - many      | - - beaucoup
    several | - several | - - plusieurs
""")}
POSSESSIVES = ("my", "his", "her", "our", "their")
ALL = {"all": ("tous", "toutes")}

# English | French | kinds of nouns
PLACE_PREPOSITIONS = _rows("""
    in                | dans       | area site
    at                | à          | site
    on                | sur        | top furniture
    near              | près de    | area site top furniture
    behind            | derrière   | area site furniture
    under             | sous       | furniture
""")
COMPANY = {"with": "avec", "without": "sans", "for": "pour"}
OF, TO = ("of", "de"), ("to", "à")
AFTER_VERB = {"to": "à", "from": "de", "in": "dans"}

COORDINATORS = {"and": "et", "or": "ou", "but": "mais", "so": "donc"}
SUBORDINATORS = {"because": "parce que", "when": "quand", "while": "pendant que", "if": "si"}
RELATIVES = {"who": "qui", "that": "que", "where": "où"}
NEGATIONS = {"not": "pas", "never": "jamais"}
THERE = ("there", "il y")

# Words that change before a vowel or a mute h. `si` does so before il and ils alone.
BEFORE_VOWEL = {"je": "j'", "ne": "n'", "me": "m'", "le": "l'", "la": "l'", "de": "d'", "que": "qu'",
                "ce": "cet", "ma": "mon", "sa": "son"}
CONTRACTIONS = {("à", "le"): "au", ("à", "les"): "aux", ("de", "le"): "du", ("de", "les"): "des"}

_VERBS = (INTRANSITIVE, TRANSITIVE, STATIVE, DITRANSITIVE, ADDRESSING, PLACED, REPORTING, [BE], MODALS)
_SMALL = (NAMES, FREQUENCY, MANNER, *OPENINGS.values(), VERY, SUBJECTS, DIRECT, DETERMINERS, ALL, PLACE_PREPOSITIONS,
          COMPANY, (OF, TO, "from"), COORDINATORS, SUBORDINATORS, RELATIVES, NEGATIONS, (THERE,))
LEMMAS = len(NOUNS) + len(ADJECTIVES) + sum(map(len, _VERBS)) + sum(map(len, _SMALL))
