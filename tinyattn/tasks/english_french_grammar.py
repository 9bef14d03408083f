"""The grammar of the embedded English-French task: noun phrases, verb phrases, clauses, each in both languages at once.

Every function returns a `Phrase`, built from the lexicon. The parts of a phrase may stand in another order in French,
and their links come along: `noun_core` puts an adjective before the noun in English and behind it in French, and
that is all there is to do.

`room`, wherever it is passed, says roughly how many words may still be spent; it keeps short sentences short.
"""

from collections import namedtuple

from tinyattn.tasks import english_french_lexicon as lexicon
from tinyattn.tasks.english_french_phrase import Mot, Phrase, Word, adjective_phrase, fixed, name, pronoun

# ----------------------------------------------------------------------------------------------- the noun's family

def noun_core(draw, noun, plural, room):
    """Noun with adjectives, without determiner: `small red car` / `petite voiture rouge`."""
    word = Word(noun.english[plural])
    mots = [Mot(noun.french[plural], [word])]
    words, rich = [word], min(1.0, room / 10)
    before, behind = lexicon.adjectives_of(noun.kind)
    if draw.chance(0.34 * rich):
        adjective = draw.pick(behind)
        part = adjective_phrase(draw, adjective, noun.gender, plural)
        words, mots = part.english + words, mots + part.french
    if draw.chance(0.34 * rich):
        adjective = draw.pick(before)
        part = adjective_phrase(draw, adjective, noun.gender, plural, next_mot=mots[0].text)
        words, mots = part.english + words, part.french + mots
    return Phrase(words, mots, noun.gender, plural), word


# Which determiners may stand where; the more often named, the more often drawn.
_DETERMINERS = {
    "free": "the the the the the the a a a my his her our their this this each two three many several all",
    "after preposition": "the the the the the a a my his her our their this this",
    "denied": "the the the none none none none my his her their this",
    "counted": "a a a two three many several",
    "definite": "the the the my his her our their this",
}


def noun_phrase(draw, kinds, room, place="free", plural=None):
    """Determiner, adjectives, noun, and while there is room a relative clause or a phrase with `of`.

    place: where it stands, a key of `_DETERMINERS`. In a denied object `a` and `any` become `de`.
    """
    noun = draw.pick(lexicon.nouns_of(*kinds))
    if place in ("free", "definite") and draw.chance(0.08):
        return owned(draw, noun, room)
    keys = _DETERMINERS[place].split()
    key = keys[int(draw.random() * len(keys))]
    if key in ("two", "three", "many", "several", "all"):
        plural = True
    elif key == "each":
        plural = False
    elif plural is None:
        plural = draw.chance(0.38)
    if key == "a" and place == "after preposition":
        plural = False  # `near some houses` would make `près de des`
    core, head = noun_core(draw, noun, plural, room)
    phrase = determiner(key, core, head) + core
    phrase.gender, phrase.plural = core.gender, core.plural
    room -= len(phrase.english)
    if place != "denied" and room > 4:
        phrase = with_tail(draw, phrase, noun, room)
    return phrase


def determiner(key, core, head):
    """The determiner before `core`; it agrees with the noun `head`, which is therefore a possible link."""
    if key == "all":
        words = [Word("all"), Word("the")]
        mots = [Mot(lexicon.ALL["all"][core.gender == "f"], words[:1], [head]), Mot("les", words[1:], [head])]
        return Phrase(words, mots)
    english, french = lexicon.DETERMINERS[key]
    text = english[core.plural]
    if text == "a" and core.english[0].text[0] in "aeiou":
        text = "an"
    mot = french[2] if core.plural else french[core.gender == "f"]
    if key == "a" and core.plural and core.french[0].text not in _NOUN_FORMS:
        mot = "de"  # des chats, but de petits chats
    word = Word(text)
    mots = [Mot(mot, [word], [head])]
    if key == "many":
        mots.append(Mot("de", [word], [head]))
    return Phrase([word], mots)


_NOUN_FORMS = frozenset(form for noun in lexicon.NOUNS for form in noun.french)


def owned(draw, noun, room):
    """`paul 's small dog` / `le petit chien de paul`: the owner goes to the end, and French adds an article."""
    if draw.chance(0.5):
        owner = name(draw)
    else:
        person = draw.pick(lexicon.nouns_of("person"))
        owner_core, head = noun_core(draw, person, False, 0)
        key = draw.pick(["the", *lexicon.POSSESSIVES])
        owner = determiner(key, owner_core, head) + owner_core
    core, head = noun_core(draw, noun, draw.chance(0.38), room / 2)
    mark = Word("'s")
    article = lexicon.DETERMINERS["the"][1][2 if core.plural else core.gender == "f"]
    french = [Mot(article, [], [*owner.english, mark, head]), *core.french, Mot("de", [mark]), *owner.french]
    return Phrase(owner.english + [mark] + core.english, french, core.gender, core.plural)


