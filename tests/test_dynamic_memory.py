"""DMN and DMN+ as networks over stories: arrays, gradients, padding, gates and their teaching, PyTorch, learning."""
from dataclasses import dataclass, replace

import numpy as np
import pytest

from tinyattn import Tensor, nn, optim, random
from tinyattn.attention.memn2n import position_encoding
from tinyattn.autograd import no_grad
from tinyattn.functional import linear
from tinyattn.gradcheck import gradcheck
from tinyattn.models.dynamic_memory import DMN, DMNPlus, place_weights, running_order, running_words
from tinyattn.tasks.qa import Question
from tinyattn.tasks.text import Vocabulary

BOTH = [DMN, DMNPlus]


@dataclass(frozen=True)
class Options:
    hidden: int = 4
    hops: int = 2
    memory: int = 3
    dropout: float = 0.0
    gates: float = 0.5


def question(story, asked, answer, support=()):
    return Question(tuple(tuple(s.split()) for s in story), tuple(asked.split()), answer, frozenset(support))


SAMPLES = [question(["sam went home", "sam took the old ball there", "tom slept", "tom got up"], "where is sam", "a",
                    (0, 1)),
           question(["tom left"], "who", "b", (0,)),
           question(["tom took the ball", "sam went"], "where is the ball", "c", (1,))]
WORDS = Vocabulary.build([w for s in SAMPLES for w in (*s.story, s.question)])
TARGETS = np.array([0, 1, 2])


def small(kind, seed=3, **changes):
    random.manual_seed(seed)
    return kind(len(WORDS), 3, replace(Options(), **changes)).to("float64")


def taught_loss(net, arrays, targets, samples):
    """The loss of a batch, with what the network is taught beside its answers."""
    return net.loss(targets, *arrays, *net.taught(arrays, targets, samples))


# ---------------------------------------------------------------------------------------------------------------------
# arrays
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", BOTH)
def test_the_newest_sentences_are_kept_oldest_first(kind):
    story, asked, *_ = (x.numpy() for x in small(kind).arrays(SAMPLES, WORDS))
    assert story.shape == (3, 3, 6) and asked.shape == (3, 4) and story.dtype == np.int64
    texts = [[" ".join(WORDS.decode(ids)) for ids in s] for s in story]
    assert texts == [["sam took the old ball there", "tom slept", "tom got up"], ["tom left", "", ""],
                     ["tom took the ball", "sam went", ""]]
    assert [" ".join(WORDS.decode(ids)) for ids in asked] == [" ".join(s.question) for s in SAMPLES]


def test_a_story_as_running_text_and_where_its_sentences_end():
    story = np.array([[[5, 6, 0], [7, 0, 0]], [[4, 0, 0], [0, 0, 0]]])
    text, lengths, ends = running_words(story, running_order(story))
    np.testing.assert_array_equal(text, [[5, 6, 7], [4, 0, 0]])
    np.testing.assert_array_equal(lengths, [3, 1])
    np.testing.assert_array_equal(ends, [[1, 2], [0, 0]])


def test_words_count_by_their_places_in_a_sentence_of_its_own_length():
    weights = place_weights(np.array([[[5, 6, 0], [4, 0, 0], [0, 0, 0], [5, 6, 7]]]), 5, np.float64)
    for s, n in enumerate((2, 1, 0, 3)):
        np.testing.assert_array_equal(weights[0, s, n:], 0)
        if n:
            np.testing.assert_allclose(weights[0, s, :n], position_encoding(n, 5))


# ---------------------------------------------------------------------------------------------------------------------
# gradients and padding
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", BOTH)
def test_gradients_of_the_whole_loss_and_every_parameter_is_learnt(kind):
    net = small(kind)
    arrays = net.arrays(SAMPLES, WORDS)
    report = gradcheck(lambda: taught_loss(net, arrays, TARGETS, SAMPLES), [], parameters=dict(net.named_parameters()))
    assert report.ok, str(report)
    taught_loss(net, arrays, TARGETS, SAMPLES).backward()
    for name, p in net.named_parameters():
        largest = np.abs(p.grad.numpy()).max()
        assert largest < 1e-12 if name in net.null else largest > 0, name


