"""The translation task: text files, words, vocabulary, batches, the built-in grammar and the readers."""

import gettext
import gzip
import io
import os
import random
import struct
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tinyattn.errors import InputError
from tinyattn.tasks import english_french_lexicon as lexicon
from tinyattn.tasks import text as text_module
from tinyattn.tasks.english_french import LEMMAS, LONGEST, as_pair, generate, sentence
from tinyattn.tasks.english_french_grammar import Use, determiner, noun_core, verb_group
from tinyattn.tasks.english_french_phrase import Draw, Mot, fixed
from tinyattn.tasks.text import Kept, Vocabulary, as_paths, batches, json_line, pad, read_lines, text_lines, tokenize
from tinyattn.tasks.translate import load, parse_input, read_pairs

DATA = Path(__file__).parents[1] / "../shared/data"


@pytest.fixture(scope="module")
def pairs():
    return generate(10_000, seed=3)


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refused(call, *fragments):
    """The call ends in an InputError of one line that holds all fragments."""
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for fragment in fragments:
        assert fragment in message, message


# ----------------------------------------------------------------------------------------------------------- text

def test_read_lines_ends_lines_where_an_editor_would(tmp_path):
    path = write(tmp_path, "a.txt", "\ufeffone\r\ntwo\u2028still two\x0cand\x85so\rthree\n\nfive".encode())
    assert read_lines(path) == ["one", "two\u2028still two\x0cand\x85so", "three", "", "five"]
    assert read_lines(write(tmp_path, "b.txt", "one\n")) == ["one"]


def test_read_lines_refuses(tmp_path):
    refused(lambda: read_lines(tmp_path / "none.txt"), "none.txt", "no such file")
    refused(lambda: read_lines(tmp_path), "folder")
    refused(lambda: read_lines("a\0b"), "cannot be read")
    refused(lambda: read_lines(write(tmp_path, "a", "")), "empty file")
    os.mkfifo(tmp_path / "pipe")  # which nobody writes to
    refused(lambda: read_lines(tmp_path / "pipe"), "pipe: expected a file, found a pipe or device")
    refused(lambda: read_lines("/dev/zero"), "/dev/zero: expected a file, found a pipe or device")
    refused(lambda: read_lines(write(tmp_path, "b", b"ok\r\nok\rno\0\n")), "line 3, byte 3", "NUL")
    refused(lambda: read_lines(write(tmp_path, "c", "ok\ncafé".encode("latin-1"))), "line 2, byte 4", "0xe9", "UTF-8")
    refused(lambda: read_lines(write(tmp_path, "d", b"\xef\xbb\xbfab\n\xff")), "line 2, byte 1", "0xff")
    refused(lambda: read_lines(write(tmp_path, "e", "hi".encode("utf-16"))), "line 1, byte 1", "UTF-8")


@pytest.mark.parametrize("text, words", [
    ("L'homme n'est pas là !", "l' homme n' est pas là !"),
    ("Qu\u2019il vienne aujourd\u2019hui\u00a0: c\u2019est\u202f«\u00a0l\u2019été\u00a0» ?",
     "qu' il vienne aujourd'hui : c' est « l' été » ?"),
    ("Don't! The king's dog, I'd say, we'll see.", "don't ! the king 's dog , i 'd say , we 'll see ."),
    ("cafe\u0301 3.14 1,000 (well-known) e-mail...", "café 3.14 1,000 ( well-known ) e-mail . . ."),
    ("%(name)s has %s of {count}", "%(name)s has %s of {count}"),
    ("a<b & <pad>", "a < b & < pad >"),
    ("d'abord jusqu'à l'Île", "d' abord jusqu' à l' île"),
    ("'quoted' words' end", "' quoted ' words ' end"),
    (" \u2028 \t", ""),
])
def test_tokenize(text, words):
    assert tokenize(text) == words.split()
    assert tokenize(words) == words.split()  # cutting what is cut changes nothing


def test_tokenize_keeps_case_on_request():
    assert tokenize("L'Été", lower=False) == ["L'", "Été"]