def with_tail(draw, phrase, noun, room):
    """Behind a noun: a relative clause (who, that, where) or, for things and places, `of the house`."""
    if noun.kind in ("thing", "text", "furniture", "top") and draw.chance(0.1):
        kinds = ("person",) if noun.kind != "top" else ("area",)
        return phrase + fixed(*lexicon.OF) + noun_phrase(draw, kinds, 0, "after preposition")
    if room < 6 or not draw.chance(0.3):
        return phrase
    room -= 3
    if noun.kind in lexicon.PLACES:
        return phrase + fixed("where", lexicon.RELATIVES["where"]) + clause(draw, room, "present")
    if noun.kind in ("person", "animal") and draw.chance(0.75):
        english = "who" if noun.kind == "person" else "that"
        return phrase + fixed(english, lexicon.RELATIVES["who"]) + verb_phrase(draw, phrase, noun.kind, room, "present")
    # In the past the participle would have to agree with what `que` stands for.
    verb = draw.pick([verb for verb in lexicon.TRANSITIVE if noun.kind in verb.objects])
    who = subject(draw, "person", 3)
    return phrase + fixed("that", lexicon.RELATIVES["that"]) + who + verb_group(verb, who, how(draw, verb, who, "present"))


def subject(draw, kind, room):
    """Pronoun, name, noun phrase, or two of them joined; for animals and things noun phrases alone."""
    if kind != "person":
        phrase = noun_phrase(draw, (kind,), room)
        phrase.willing = kind == "animal"
        return phrase
    if draw.chance(0.34):
        english = draw.pick(lexicon.SUBJECTS)
        french, person, plural, gender = lexicon.SUBJECTS[english]
        word = Word(english)
        return Phrase([word], [Mot(french, [word])], gender, plural, person)
    if draw.chance(0.22):
        first = name(draw)
    else:
        first = noun_phrase(draw, (kind,), room)
    if room >= 6 and len(first.english) < 5 and draw.chance(0.12):
        second = name(draw) if draw.chance(0.5) else noun_phrase(draw, (kind,), 0, "definite")
        gender = "f" if first.gender == second.gender == "f" else "m"
        first = first + fixed("and", lexicon.COORDINATORS["and"]) + second
        first.gender, first.plural = gender, True
    return first


# ----------------------------------------------------------------------------------------------- the verb's family

# How a verb is used: time is "present" or "past", denied None, "not" or "never", adverb English, modal a Verb or None.
Use = namedtuple("Use", "time denied adverb modal")
CAN, MUST, _, GOING = lexicon.MODALS


def how(draw, verb, who, time):
    """Choose negation, adverb and modal for a verb. Verbs of having and wanting go without adverb and modal.

    Where the lexicon has no form for this subject (i see), a modal must help (i can see).
    """
    stative = verb in lexicon.STATIVE
    denied = None if draw.chance(0.8) else "not" if draw.chance(0.75) else "never"
    adverb = modal = None
    if not stative and denied != "never" and draw.chance(0.12):
        adverb = draw.pick(lexicon.AFTER_NOT if denied else lexicon.FREQUENCY)
    must = (who.person, who.plural) not in verb.french
    if not stative and time == "present" and (must or draw.chance(0.22)):
        modal = draw.pick(lexicon.MODALS if who.willing else [CAN, MUST])
    return Use(time, denied, adverb, modal)


def verb_group(verb, who, use, clitics=()):
    """The verb with its helpers, negation, adverb and the French pronoun objects (`clitics`), without other objects.

        does not often see      ne (le) voit pas souvent
        did not see             n' (lui) a pas vu
        can never see           ne peut jamais (le) voir
    """
    lead = use.modal or verb
    front, back = finite_words(lead, who, use)
    main = (back or front)[-1]
    middle = [Word(use.denied)] if use.denied and main.text != "cannot" else []
    denial = (middle or [main])[0]
    adverb = fixed(use.adverb, lexicon.FREQUENCY[use.adverb]) if use.adverb else Phrase()
    person = (who.person, who.plural)
    if use.time == "past":
        finite, rest = Mot(lexicon.HAVE.french[person], front or [main], [main]), [Mot(verb.participle, [main])]
    else:
        finite, rest = Mot(lead.french[person], [main], front), []
    word = main
    if use.modal:
        to, word = [Word("to")] if lead.english[3] else [], Word(verb.english[0])
        back = [*back, *to, word]
        finite.possible += to
        rest = [*clitics, Mot(verb.infinitive, [word], to)]
    for clitic in clitics:
        clitic.possible.append(word)
    if verb in lexicon.TRANSITIVE and verb.english[3]:
        back = [*back, Word(verb.english[3])]
        (rest or [finite])[-1].possible.append(back[-1])
    before = [] if use.modal else clitics
    french = [*before, finite, *adverb.french, *rest]
    if use.denied:
        ne, pas = Mot("ne", [denial], [*front, main]), Mot(lexicon.NEGATIONS[use.denied], [denial], front)
        french = [ne, *before, finite, pas, *adverb.french, *rest]
    return Phrase([*front, *middle, *adverb.english, *back], french)