@pytest.mark.parametrize("kind", BOTH)
def test_a_padded_batch_equals_each_question_alone(kind):
    net = small(kind)
    together, arrays = {}, net.arrays(SAMPLES, WORDS)
    logits, weights = net(*arrays).numpy(), net.hops(*arrays)
    taught_loss(net, arrays, TARGETS, SAMPLES).backward()
    together = {name: p.grad.numpy().copy() for name, p in net.named_parameters()}
    net.zero_grad()
    facts = [min(len(s.story), 3) for s in SAMPLES]
    for i, sample in enumerate(SAMPLES):
        alone = net.arrays([sample], WORDS)
        np.testing.assert_allclose(net(*alone).numpy(), logits[i:i + 1], atol=1e-12)
        np.testing.assert_allclose(net.hops(*alone)[0], weights[i, :, :facts[i]], atol=1e-12)
        np.testing.assert_array_equal(weights[i, :, facts[i]:], 0)
    for i, sample in enumerate(SAMPLES):
        net.gates = 0.5 * facts[i] / sum(facts) * 3 if kind is DMN else 0  # that term is a mean over facts
        (taught_loss(net, net.arrays([sample], WORDS), TARGETS[i:i + 1], [sample]) / 3).backward()
    for name, p in net.named_parameters():
        np.testing.assert_allclose(p.grad.numpy(), together[name], atol=1e-12, err_msg=name)


@pytest.mark.parametrize("kind", BOTH)
def test_a_question_without_a_story_and_unknown_words_have_an_answer(kind):
    net = small(kind)
    arrays = net.arrays([question([], "where is sam", "a"), question(["zzz yyy", ""], "xxx", "b")], WORDS)
    assert np.isfinite(net(*arrays).numpy()).all() and not net.hops(*arrays)[0].any()


@pytest.mark.parametrize("kind", BOTH)
def test_the_order_of_sentences_counts(kind):
    net = small(kind)
    turned = replace(SAMPLES[2], story=SAMPLES[2].story[::-1])
    a, b = (net(*net.arrays([s], WORDS)).numpy() for s in (SAMPLES[2], turned))
    assert np.abs(a - b).max() > 1e-6


@pytest.mark.parametrize("kind", BOTH)
def test_dropout_only_in_training(kind):
    net = small(kind, dropout=0.5)
    arrays = net.arrays(SAMPLES, WORDS)
    a, b = net(*arrays).numpy(), net(*arrays).numpy()
    assert np.abs(a - b).max() > 1e-6
    net.eval()
    np.testing.assert_array_equal(net(*arrays).numpy(), net(*arrays).numpy())


# ---------------------------------------------------------------------------------------------------------------------
# gates
# ---------------------------------------------------------------------------------------------------------------------
def test_with_all_gates_open_a_pass_is_the_plain_gru():
    net = small(DMN, hops=1)
    net.episode["w_2"].array[...] = 0
    net.episode["b_2"].array[...] = 50
    story, asked, *_ = net.arrays(SAMPLES[2:], WORDS)
    states, _ = net.reader(net.words(np.array([WORDS.encode(["tom", "took", "the", "ball", "sam", "went"])])))
    q = net.reader(net.words(asked))[1].squeeze(0)
    h, e = None, net.episode
    plain, memory = (nn.GRUCell(4, 4).to("float64") for _ in range(2))
    for cell, which in ((plain, "e"), (memory, "m")):
        cell.load_state_dict({"weight_ih": e[f"{which}_ih"].numpy(), "weight_hh": e[f"{which}_hh"].numpy(),
                              "bias_ih": e[f"{which}_b"].numpy(), "bias_hh": np.zeros(12)})
    for fact in (states[:, 3], states[:, 5]):
        h = plain(fact, h)
    a = net.decoder(q, memory(h, q))
    np.testing.assert_allclose(net(story, asked).numpy(), linear(a, net.answer.weight, net.answer.bias).numpy(),
                               atol=1e-12)
    np.testing.assert_allclose(net.hops(story, asked), 1)