def test_lines_of_a_gzipped_file_are_those_of_the_file(tmp_path, monkeypatch):
    text = "\ufeffone\r\ntwo\u2028still two\n\ncafé".encode()
    plain, packed = write(tmp_path, "a.txt", text), write(tmp_path, "a.txt.GZ", gzip.compress(text))
    assert text_lines(plain) == text_lines(packed) == read_lines(plain) == ["one", "two\u2028still two", "", "café"]
    refused(lambda: text_lines(write(tmp_path, "b.gz", gzip.compress(text)[:-9])), "b.gz", "cannot be unpacked")
    refused(lambda: text_lines(write(tmp_path, "b.gz", text)), "b.gz", "expected a gzipped file")
    refused(lambda: text_lines(write(tmp_path, "b.gz", gzip.compress(b""))), "b.gz", "empty file")
    refused(lambda: text_lines(write(tmp_path, "b.gz", gzip.compress(b"ok\n\xff"))), "b.gz, line 2, byte 1", "0xff")
    refused(lambda: text_lines(write(tmp_path, "b.gz", gzip.compress(b"\0"))), "line 1, byte 1", "NUL")
    monkeypatch.setattr(text_module, "MOST_BYTES", len(text))
    assert len(text_lines(packed)) == 4
    monkeypatch.setattr(text_module, "MOST_BYTES", len(text) - 1)
    refused(lambda: text_lines(packed), "a.txt.GZ", f"at most {len(text) - 1} bytes")


@pytest.mark.parametrize("line, reason", [
    ("", "not JSON"), ("[1]", "found '[1]'"), ("3", "found '3'"), ('{"a": 1', "not JSON"), ('{"a": 1} x', "Extra data"),
    ('{"a": 1, "a": 1}', "a key comes twice"), ('{"b": {"a": 1, "a": 2}}', "a key comes twice"),
    ('{"a": NaN}', "NaN is no number"), ('{"a": [-Infinity]}', "-Infinity is no number"),
    ('{"a": -1e999}', "-1e999 is too large"), ('{"a": "\\udc00"}', "half of a character pair"),
    ('{"\\uD83D": 1}', "half of a character pair"), ('{"a":' * 100_000, "not JSON"),
    ('{"a": ' + "1" * 10_000 + "}", "not JSON")], ids=range(14))
def test_a_line_of_json_that_is_no_object_or_read_in_two_ways_is_refused(line, reason):
    refused(lambda: json_line(line, "f, line 3", "such a thing"), "f, line 3: expected such a thing, found ", reason)


def test_a_line_of_json():
    found = json_line(' {"a": [1, 2.5, 1e300, null, true], "b": {"é": "\\ud83d\\ude00 \\\\ud800"}}', "f", "")
    assert found == {"a": [1, 2.5, 1e300, None, True], "b": {"é": "\U0001f600 \\ud800"}}


def test_one_path_or_several():
    assert as_paths("a") == as_paths(Path("a")) == as_paths(["a"]) == as_paths((Path("a"),)) == [Path("a")]
    assert as_paths(()) == []


def test_what_was_made_of_a_sample_is_kept_as_long_as_the_vocabulary_is():
    kept, made, words, samples = Kept(3), [], Vocabulary(["a"]), [[i] for i in range(9)]

    def make(sample):
        made.append(sample[0])
        return sample[0] * 2
    assert [kept.of(samples[i], words, make) for i in (0, 1, 0, 1)] == [0, 2, 0, 2] and made == [0, 1]
    assert kept.of(samples[0], Vocabulary(["b"]), make) == 0 and made == [0, 1, 0]
    made.clear()
    for _ in range(2):
        assert [kept.of([i], words, make) for i in range(9)] == [2 * i for i in range(9)]  # lists that are gone at once
    assert made == [*range(9)] * 2 and len(kept.known) <= 4


def test_vocabulary():
    vocabulary = Vocabulary.build([["b", "a", "b"], ["<pad>", "a", "c"]])
    assert vocabulary.to_list() == ["<pad>", "<s>", "</s>", "<unk>", "a", "b", "<pad>", "c"]
    assert (vocabulary.PAD, vocabulary.BOS, vocabulary.EOS, vocabulary.UNK) == (0, 1, 2, 3)
    assert vocabulary.encode(["<pad>", "a", "zebra", "</s>"]) == [6, 4, 3, 3]
    assert vocabulary.decode([1, 6, 4, 0, 3, 2, 5]) == ["<pad>", "a", "<unk>"]
    assert Vocabulary.from_list(vocabulary.to_list()).encode(["c", "<pad>"]) == [7, 6]
    assert len(Vocabulary.build([["a", "b", "b"]], max_size=5)) == 5
    assert Vocabulary.build([["a", "b", "b"]], min_count=2).to_list()[4:] == ["b"]
    assert len(Vocabulary.build([])) == 4
    with pytest.raises(IndexError, match="8"):
        vocabulary.decode([8])
    refused(lambda: Vocabulary.from_list(["a", "b"]), "begin with <pad>")
    refused(lambda: Vocabulary.from_list([*Vocabulary.SPECIALS, "a", "a"]), "'a' again")
    refused(lambda: Vocabulary.from_list([*Vocabulary.SPECIALS, "a", None]), "words as texts, found None at 5")