def finite_words(lead, who, use):
    """The English words before and behind the place of `not` and adverbs: (does) not (see), never (sees), (is) not."""
    base, third, past, _ = lead.english
    singular = who.person == 3 and not who.plural
    if lead in (lexicon.BE, GOING):
        be = "are" if who.plural else "is" if singular else "am"
        return [Word(be)], [Word("going")] if lead is GOING else []
    if lead in (CAN, MUST):
        return [Word("cannot" if lead is CAN and use.denied == "not" else base)], []
    if use.denied == "not":
        return [Word("did" if use.time == "past" else "does" if singular else "do")], [Word(base)]
    return [], [Word(past if use.time == "past" else third if singular else base)]


def verb_phrase(draw, who, kind, room, time):
    """All that is said of a subject `who`, a thing of some kind: one of the patterns below, perhaps two with `and`."""
    if kind == "person" and room > 9 and (who.person, who.plural) != (1, True) and draw.chance(0.25):
        return reporting(draw, who, room, time)
    pattern = draw.pick(_patterns(who, kind, time))
    phrase = pattern(draw, who, kind, room, time)
    room -= len(phrase.english)
    # In the past English does not show the number, so the subject must be near: they saw it and ate it.
    near = time == "present" or len(phrase.english) < 4
    if kind == "person" and room > 5 and near and draw.chance(0.2):
        phrase = phrase + fixed("and", lexicon.COORDINATORS["and"]) + verb_phrase(draw, who, kind, room - 1, time)
    return phrase


def _patterns(who, kind, time):
    """What can be said: things only are, in the present; only near subjects of the third person are such."""
    patterns = []
    if kind in ("person", "animal"):
        patterns += [transitive, transitive, intransitive]
    if kind == "person":
        patterns += [transitive, ditransitive, addressing]
    if time == "present":
        patterns += [be_such] * (3 if who.person == 3 and len(who.english) < 6 else 0) + [be_somewhere]
        patterns += [placed, stative] if kind == "person" else []
    return patterns


def intransitive(draw, who, kind, room, time):
    verb = draw.pick(lexicon.INTRANSITIVE)
    phrase = verb_group(verb, who, how(draw, verb, who, time))
    if room > 3 and draw.chance(0.3):
        english = draw.pick(lexicon.MANNER)
        phrase += fixed(english, lexicon.MANNER[english])
    return with_place(draw, phrase, room, 0.4)


def transitive(draw, who, kind, room, time):
    """A verb with an object: a pronoun, which French puts before the verb, or a noun phrase."""
    verb = draw.pick(lexicon.TRANSITIVE if kind == "person" else lexicon.ANIMAL_VERBS)
    use = how(draw, verb, who, time)
    if draw.chance(0.28):
        word, clitic = pronoun(draw, lexicon.DIRECT, direct_pronouns(verb, who, time))
        phrase = verb_group(verb, who, use, [clitic])
        phrase.english.append(word)
    else:
        phrase = verb_group(verb, who, use) + direct_object(draw, verb, use, room)
    return with_place(draw, phrase, room, 0.2)


def stative(draw, who, kind, room, time):
    verb = draw.pick(lexicon.STATIVE)
    use = how(draw, verb, who, time)
    return verb_group(verb, who, use) + direct_object(draw, verb, use, room)


def ditransitive(draw, who, kind, room, time):
    """give it to her / le lui donner: either object may be a pronoun."""
    verb = draw.pick(lexicon.DITRANSITIVE)
    use = how(draw, verb, who, time)
    clitics, to = [], fixed(*lexicon.TO)
    if draw.chance(0.35):
        word, clitic = pronoun(draw, lexicon.DIRECT, ["it"] if time == "past" else ["it", "them"])
        clitics, given = [clitic], Phrase([word])
    else:
        given = direct_object(draw, verb, use, min(room, 4))
    if draw.chance(0.45):
        clitics, receiver = [*clitics, recipient_pronoun(draw, who, to)], Phrase(to.english)
        receiver.english.append(clitics[-1].sure[0])
    else:
        receiver = to + recipient(draw, room)
    clitics.sort(key=lambda mot: lexicon.RANK[mot.text])
    return verb_group(verb, who, use, clitics) + given + receiver