def test_with_all_gates_closed_the_story_is_not_heard():
    net = small(DMN)
    net.episode["w_2"].array[...] = 0
    net.episode["b_2"].array[...] = -1000
    other = replace(SAMPLES[2], story=SAMPLES[0].story)
    a, b = (net(*net.arrays([s], WORDS)).numpy() for s in (SAMPLES[2], other))
    np.testing.assert_array_equal(a, b)


def test_what_the_gates_are_taught_by_hand():
    net = small(DMN)
    story = net.arrays(SAMPLES, WORDS)[0].numpy()
    gates = np.array([[[.9, .2, .1], [.5, .3, .0]], [[.6, .0, .0], [.5, .0, .0]], [[.2, .4, .0], [.1, .8, .0]]])
    chosen = 1 - (1 - gates[:, 0]) * (1 - gates[:, 1])
    # of the first story the oldest sentence, which supports, is not kept; the next one supports too
    likely = [chosen[0, 0], 1 - chosen[0, 1], 1 - chosen[0, 2], chosen[1, 0], 1 - chosen[2, 0], chosen[2, 1]]
    right, = net.taught([story], TARGETS, SAMPLES)
    loss = net.gate_loss(Tensor(gates), story, right).item()
    assert loss == pytest.approx(-np.mean(np.log(likely)), abs=1e-4)


def test_gates_wide_open_or_shut_do_not_make_the_loss_infinite():
    net = small(DMN)
    net.episode["w_2"].array[...] = 0
    for b in (1000, -1000):
        net.episode["b_2"].array[...] = b
        loss = taught_loss(net, net.arrays(SAMPLES, WORDS), TARGETS, SAMPLES)
        loss.backward()
        assert np.isfinite(loss.item()) and all(np.isfinite(p.grad.numpy()).all() for p in net.parameters())


