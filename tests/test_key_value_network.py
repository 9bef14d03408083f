"""KV-MemNN as a network: memories from pairs, sentences and windows, one tied table, gradients, padding, learning."""
from dataclasses import dataclass, replace

import numpy as np
import pytest

from tinyattn import optim, random
from tinyattn.autograd import no_grad
from tinyattn.gradcheck import gradcheck
from tinyattn.models.key_value_network import KeyValueNetwork
from tinyattn.tasks.qa import Question
from tinyattn.tasks.text import Vocabulary


@dataclass(frozen=True)
class Options:
    hidden: int = 5
    hops: int = 2
    memory: int = 3
    windows: int = 0
    dropout: float = 0.0


STORIES = [Question((("old",), ("sam", "went", "home"), ("tom", "took", "ball"), ("tom", "slept")), ("where", "sam"),
                    "home"),
           Question((("ball", "lay", "home"),), ("what", "lay"), "ball,home")]
ALIEN, HEAT = "Alien", "Michael Mann"
FILMS = [Question((), ("who", "made", ALIEN), "Ridley Scott", answers=("Ridley Scott",), pairs=(
             ((ALIEN, "directed_by"), ("Ridley Scott",)), ((ALIEN, "release_year"), ("1979",)),
             (("Ridley Scott", "directed_by [inverse]"), (ALIEN,)))),
         Question((), ("films", "by", HEAT), "Heat", answers=("Heat",), pairs=(
             ((HEAT, "directed_by [inverse]"), ("Heat",)),))]
ANSWERS = {"stories": ["home", "ball", "ball,home"], "films": ["1979", ALIEN, "Heat", "Ridley Scott"]}
SAMPLES = {"stories": STORIES, "films": FILMS}


def vocabulary(samples):
    return Vocabulary.build(w for s in samples for w in (*s.story, s.question, *(x for pair in s.pairs for x in pair)))


def small(which="stories", seed=2, tied=True, **changes):
    """A network, the vocabulary, arrays of its samples, and the targets."""
    random.manual_seed(seed)
    words, answers = vocabulary(SAMPLES[which]), ANSWERS[which]
    ids = [i if i != Vocabulary.UNK else -1 for i in words.encode(answers)]
    net = KeyValueNetwork(len(words), len(answers), replace(Options(), **changes), answer_words=ids, tied=tied)
    net = net.to("float64")
    targets = np.array([answers.index(s.answer) for s in SAMPLES[which]])
    return net, words, net.arrays(SAMPLES[which], words), targets


def taught_loss(net, arrays, targets, samples):
    """The loss of a batch, with what the network is taught beside its answers."""
    return net.loss(targets, *arrays, *net.taught(arrays, targets, samples))


def texts(net, words, ids):
    """Word numbers as words: "1:word" of the second dictionary, "@n" for an age."""
    V = len(words)
    names = [f"@{i - net.ages}" if i >= net.ages else words.to_list()[i % V] for i in ids if i]
    return " ".join(("1:" if V <= i < net.ages else "") + name for name, i in zip(names, [i for i in ids if i]))


# ---------------------------------------------------------------------------------------------------------------------
# memories
# ---------------------------------------------------------------------------------------------------------------------
def test_the_sentences_of_a_story_are_its_memories_with_their_age_in_the_key():
    net, words, (question, keys, values, origin), _ = small()
    assert [texts(net, words, k) for k in keys.numpy()[0]] == ["sam went home @2", "tom took ball @1", "tom slept @0"]
    assert [texts(net, words, v) for v in values.numpy()[0]] == ["sam went home", "tom took ball", "tom slept"]
    assert [texts(net, words, k) for k in keys.numpy()[1]] == ["ball lay home @0", "", ""]
    assert [texts(net, words, q) for q in question.numpy()] == ["where sam", "what lay"]
    np.testing.assert_array_equal(origin.numpy(), [[0, 1, 2], [0, -1, -1]])