def addressing(draw, who, kind, room, time):
    """speak to her / lui parler."""
    verb = draw.pick(lexicon.ADDRESSING)
    use, to = how(draw, verb, who, time), fixed(*lexicon.TO)
    if draw.chance(0.4):
        clitic = recipient_pronoun(draw, who, to)
        return verb_group(verb, who, use, [clitic]) + Phrase([*to.english, *clitic.sure])
    return with_place(draw, verb_group(verb, who, use) + to + recipient(draw, room), room, 0.25)


def placed(draw, who, kind, room, time):
    """go to, come from, live in, with a place."""
    verb = draw.pick(lexicon.PLACED)
    link = fixed(verb.english[3], lexicon.AFTER_VERB[verb.english[3]])
    place = noun_phrase(draw, verb.objects, room - 3, "after preposition")
    return verb_group(verb, who, how(draw, verb, who, time)) + link + place


def reporting(draw, who, room, time):
    """say that ...: never denied, since `he does not think that` would ask for the subjunctive."""
    verb = draw.pick([verb for verb in lexicon.REPORTING if (who.person, who.plural) in verb.french])
    said = verb_group(verb, who, Use("present", None, "often" if draw.chance(0.1) else None, None))
    return said + fixed("that", lexicon.RELATIVES["that"]) + clause(draw, room - 3, time)


def be_such(draw, who, kind, room, time):
    """be with an adjective that agrees with the subject; without modal, so that it stands near enough to be learnt."""
    group = verb_group(lexicon.BE, who, how(draw, lexicon.BE, who, time)._replace(modal=None))
    before, behind = lexicon.adjectives_of(kind)
    return group + adjective_phrase(draw, draw.pick(before + behind), who.gender, who.plural)


def be_somewhere(draw, who, kind, room, time):
    return with_place(draw, verb_group(lexicon.BE, who, how(draw, lexicon.BE, who, time)), room, 1.0)


# ------------------------------------------------------------------------------------------------- objects, places

def direct_object(draw, verb, use, room):
    """A noun phrase, at times two with `and` or `or`; denied, `a` becomes `de`."""
    phrase = noun_phrase(draw, verb.objects, room - 2, "denied" if use.denied else "free")
    if room > 7 and not use.denied and len(phrase.english) < 4 and draw.chance(0.15):
        joint = draw.pick(["and", "or"])
        phrase = phrase + fixed(joint, lexicon.COORDINATORS[joint]) + noun_phrase(draw, verb.objects, 0, "definite")
    return phrase


def direct_pronouns(verb, who, time):
    """Which object pronouns fit. In the past only him and it: with la, les and me the participle would agree."""
    persons, others = "person" in verb.objects, set(verb.objects) != {"person"}
    fitting = ["him"] * persons + ["it"] * others
    if time == "present":
        fitting += ["her"] * persons + ["them"] + ["me", "us"] * (persons and who.person == 3)
    return fitting


def recipient_pronoun(draw, who, to):
    _, clitic = pronoun(draw, lexicon.INDIRECT, ["him", "her", "them"] + ["me", "us"] * (who.person == 3))
    clitic.possible += to.english
    return clitic


def recipient(draw, room):
    return name(draw) if draw.chance(0.35) else noun_phrase(draw, ("person",), room - 4, "after preposition")


def with_place(draw, phrase, room, p):
    """Add where (in the garden, near paul 's house) with probability p, or with whom, while there is room."""
    if p < 1 and room - len(phrase.english) < 3:
        return phrase
    if draw.chance(p):
        english, french, kinds = draw.pick(lexicon.PLACE_PREPOSITIONS)
        place = noun_phrase(draw, kinds, room - len(phrase.english) - 2, "after preposition")
        return phrase + fixed(" ".join(english), " ".join(french)) + place
    if draw.chance(0.15):
        english = draw.pick(lexicon.COMPANY)
        person = name(draw) if draw.chance(0.35) else noun_phrase(draw, ("person",), 0, "definite")
        return phrase + fixed(english, lexicon.COMPANY[english]) + person
    return phrase


# -------------------------------------------------------------------------------------------- subject and predicate

def clause(draw, room, time):
    """Subject and verb phrase, or `there is`."""
    if time == "present" and room > 4 and draw.chance(0.03):
        what = noun_phrase(draw, ("animal", "thing", "furniture"), room - 4, "counted")
        there, be = Word(lexicon.THERE[0]), Word("are" if what.plural else "is")
        il_y_a = [Mot(mot, [there], [be]) for mot in lexicon.THERE[1].split()] + [Mot("a", [be], [there])]
        return with_place(draw, Phrase([there, be], il_y_a) + what, room, 1.0)
    kind = "person" if draw.chance(0.72) else "animal"
    if time == "present" and draw.chance(0.12):
        kind = draw.pick(("thing", "furniture", "text", "food"))
    who = subject(draw, kind, room / 2)
    return who + verb_phrase(draw, who, kind, room - len(who.english), time)