# ---------------------------------------------------------------------------------------------------------------------
# the same in PyTorch
# ---------------------------------------------------------------------------------------------------------------------
class Twin:
    """DMN+ written in PyTorch, one sentence at a time."""

    def __init__(self, torch, net):
        self.torch = torch
        self.w = {name: torch.tensor(p.numpy().copy(), requires_grad=True) for name, p in net.named_parameters()}

    def gru(self, xs, prefix, suffix=""):
        w = {n: self.w[f"{prefix}.{n}_l0{suffix}"] for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
        h, out = self.torch.zeros(w["weight_hh"].shape[1], dtype=self.torch.float64), []
        for x in xs:
            h = self.torch.gru_cell(x[None], h[None], *w.values())[0]
            out.append(h)
        return out

    def one(self, sentences, asked):
        torch, w = self.torch, self.w
        E, D = w["words.weight"], w["words.weight"].shape[1]
        sums = [(E[s] * torch.tensor(position_encoding(len(s), D))).sum(0) for s in sentences]
        back = self.gru(sums[::-1], "fusion", "_reverse")[::-1]
        f = torch.stack([a + b for a, b in zip(self.gru(sums, "fusion"), back)])
        q = m = self.gru([E[i] for i in asked], "asker")[-1]
        for hop in range(len(w["episode.w_m"])):
            z = torch.cat([f * q, f * m, (f - q).abs(), (f - m).abs()], 1)
            scores = torch.tanh(z @ w["episode.w_1"].T + w["episode.b_1"]) @ w["episode.w_2"] + w["episode.b_2"]
            h = torch.zeros(D, dtype=torch.float64)
            for g, x in zip(torch.softmax(scores, 0), f @ w["episode.a_ih"].T + w["episode.a_b"]):
                u = w["episode.a_hh"] @ h
                h = g * torch.tanh(x[D:] + torch.sigmoid(x[:D] + u[:D]) * u[D:]) + (1 - g) * h
            m = torch.relu(w["episode.w_m"][hop] @ torch.cat([m, h, q]) + w["episode.b_m"][hop])
        return w["answer.weight"] @ torch.cat([m, q]) + w["answer.bias"]

    def loss(self, samples, memory=3):
        logits = [self.one([WORDS.encode(x) for x in s.story[-memory:]], WORDS.encode(s.question)) for s in samples]
        return self.torch.nn.functional.cross_entropy(self.torch.stack(logits), self.torch.tensor(TARGETS))


def test_dmn_plus_equals_the_same_in_pytorch_over_20_steps_of_adam():
    torch = pytest.importorskip("torch")
    net = small(DMNPlus, hops=3)
    twin, arrays = Twin(torch, net), net.arrays(SAMPLES, WORDS)
    mine, theirs = optim.Adam(net.parameters(), 0.01), torch.optim.Adam(twin.w.values(), 0.01)
    for step in range(20):
        loss, other = taught_loss(net, arrays, TARGETS, SAMPLES), twin.loss(SAMPLES)
        mine.zero_grad()
        theirs.zero_grad()
        loss.backward()
        other.backward()
        assert loss.item() == pytest.approx(other.item(), abs=1e-8)
        for name, p in net.named_parameters():
            if step == 0:
                np.testing.assert_allclose(p.grad.numpy(), twin.w[name].grad.numpy(), atol=1e-10, err_msg=name)
            if name in net.null:  # Adam makes a step of rounding errors
                p.grad = twin.w[name].grad = None
        mine.step()
        theirs.step()
    for name, p in net.named_parameters():
        np.testing.assert_allclose(p.numpy(), twin.w[name].detach().numpy(), rtol=0, atol=1e-8, err_msg=name)


# ---------------------------------------------------------------------------------------------------------------------
# learning
# ---------------------------------------------------------------------------------------------------------------------
def where_is(rng, count):
    """Stories of two to six moves of three people between four places; where is one of them?"""
    people, places, samples = ["sam", "tom", "ann"], ["kitchen", "garden", "office", "hall"], []
    for _ in range(count):
        moves = [(people[rng.integers(3)], places[rng.integers(4)]) for _ in range(rng.integers(2, 7))]
        who = moves[rng.integers(len(moves))][0]
        last = max(i for i, (person, _) in enumerate(moves) if person == who)
        samples.append(question([f"{p} went to the {place}" for p, place in moves], f"where is {who}",
                                moves[last][1], (last,)))
    return samples


@pytest.mark.parametrize("kind, gates", [(DMN, 1.0), (DMNPlus, 0.0)])
def test_it_learns_where_somebody_is_and_looks_at_the_sentence_that_says_so(kind, gates):
    rng = np.random.default_rng(0)
    train, test = where_is(rng, 400), where_is(rng, 200)
    words = Vocabulary.build([w for s in train for w in (*s.story, s.question)])
    answers = sorted({s.answer for s in train})
    random.manual_seed(1)
    net = kind(len(words), len(answers), Options(hidden=24, hops=2, memory=10, gates=gates))
    adam = optim.Adam(net.parameters(), 0.01)
    for _ in range(160):
        batch = [train[i] for i in rng.integers(len(train), size=32)]
        loss = taught_loss(net, net.arrays(batch, words), np.array([answers.index(s.answer) for s in batch]), batch)
        adam.zero_grad()
        loss.backward()
        optim.clip_grad_norm(net.parameters(), 1.0)
        adam.step()
    arrays = net.arrays(test, words)
    with no_grad():
        best = net(*arrays).numpy().argmax(1)
    assert np.mean([answers[i] == s.answer for i, s in zip(best, test)]) > 0.95
    looked = net.hops(*arrays).max(1).argmax(1)
    assert np.mean([i in s.support for i, s in zip(looked, test)]) > (0.9 if gates else 0.6)