def test_windows_stand_around_words_that_are_answers():
    net, words, (_, keys, values, origin), _ = small(windows=1)
    assert [texts(net, words, k) for k in keys.numpy()[0]] == ["1:went home @2", "1:took ball @1", "tom slept @0"]
    assert [texts(net, words, v) for v in values.numpy()[0]] == ["home", "ball", "tom slept"]
    assert [texts(net, words, k) for k in keys.numpy()[1]] == ["1:lay ball @0", "1:lay home @0", ""]
    np.testing.assert_array_equal(origin.numpy(), [[0, 1, 2], [0, 0, -1]])


def test_weights_of_windows_are_added_up_by_sentence():
    net, _, arrays, _ = small(windows=1)
    hops = net.hops(*arrays)
    assert hops.shape == (2, 2, 3)
    np.testing.assert_allclose(hops.sum(2), 1)
    np.testing.assert_allclose(hops[1, :, 0], 1)
    np.testing.assert_array_equal(hops[1, :, 1:], 0)


def test_pairs_are_memories_as_they_are_and_keep_their_numbers():
    net, words, (_, keys, values, _), _ = small("films")
    assert [texts(net, words, k) for k in keys.numpy()[0]][:2] == [f"{ALIEN} directed_by", f"{ALIEN} release_year"]
    assert [texts(net, words, v) for v in values.numpy()[0]] == ["Ridley Scott", "1979", ALIEN]
    other = Vocabulary.build([*[["before"]] * 9, *([w] for w in words.to_list()[4:])])  # the same pairs, other numbers
    again = net.arrays(FILMS, other)
    assert [texts(net, other, v) for v in again[2].numpy()[0]] == ["Ridley Scott", "1979", ALIEN]
    for a, b in zip(net.arrays(FILMS, words), small("films")[2]):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


# ---------------------------------------------------------------------------------------------------------------------
# the network
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("which, changes", [("stories", {}), ("stories", {"windows": 1, "hops": 1}), ("films", {}),
                                            ("films", {"tied": False})], ids=str)
def test_gradients_of_the_whole_loss_and_every_parameter_is_learnt(which, changes):
    net, _, arrays, targets = small(which, **changes)
    samples = SAMPLES[which]
    report = gradcheck(lambda: taught_loss(net, arrays, targets, samples), [], parameters=dict(net.named_parameters()))
    assert report.ok, str(report)
    taught_loss(net, arrays, targets, samples).backward()
    assert all(p.grad is not None and p.grad.numpy().any() for p in net.parameters())
    assert not net.table.grad.numpy()[0].any()


def test_one_table_serves_question_keys_values_and_answers():
    net, words, arrays, _ = small("films")
    assert [name for name, _ in net.named_parameters()] == ["table", "between"]
    assert len(net.table) == len(words) + 3                                # and ages
    T, (question, keys, values, _) = net.table.numpy(), (a.numpy() for a in arrays)
    q = T[question[0]].sum(0)
    for r in (0.25 * np.eye(5), np.eye(5)):                                # R at first, and none before the answer
        p = np.exp(T[keys[0]].sum(1) @ q)
        q = r @ (q + (p / p.sum()) @ T[values[0]].sum(1))
    scores = T[words.encode(ANSWERS["films"])] @ q
    np.testing.assert_allclose(net(*arrays).numpy()[0], scores, atol=1e-12)


def test_untied_answers_and_answers_that_are_no_word_have_rows_of_their_own():
    net, words, *_ = small()
    assert net.places.tolist() == [*words.encode(["home", "ball"]), len(words) + 3]
    free, words, arrays, _ = small(tied=False)
    assert free.places.tolist() == [len(words) + 3 + i for i in range(3)]
    free.table.array[free.places] = 0
    np.testing.assert_array_equal(free(*arrays).numpy(), 0)