@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 5_000])
def test_batches_take_each_pair_once(n):
    lengths = np.random.default_rng(0).integers(1, 50, size=(n, 2))
    cut = batches(lengths, 32, np.random.default_rng(1))
    assert sorted(i for batch in cut for i in batch) == list(range(n))
    assert all(0 < len(batch) <= 32 for batch in cut) and sum(len(batch) < 32 for batch in cut) <= 1
    again = batches(lengths, 32, np.random.default_rng(1))
    assert all((one == other).all() for one, other in zip(cut, again))


def test_batches_pad_little():
    lengths = np.random.default_rng(0).integers(1, 50, size=(5_000, 2))
    cut = batches(lengths, 32, np.random.default_rng(1))
    padded = sum(len(batch) * lengths[batch, 1].max() for batch in cut)
    assert padded < 1.1 * lengths[:, 1].sum()
    with pytest.raises(ValueError, match="at least 1"):
        batches(lengths, 0, np.random.default_rng(1))


def test_pad():
    padded, lengths = pad([[5, 6, 7], [], [8]])
    assert padded.tolist() == [[5, 6, 7], [0, 0, 0], [8, 0, 0]] and lengths.tolist() == [3, 0, 1]
    assert padded.dtype == lengths.dtype == np.int64
    assert pad([])[0].shape == (0, 0) and pad([[]])[0].shape == (1, 0)


# -------------------------------------------------------------------------------------------------------- grammar

class Plain:
    """Draws nothing that may be left out, and of a list the one asked for."""

    def __init__(self, wanted=()):
        self.wanted = wanted

    def random(self):
        return 0.0

    def chance(self, p):
        return False

    def pick(self, options):
        options = list(options)
        return next((item for item in options if getattr(item, "english", item) in self.wanted), options[0])


def both(phrase):
    pair = as_pair(phrase)
    return " ".join(pair.source) + " | " + " ".join(pair.target)


def person(english):
    french, number, plural, gender = lexicon.SUBJECTS[english]
    phrase = fixed(english, french)
    phrase.person, phrase.plural, phrase.gender = number, plural, gender
    return phrase


def verb(base):
    tables = (lexicon.INTRANSITIVE, lexicon.TRANSITIVE, lexicon.STATIVE, lexicon.DITRANSITIVE, [lexicon.BE])
    return next(verb for table in tables for verb in table if verb.english[0] == base)


MODALS = dict(zip(("can", "must", "want", "going"), lexicon.MODALS))


@pytest.mark.parametrize("who, base, use, clitics, expected", [
    ("she", "see", ("present", None, None, None), "", "she sees | elle voit"),
    ("she", "sleep", ("present", "not", None, None), "", "she does not sleep | elle ne dort pas"),
    ("they", "sleep", ("present", "never", None, None), "", "they never sleep | ils ne dorment jamais"),
    ("she", "see", ("present", None, None, None), "him", "she sees | elle le voit"),
    ("he", "give", ("present", None, None, None), "it her", "he gives | il le lui donne"),
    ("he", "give", ("present", "not", None, None), "it me", "he does not give | il ne me le donne pas"),
    ("they", "see", ("past", None, None, None), "", "they saw | ils ont vu"),
    ("he", "see", ("past", "not", None, None), "", "he did not see | il n' a pas vu"),
    ("i", "see", ("past", None, None, None), "it", "i saw | je l' ai vu"),
    ("i", "see", ("past", None, None, None), "", "i saw | j' ai vu"),
    ("we", "give", ("past", "never", None, None), "it her", "we never gave | nous ne le lui avons jamais donné"),
    ("he", "sleep", ("present", None, "often", None), "", "he often sleeps | il dort souvent"),
    ("he", "sleep", ("past", "not", "always", None), "", "he did not always sleep | il n' a pas toujours dormi"),
    ("i", "like", ("present", "not", None, None), "", "i do not like | je n' aime pas"),
    ("i", "like", ("present", None, None, None), "her", "i like | je l' aime"),
    ("she", "see", ("present", None, None, "can"), "", "she can see | elle peut voir"),
    ("we", "see", ("present", "not", None, "can"), "him", "we cannot see | nous ne pouvons pas le voir"),
    ("he", "eat", ("present", "never", None, "must"), "", "he must never eat | il ne doit jamais manger"),
    ("he", "eat", ("present", "not", None, "must"), "", "he must not eat | il ne doit pas manger"),
    ("she", "give", ("present", "not", None, "want"), "it us",
     "she does not want to give | elle ne veut pas nous le donner"),
    ("i", "sing", ("present", None, "also", "going"), "", "i am also going to sing | je vais aussi chanter"),
    ("they", "be", ("present", "not", "often", None), "", "they are not often | ils ne sont pas souvent"),
    ("i", "look", ("present", None, None, None), "them", "i look at | je les regarde"),
    ("he", "have", ("present", "not", None, None), "", "he does not have | il n' a pas"),
])
def test_verbs(who, base, use, clitics, expected):
    subject, lent = person(who), []
    time, denied, adverb, modal = use
    for i, english in enumerate(clitics.split()):
        lent.append(Mot((lexicon.INDIRECT if base == "give" and i else lexicon.DIRECT)[english]))
    lent.sort(key=lambda mot: lexicon.RANK[mot.text])
    group = verb_group(verb(base), subject, Use(time, denied, adverb, MODALS.get(modal)), lent)
    assert both(subject + group) == expected


@pytest.mark.parametrize("key, english, plural, adjectives, expected", [
    ("the", "man", False, "", "the man | l' homme"),
    ("the", "owl", False, "", "the owl | le hibou"),
    ("the", "axe", False, "", "the axe | la hache"),
    ("the", "story", True, "", "the stories | les histoires"),
    ("a", "egg", False, "", "an egg | un œuf"),
    ("a", "apple", False, "old", "an old apple | une vieille pomme"),
    ("a", "cat", True, "", "some cats | des chats"),
    ("a", "cat", True, "small", "some small cats | de petits chats"),
    ("a", "cat", True, "black", "some black cats | des chats noirs"),
    ("none", "child", True, "", "any children | d' enfants"),
    ("this", "man", False, "", "this man | cet homme"),
    ("this", "man", False, "small", "this small man | ce petit homme"),
    ("this", "school", False, "", "this school | cette école"),
    ("my", "school", False, "", "my school | mon école"),
    ("her", "school", False, "big", "her big school | sa grande école"),
    ("his", "clock", False, "", "his clock | son horloge"),
    ("his", "axe", False, "", "his axe | sa hache"),
    ("the", "hotel", False, "beautiful", "the beautiful hotel | le bel hôtel"),
    ("the", "bird", False, "new", "the new bird | le nouvel oiseau"),
    ("the", "friend", False, "old", "the old friend | le vieil ami"),
    ("the", "friend", True, "old", "the old friends | les vieux amis"),
    ("the", "owl", False, "beautiful", "the beautiful owl | le beau hibou"),
    ("the", "flower", True, "beautiful white", "the beautiful white flowers | les belles fleurs blanches"),
    ("many", "bird", True, "", "many birds | beaucoup d' oiseaux"),
    ("all", "girl", True, "", "all the girls | toutes les filles"),
    ("all", "horse", True, "", "all the horses | tous les chevaux"),
    ("each", "witch", False, "happy", "each happy witch | chaque sorcière heureuse"),
])
def test_noun_phrases(key, english, plural, adjectives, expected):
    noun = next(noun for noun in lexicon.NOUNS if noun.english[0] == english)
    draw, script = Plain(adjectives.split()), []
    before = [adjective.before for adjective in lexicon.ADJECTIVES if adjective.english in draw.wanted]
    for place in (False, True):  # an adjective behind the French noun? one before it? and neither with `very`
        script += [True, False] if place in before else [False]
    draw.chance = lambda p: script.pop(0)
    core, head = noun_core(draw, noun, plural, room=10)
    assert both(determiner(key, core, head) + core) == expected


@pytest.mark.parametrize("english, french, noun, expected", [
    ("near", "près de", "the garden", "near the garden | près du jardin"),
    ("near", "près de", "the school", "near the school | près de l' école"),
    ("of", "de", "the owl", "of the owl | du hibou"),
    ("of", "de", "the gardens", "of the gardens | des jardins"),
    ("to", "à", "the market", "to the market | au marché"),
    ("to", "à", "the men", "to the men | aux hommes"),
    ("to", "à", "the hotel", "to the hotel | à l' hôtel"),
    ("of", "de", "a woman", "of a woman | d' une femme"),
])
def test_contractions(english, french, noun, expected):
    key, word = noun.split()
    entry = next(entry for entry in lexicon.NOUNS if word in entry.english)
    core, head = noun_core(Plain(), entry, entry.english.index(word), 0)
    assert both(fixed(english, french) + determiner(key, core, head) + core) == expected


# Read by eye. A change of the grammar or its words draws other sentences: read new ones and put them here.
READ = """
our table is black . | notre table est noire .
i am also going to give it to paul . | je vais aussi le donner à paul .
two beautiful birds did not like this friend . | deux beaux oiseaux n' ont pas aimé cet ami .
a cat does not find a green flower . | un chat ne trouve pas de fleur verte .
there is a small horse near a school . | il y a un petit cheval près d' une école .
three children spoke to the princess near her stations . | trois enfants ont parlé à la princesse près de ses gares .
his small princess helps her neighbour 's teacher . | sa petite princesse aide le professeur de son voisin .
all the women speak to the woman . | toutes les femmes parlent à la femme .
we never want to eat them , but she can often find the hats . | nous ne voulons jamais les manger , mais elle peut souvent trouver les chapeaux .
"""