@pytest.mark.parametrize("which, changes", [("stories", {}), ("stories", {"windows": 1}), ("films", {})], ids=str)
def test_a_padded_batch_equals_each_question_alone(which, changes):
    net, words, arrays, targets = small(which, **changes)
    net.eval()
    logits, weights = net(*arrays).numpy(), net.hops(*arrays)
    taught_loss(net, arrays, targets, SAMPLES[which]).backward()
    together = {name: p.grad.numpy().copy() for name, p in net.named_parameters()}
    net.zero_grad()
    for i, sample in enumerate(SAMPLES[which]):
        alone = net.arrays([sample], words)
        np.testing.assert_allclose(net(*alone).numpy()[0], logits[i], atol=1e-12)
        own = net.hops(*alone)[0]
        np.testing.assert_allclose(weights[i, :, :own.shape[1]], own, atol=1e-12)
        np.testing.assert_array_equal(weights[i, :, own.shape[1]:], 0)
        (taught_loss(net, alone, targets[i:i + 1], [sample]) / 2).backward()
    for name, p in net.named_parameters():
        np.testing.assert_allclose(p.grad.numpy(), together[name], atol=1e-12, err_msg=name)


def test_in_training_the_right_answer_is_told_from_those_of_the_batch():
    net, words, arrays, targets = small("films")
    scores = net(*arrays).numpy()
    first = net.arrays(FILMS[1:], words)                                   # names Heat alone
    assert taught_loss(net, first, targets[1:], FILMS[1:]).item() == pytest.approx(0, abs=1e-12)
    everything = -(scores - np.log(np.exp(scores).sum(1, keepdims=True)))[[0, 1], targets]
    assert taught_loss(net, arrays, targets, FILMS).item() == pytest.approx(everything.mean(), abs=1e-12)
    net.eval()
    assert taught_loss(net, first, targets[1:], FILMS[1:]).item() == pytest.approx(everything[1], abs=1e-12)


def test_a_question_without_memories_and_unknown_words_have_an_answer():
    net, words, *_ = small()
    arrays = net.arrays([Question((), ("zzz",), "home"), Question(((), ("zzz",)), (), "home")], words)
    assert np.isfinite(net(*arrays).numpy()).all() and not net.hops(*arrays)[0].any()


def test_it_answers_about_entities_that_no_training_question_named():
    """200 people with a home and a job each. Asked about the first 150; tested on the others, whose vectors nobody
    taught: what is learnt is which words of a question go with which relation."""
    rng = np.random.default_rng(0)
    people, values = [f"P{i}" for i in range(200)], [f"V{i}" for i in range(60)]
    facts = {p: {"lives_in": values[rng.integers(30)], "works_as": values[30 + rng.integers(30)]} for p in people}
    ways = {"lives_in": [("where", "lives"), ("home", "of")], "works_as": [("what", "does"), ("job", "of")]}

    def ask(person, others):
        relation = list(ways)[rng.integers(2)]
        pairs = tuple(((p, r), (v,)) for p in (person, *others) for r, v in facts[p].items())
        words = (*ways[relation][rng.integers(2)], person)
        return Question((), words, facts[person][relation], pairs=pairs)

    train = [ask(people[i], rng.choice(people, 3, False)) for i in rng.integers(150, size=400)]
    test = [ask(people[i], rng.choice(people, 3, False)) for i in range(150, 200)]
    words = Vocabulary.build([*vocabulary_words(train), *vocabulary_words(test)])
    random.manual_seed(0)
    net = KeyValueNetwork(len(words), 60, Options(hidden=64, memory=8), answer_words=words.encode(values))
    adam = optim.Adam(net.parameters(), 0.01)
    for _ in range(200):
        batch = [train[i] for i in rng.integers(len(train), size=32)]
        loss = taught_loss(net, net.arrays(batch, words), np.array([values.index(s.answer) for s in batch]), batch)
        adam.zero_grad()
        loss.backward()
        adam.step()
    net.eval()
    with no_grad():
        best = net(*net.arrays(test, words)).numpy().argmax(1)
    assert np.mean([values[i] == s.answer for i, s in zip(best, test)]) > 0.8


def vocabulary_words(samples):
    return [w for s in samples for w in (s.question, *(x for pair in s.pairs for x in pair))]