def test_whole_sentences(pairs):
    """Read by eye, and found as they were read."""
    found = {" ".join(pair.source): " ".join(pair.target) for pair in pairs}
    for line in READ.strip().splitlines():
        english, french = line.split(" | ")
        assert found[english] == french


def test_every_link_is_in_range_and_every_french_word_has_one(pairs):
    for pair in pairs:
        assert pair.sure <= pair.possible
        assert all(0 <= i < len(pair.source) and 0 <= j < len(pair.target) for i, j in pair.possible)
        assert {j for _, j in pair.possible} == set(range(len(pair.target)))
        assert (len(pair.source) - 1, len(pair.target) - 1) in pair.sure
        assert len({j for _, j in pair.sure}) >= len(pair.target) - pair.source.count("'s")


def test_gold_links_of_one_sentence_each(pairs):
    """Negation wraps the verb, and a contraction comes from two words."""
    seen = Counter()
    for pair in pairs:
        linked = {(pair.source[i], pair.target[j]) for i, j in pair.sure}
        words = set(pair.source)
        if "not" in words:
            assert ("not", "ne") in linked or ("not", "n'") in linked
            assert ("not", "pas") in linked
            seen["not"] += 1
        if "of" in words and "du" in pair.target:
            seen["du"] += {("of", "du"), ("the", "du")} <= linked
        if "because" in words:
            assert ("because", "parce") in linked
            seen["because"] += 1
        assert not {("does", mot) for mot in pair.target} & linked
    assert min(seen["not"], seen["because"]) > 500 and seen["du"] > 0


def test_french_spelling(pairs):
    nouns = {form: noun.gender for noun in lexicon.NOUNS for form in noun.french}
    vowel = tuple("aeiouéèêîôœ")
    for pair in pairs:
        for before, after in pairwise(pair.target):
            starts = after.startswith(vowel) or after.startswith("h") and after not in lexicon.ASPIRATED
            assert not (starts and before in ("je", "ne", "me", "le", "la", "de", "que", "ce", "ma", "sa")), pair
            assert starts or not before.endswith("'") or (before, after) == ("s'", "il"), pair
            assert (before, after) not in lexicon.CONTRACTIONS or starts, pair
            assert starts or before not in ("cet", "bel", "nouvel", "vieil"), pair
            assert not (after in nouns and starts and before in ("beau", "nouveau", "vieux") and after[-1] not in "sx")
            if after in nouns and before in ("un", "le", "cet", "petit", "bon", "grand"):
                assert nouns[after] == "m", pair
            if after in nouns and before in ("une", "la", "cette", "ma", "sa", "petite", "bonne", "belle"):
                assert nouns[after] == "f", pair


def test_english_spelling(pairs):
    for pair in pairs:
        for before, after in pairwise(pair.source):
            assert before != "a" or after[0] not in "aeiou", pair
            assert before != "an" or after[0] in "aeiou", pair
            assert not (before in ("he", "she") and after in ("do", "are", "have")), pair
            assert not (before in ("i", "we", "they") and after in ("does", "is", "has")), pair


def test_lengths_and_vocabulary(pairs):
    lengths = np.array([len(pair.source) for pair in pairs])
    assert lengths.min() == 3 and 45 < lengths.max() <= LONGEST
    assert 0.25 < (lengths > 25).mean() < 0.35 and 0.25 < (lengths < 11).mean() < 0.45
    assert LEMMAS >= 200
    for side in ("source", "target"):
        counts = Counter(word for pair in pairs for word in getattr(pair, side))
        assert 300 <= len(counts) <= 510 and min(counts.values()) > 20
        assert set(" ".join(counts)) <= set("abcdefghijklmnopqrstuvwxyzàâçéèêîôùûœ' .,"), side


def test_words_are_as_the_tokenizer_cuts_them(pairs):
    for pair in pairs[:500]:
        assert tokenize(" ".join(pair.source)) == list(pair.source)
        assert tokenize(" ".join(pair.target)) == list(pair.target)


def test_one_translation_a_sentence():
    draw, found = Draw(np.random.default_rng(9)), {}
    for _ in range(6_000):
        pair = as_pair(sentence(draw))
        assert found.setdefault(pair.source, pair).target == pair.target
    assert len(found) < 6_000  # some did come twice


def test_generate_appends_and_differs(pairs):
    assert generate(50, seed=3) == pairs[:50]
    assert len({pair.source for pair in pairs}) == len(pairs)
    assert generate(50, seed=4) != pairs[:50]
    assert generate(0) == []


def test_one_best_source_word_per_target_word_is_nearly_the_gold(pairs):
    """What attention's arg-max could reach: the error that the links to two words alone cost."""
    from tinyattn.tasks.metrics import aer
    best = []
    for pair in pairs:
        choice = {}
        for i, j in sorted(pair.possible, key=lambda link: link not in pair.sure):
            choice.setdefault(j, (i, j))
        best.append(set(choice.values()))
    assert aer(best, [pair.sure for pair in pairs], [pair.possible for pair in pairs]) < 0.01


def test_the_same_whatever_the_hash_seed_and_the_global_random_state_stays(tmp_path):
    path = write(tmp_path, "p.tsv", "".join(f"word{i % 40} here\tmot{i} ici\n" for i in range(100)))
    code = ("from tinyattn.tasks.translate import load; import sys, zlib\n"
            "one, two = load(sizes=(200, 20, 20)), load([sys.argv[1]])\n"
            "text = repr([(p.source, p.target, sorted(p.sure or ()), sorted(p.possible or ()))\n"
            "    for c in (one, two) for part in (c.train, c.validation, c.test) for p in part] + two.notes)\n"
            "print(zlib.crc32(text.encode()))")
    seen = set()
    for hash_seed in ("0", "1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(__file__).parents[1])}
        seen.add(subprocess.run([sys.executable, "-c", code, str(path)], env=environment, check=True,
                                capture_output=True, text=True).stdout)
    assert len(seen) == 1
    before, plain = np.random.get_state()[1].tolist(), random.getstate()
    load([path])
    generate(20)
    assert np.random.get_state()[1].tolist() == before and random.getstate() == plain


def test_built_in_corpus():
    corpus = load(sizes=(300, 30, 50), seed=1)
    parts = [{pair.source for pair in part} for part in (corpus.train, corpus.validation, corpus.test)]
    assert [len(part) for part in parts] == [300, 30, 50]
    assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]
    assert "generated" in corpus.notes[0]
    refused(lambda: load(links="align.txt"), "align.txt", "no text file")


# ---------------------------------------------------------------------------------------------------------- tables

def table(rows):
    return "".join(f"{source}\t{target}\n" for source, target in rows)


def test_tsv(tmp_path):
    rows = [(f"The {n} is big.", f"Le {n} est grand.") for n in range(40)]
    path = write(tmp_path, "a.tsv", table(rows + [("The 0 is big.", "Le 0 est gros.")]) + "\n\tno source\nx\t\n"
                 + "one more\tun encore\tCC-BY 2.0 (someone)\n" + "long " * 51 + "\tlongue\n")
    got, notes = read_pairs([path])
    assert len(got) == 42 and got[0].source == ("the", "0", "is", "big", ".") and got[0].sure is None
    assert got[-1].target == ("un", "encore")
    text = " | ".join(notes)
    for note in ("42 sentence pairs", "1 left out: blank line", "2 left out: a side is empty",
                 "1 left out: more than 50 words", "1 lines with further columns"):
        assert note in text
    assert len(read_pairs(path, max_length=100)[0]) == 43
    assert read_pairs([path], lower=False)[0][0].source[0] == "The"


def test_split_is_by_source(tmp_path):
    rows = [(f"word {n % 60}", f"mot {n}") for n in range(300)]
    path = write(tmp_path, "a.tsv", table(rows))
    corpus = load(path)
    parts = [[pair.source for pair in part] for part in (corpus.train, corpus.validation, corpus.test)]
    assert [len(part) for part in parts] == [270, 3, 3]
    assert len({*parts[0]} | {*parts[1]} | {*parts[2]}) == 60 == sum(len({*part}) for part in parts)
    assert corpus.test == load(path).test != load(path, seed=5).test
    assert any("24 left out: further translations" in note for note in corpus.notes)
    assert [len(part) for part in vars(load(path, sizes=(100, 1, 2))).values()][:3] == [100, 1, 2]


def test_bad_tables(tmp_path):
    refused(lambda: read_pairs([write(tmp_path, "a.tsv", "a\tb\nno tab here\n")]),
            "a.tsv, line 2", "source<TAB>target", "'no tab here'")
    refused(lambda: read_pairs([write(tmp_path, "b.tsv", "\n \n")]), "b.tsv", "at least 1", "2 left out: blank line")
    refused(lambda: load([write(tmp_path, "c.tsv", "a\tb\n" * 30)]), "at least 10", "found 1 among 30")
    refused(lambda: load([write(tmp_path, "d.tsv", "a\tb\nc\td\n")]), "at least 10", "found 2")
    refused(lambda: load([write(tmp_path, "e.tsv", "")]), "empty file")
    refused(lambda: load(["a", "b", "c"]), "one or two files", "got 3")
    refused(lambda: read_pairs(["a"], links_order="french"), "links order", "'french'")
    refused(lambda: parse_input("  \u00a0"), "expected a sentence")
    assert parse_input("Hello!") == ("hello", "!")


def test_two_files(tmp_path):
    english = write(tmp_path, "en", "".join(f"line {n}\u2028still\n" for n in range(20)))
    french = write(tmp_path, "fr", "".join(f"ligne {n}\r\n" for n in range(20)))
    got, _ = read_pairs([english, french])
    assert len(got) == 20 and got[3].source == ("line", "3", "still") and got[3].target == ("ligne", "3")
    refused(lambda: read_pairs([english, write(tmp_path, "x", "a\nb\n")]), "20 in", "2 in", "as many lines")


def test_two_numbered_files_are_joined(tmp_path):
    english, french = write(tmp_path, "en", "7\tseven\n1\tone\n"), write(tmp_path, "fr", "1\tun\n2\tdeux\n7\tsept\n")
    got, notes = read_pairs([english, french])
    assert [(pair.source, pair.target) for pair in got] == [(("seven",), ("sept",)), (("one",), ("un",))]
    assert "1 left out: number in one file only" in notes
    refused(lambda: read_pairs([write(tmp_path, "x", "1\ta\n1\tb\n"), french]), "x, line 2", "found 1 again")


def test_links(tmp_path):
    text = write(tmp_path, "a.tsv", "The cat , here\tLe chat\n\nNo links\tRien\n")
    got, _ = read_pairs([text], links=write(tmp_path, "l", "0-0 1-1 2p1\n\n\n"))
    assert got[0].source == ("the", "cat", ",", "here")
    assert got[0].sure == {(0, 0), (1, 1)} and got[0].possible == {(0, 0), (1, 1), (2, 1)}
    assert got[1].sure == got[1].possible == frozenset()
    turned, _ = read_pairs([text], links=write(tmp_path, "t", "0-0 1-1 1p2\n\n\n"), links_order="target-source")
    assert turned == got
    numbered, _ = read_pairs([text], links=write(tmp_path, "n", "3\t\n1\t0-0 1-1 2p1\n2\t\n"))
    assert numbered == got


def test_bad_links(tmp_path):
    text = write(tmp_path, "a.tsv", "one two\tun deux\nthree\ttrois\n")

    def with_links(content):
        return lambda: read_pairs([text], links=write(tmp_path, "l.txt", content))

    refused(with_links("0-0\n1-0\n"), "l.txt, line 2", "below 1 (source)", "1-0")
    refused(with_links("0-0 0:1\n\n"), "l.txt, line 1", "3-4 (sure)", "'0:1'")
    refused(with_links("0-0\n"), "2 sentences", "1 in")
    refused(with_links("1\t0-0\n5\t\n"), "found none for 2")
    refused(lambda: read_pairs([write(tmp_path, "b.po", "")], links="l.txt"), "l.txt", "catalogue")


# ------------------------------------------------------------------------------------------------------- catalogues

PO = r'''
# A comment
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=3; plural=n>1;\n"

#: code.py:3
msgid "Hello, \"world\"!"
msgstr "Bonjour, «\302\240monde\302\240»\041"

msgctxt "menu"
msgid ""
"Two "
"lines\n"
msgstr "Deux lignes\n"
#, fuzzy, python-format
#| msgid "Old"
msgid "Nearly %(name)s"
msgstr "Presque"

msgid "%d egg"
msgid_plural "%d eggs"
msgstr[0] "%d œuf"
msgstr[1] "%d d'œufs"
msgstr[2] "%d œufs"

msgid "Not yet"
msgstr ""

#~ msgid "Gone"
#~ msgstr "Parti"
'''.replace(r"\302\240", "\u00a0")


def test_po(tmp_path):
    got, notes = read_pairs([write(tmp_path, "a.po", PO)])
    assert [(" ".join(pair.source), " ".join(pair.target)) for pair in got] == [
        ('hello , " world " !', "bonjour , « monde » !"), ("two lines", "deux lignes"),
        ("%d egg", "%d œuf"), ("%d eggs", "%d œufs")]
    assert notes[1:] == ["1 left out: fuzzy", "1 left out: not translated", "1 left out: obsolete"]


def test_bad_po(tmp_path):
    def po(text):
        return lambda: read_pairs([write(tmp_path, "bad.po", text)])

    refused(po('msgid "a"\nmsgstr "b\n'), "line 2", "double quotes")
    refused(po('msgid "a"\nmsgid "b"\n'), "line 2", "one msgid")
    refused(po('msgid "a"\n\nmsgid "b"\nmsgstr "c"\n'), "line 2", "msgid with its msgstr")
    refused(po("a\tb\n"), "line 1", "expected msgid")
    refused(po('msgid ""\nmsgstr "x"\n'), "none usable")
    refused(po(b'msgid "caf\xe9"\n'), "line 1, byte 11", "UTF-8")


def mo_file(texts, order="<", charset="utf-8"):
    """A compiled catalogue, written as the format's manual page says."""
    header = f"Content-Type: text/plain; charset={charset}\n"
    encoded = [(a.encode(charset), b.encode(charset)) for a, b in sorted([("", header), *texts])]
    start = 28 + 16 * len(encoded)
    tables, blob = ([], []), b""
    for side in range(2):
        for text in encoded:
            tables[side].extend([len(text[side]), start + len(blob)])
            blob += text[side] + b"\0"
    head = struct.pack(order + "7I", 0x950412DE, 0, len(encoded), 28, 28 + 8 * len(encoded), 0, 0)
    return head + struct.pack(order + f"{4 * len(encoded)}I", *tables[0], *tables[1]) + blob


TEXTS = [("Hello", "Été"), ("menu\x04Open", "Ouvrir"), ("%d egg\0%d eggs", "%d œuf\0%d œufs"), ("Empty", "")]


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("charset", ["utf-8", "iso-8859-15"])
def test_mo(tmp_path, order, charset):
    data = mo_file(TEXTS, order, charset)
    got, notes = read_pairs([write(tmp_path, "a.mo", data)], lower=False)
    assert {(" ".join(pair.source), " ".join(pair.target)) for pair in got} == {
        ("Hello", "Été"), ("Open", "Ouvrir"), ("%d egg", "%d œuf"), ("%d eggs", "%d œufs")}
    assert notes[1:] == ["1 left out: not translated"]
    library = gettext.GNUTranslations(io.BytesIO(data))
    assert library.gettext("Hello") == "Été" and library.ngettext("%d egg", "%d eggs", 5) == "%d œufs"


def test_bad_mo(tmp_path):
    def mo(data):
        return lambda: read_pairs([write(tmp_path, "bad.mo", data)])

    whole = mo_file(TEXTS)
    refused(mo(b"nothing of the kind"), "begins with")
    refused(mo(whole[:6]), "cut short")
    refused(mo(whole[:40]), "expected 5 messages")
    refused(mo(whole[:-20]), "cut short")
    refused(mo(whole.replace(b"utf-8", b"ascii")), "charset")
    refused(mo(whole.replace(b"utf-8", b"zzz-8")), "charset")
    for end in range(1, len(whole), 7):  # whatever is cut off: an InputError, never anything else
        with pytest.raises(InputError):
            mo(whole[:end])()


def test_po_and_mo_agree_with_polib(tmp_path):
    polib = pytest.importorskip("polib")
    path = write(tmp_path, "a.po", PO.replace(r"\041", "!"))  # which polib does not know
    polib.pofile(str(path)).save_as_mofile(str(tmp_path / "a.mo"))
    ours, compiled = read_pairs([path])[0], read_pairs([tmp_path / "a.mo"])[0]
    assert set(ours) == set(compiled)
    theirs = [entry for entry in polib.pofile(str(path)).translated_entries() if not entry.obsolete]
    sides = [(entry.msgid, entry.msgstr or entry.msgstr_plural[0]) for entry in theirs]
    sides += [(entry.msgid_plural, entry.msgstr_plural[2]) for entry in theirs if entry.msgid_plural]
    assert {(tuple(tokenize(a)), tuple(tokenize(b))) for a, b in sides} == {(p.source, p.target) for p in ours}


# ------------------------------------------------------------------------------------------------------ real files

@pytest.mark.skipif(not (DATA / "tatoeba").is_dir(), reason="the sample files are not on this machine")
def test_real_table():
    corpus = load([DATA / "tatoeba/eng-fra-18k.tsv"])
    assert len(corpus.train) > 15_000 and len(corpus.validation) == 500 and len(corpus.test) > 500
    assert not {pair.source for pair in corpus.train} & {pair.source for pair in corpus.test}
    assert len({pair.source for pair in corpus.test}) == len(corpus.test)


@pytest.mark.skipif(not (DATA / "align-alibi-fr-en").is_dir(), reason="the sample files are not on this machine")
def test_real_alignments():
    sure = possible = sentences = 0
    for folder in sorted(path for path in (DATA / "align-alibi-fr-en").iterdir() if path.is_dir()):
        texts = [folder / "en.txt", folder / "fr.txt"]
        got, _ = read_pairs(texts, links=folder / "align.txt", links_order="target-source", max_length=1_000)
        sentences += len(got)
        sure += sum(len(pair.sure) for pair in got)
        possible += sum(len(pair.possible - pair.sure) for pair in got)
        refused(lambda texts=texts, folder=folder: read_pairs(texts, links=folder / "align.txt"), "align.txt, line")
    assert (sentences, sure) == (522, 8_452) and possible <= 14_147
