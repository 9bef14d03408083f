"""The end-to-end memory network: against PyTorch step by step, tying, linear start, noise, empty slots, its arrays."""
import math
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from tinyattn import Tensor, grad, no_grad, optim, random
from tinyattn.attention import find
from tinyattn.attention.memn2n import position_encoding
from tinyattn.functional import cross_entropy, linear
from tinyattn.gradcheck import gradcheck, gradgradcheck
from tinyattn.models.memory_network import MemoryNetwork
from tinyattn.nn.module import example_of
from tinyattn.tasks.text import Vocabulary

WORDS = Vocabulary(["mary", "john", "sam", "went", "to", "the", "kitchen", "garden", "office", "where", "is", "took",
                    "apple"])
ANSWERS = ("kitchen", "garden", "office", "apple", "apple,milk")


@dataclass(frozen=True)
class Told:
    story: tuple
    question: tuple
    answer: str


def told(story, question, answer="kitchen"):
    return Told(tuple(tuple(s.split()) for s in story.split(".") if s), tuple(question.split()), answer)


STORIES = [told("mary went to the kitchen.john went to the garden.sam took the apple", "where is mary"),
           told("john went to the office", "where is the apple", "office"),
           told("sam went to the garden.sam took the apple.mary went to the garden.sam went to the office.john is",
                "where is sam", "apple,milk"),
           told("mary took the apple.mary went to the garden", "where is the apple", "garden")]


def options(**changes):
    return SimpleNamespace(**{
        "hidden": 6, "hops": 3, "encoding": "position", "form": "paper", "tying": "adjacent", "temporal": True,
        "random_noise": 0.0, "linear_start": 0, "memory": 50, "nonlinear": False, "dropout": 0.0, **changes})


def network(seed=0, story=5, words=True, dtype="float64", **changes):
    random.manual_seed(seed)
    ids = [-1 if i == Vocabulary.UNK else i for i in WORDS.encode(ANSWERS)] if words else None
    return MemoryNetwork(len(WORDS), len(ANSWERS), options(**changes), story, 5, ids).to(dtype)


def targets(samples):
    return Tensor(np.array([ANSWERS.index(s.answer) for s in samples]))


# ---------------------------------------------------------------------------------------------------------------------
# the same model in PyTorch
# ---------------------------------------------------------------------------------------------------------------------
def torch_shares(words, D, form, J):
    """l (B, S, J, D) for word ids (B, S, J), and that of the time (D,)."""
    out = np.zeros((*words.shape, D))
    for at in np.ndindex(*words.shape[:2]):
        n = int((words[at] != 0).sum()) if form == "paper" else J
        for j, k in np.ndindex(words.shape[2], D):
            if form == "paper" and j < n:
                out[(*at, j, k)] = (1 - (j + 1) / n) - (k + 1) / D * (1 - 2 * (j + 1) / n)
            elif form == "code":
                out[(*at, j, k)] = 1 + 4 * (k + 1 - (D + 1) / 2) * (j + 1 - (J + 1) / 2) / (D * J)
    last = [1 + 4 * (k + 1 - (D + 1) / 2) * (J - (J + 1) / 2) / (D * J) if form == "code" else 1 for k in range(D)]
    return out, last


def torch_model(torch, p, story, question, rows, form, relu):
    """Logits as a function of `softmax`. p {name: torch tensor} as in `state_dict`: W is `w`, or `rows` of the last
    table with `own` below it."""
    D, adjacent = p["tables.0"].shape[1], "h" not in p
    empty = (story == 0).all(2)
    ages = torch.tensor([[int((~empty[b, s + 1:]).sum()) for s in range(story.shape[1])] for b in range(len(story))])

    def sentences(words):
        share, last = (torch.tensor(np.array(a)) for a in torch_shares(words, D, form, 6))
        ids, there = torch.tensor(words), torch.tensor(words != 0)[..., None]

        def of(table, time=None):
            x = (p[f"tables.{table}"][ids] * share * there).sum(2)
            return x if time is None else x + p[f"times.{time}"][ages] * last * torch.tensor(~empty)[..., None]
        return of

    told, asked = sentences(story), sentences(question[:, None])

    def logits(softmax):
        u = asked(0 if adjacent else 2)[:, 0]
        for hop in range(3):
            m, c = (told(i, i) for i in ((hop, hop + 1) if adjacent else (0, 1)))
            scores = torch.einsum("bsd,bd->bs", m, u)
            weights = torch.softmax(scores, 1) if softmax else scores
            u = (u if adjacent else u @ p["h"].T) + torch.einsum("bs,bsd->bd", weights, c)
            u = torch.relu(u) if relu else u
        return u @ (p["w"] if "w" in p else torch.cat([p["tables.3"], p["own"]])[torch.tensor(rows)]).T
    return logits


@pytest.mark.parametrize("changes", [{}, {"form": "code"}, {"tying": "layerwise"},
                                     {"tying": "layerwise", "form": "code", "nonlinear": True}],
                         ids=["paper", "code", "layer-wise", "larger"])
def test_20_steps_of_sgd_with_clipping_are_pytorchs(changes):
    torch = pytest.importorskip("torch")
    net = network(linear_start=1, **changes)
    for t in net.parameters():  # N(0, 0.1) in so narrow a model is close to nothing
        t.array[...] *= 4
    p = {name: torch.tensor(a, requires_grad=True) for name, a in net.state_dict().items() if name != "_rows"}
    story, question = net.arrays(STORIES, WORDS)
    model = torch_model(torch, p, story.numpy(), question.numpy(), None if net._rows is None else net._rows.numpy(),
                        net.options.form, net.options.nonlinear)
    optimizer, theirs = optim.SGD(net.parameters(), 0.5), torch.optim.SGD(p.values(), 0.5)
    wanted, clipped, losses = torch.tensor(targets(STORIES).numpy()), set(), []
    for step in range(20):
        net.at_epoch(step // 10)                                           # linear start, then softmax
        loss = cross_entropy(net(story, question), targets(STORIES))
        optimizer.zero_grad()
        loss.backward()
        clipped.add(optim.clip_grad_norm(net.parameters(), 0.5) > 0.5)
        optimizer.step()
        expected = torch.nn.functional.cross_entropy(model(softmax=step >= 10), wanted)
        theirs.zero_grad()
        expected.backward()
        torch.nn.utils.clip_grad_norm_([t for t in p.values() if t.grad is not None], 0.5)
        theirs.step()
        losses.append(loss.item())
        assert abs(losses[-1] - expected.item()) < 1e-8
    assert True in clipped and losses[-1] < 0.6 * losses[0]
    for name, t in net.named_parameters():
        np.testing.assert_allclose(t.numpy(), p[name].detach().numpy(), rtol=0, atol=1e-8, err_msg=name)


# ---------------------------------------------------------------------------------------------------------------------
# what it is made of
# ---------------------------------------------------------------------------------------------------------------------
def test_it_is_the_mechanism_and_a_matrix():
    net = network().eval()
    ids = net.arrays(STORIES, WORDS)
    u, weights = find("memn2n")(*ids, net.tables, net.times, hops=3, return_weights=True)
    last = np.concatenate([net.tables[3].numpy(), net.own.numpy()])[[10, 11, 12, 16, 17]]
    np.testing.assert_allclose(net(*ids).numpy(), linear(u, Tensor(last)).numpy(), rtol=1e-12)
    np.testing.assert_allclose(net.hops(*ids), weights.numpy(), rtol=1e-12)


@pytest.mark.parametrize("changes, tables, times", [({}, 4, 4), ({"hops": 1}, 2, 2), ({"temporal": False}, 4, 0),
                                                    ({"tying": "layerwise"}, 3, 2)])
def test_tied_tables_are_one_tensor_each(changes, tables, times):
    net = network(**changes)
    names = [name for name, _ in net.named_parameters()]
    assert [n for n in names if n.startswith("tables")] == [f"tables.{i}" for i in range(tables)]
    assert [n for n in names if n.startswith("times")] == [f"times.{i}" for i in range(times)]
    V, D, layer_wise = len(WORDS), 6, net.h is not None
    assert [n for n in names if n[0] != "t"] == (["h", "w"] if layer_wise else ["own"])
    beside = D * D + len(ANSWERS) * D if layer_wise else D                 # H and W, or the row of "apple,milk"
    assert net.number_of_parameters() == tables * V * D + times * 5 * D + beside
    assert len(optim.SGD(net.parameters(), 1.0).slots) == len(names)


def test_the_answers_rows_are_those_of_the_last_table():
    net = network()
    w = net.output_weight()
    np.testing.assert_array_equal(w.numpy()[:4], net.tables[3].numpy()[WORDS.encode(ANSWERS[:4])])
    np.testing.assert_array_equal(w.numpy()[4], net.own.numpy()[0])  # "apple,milk" is no word of the stories
    d_table, d_own = grad((w * Tensor(np.arange(30.0).reshape(5, 6))).sum(), [net.tables[3], net.own])
    np.testing.assert_array_equal(d_table.numpy()[WORDS.encode(["kitchen"])], np.arange(6.0)[None])
    np.testing.assert_array_equal(d_own.numpy(), np.arange(24.0, 30)[None])
    assert network(words=False).w.shape == (5, 6) and network(words=False).own is None


def test_first_weights():
    net = network(hidden=100)
    for table in net.tables:
        np.testing.assert_array_equal(table.numpy()[0], 0)
    assert abs(net.tables[1].numpy()[1:].std() - 0.1) < 0.01 and abs(net.times[0].numpy().std() - 0.1) < 0.02


@pytest.mark.parametrize("changes", [{}, {"form": "code"}, {"encoding": "bag"}, {"tying": "layerwise"},
                                     {"tying": "layerwise", "nonlinear": True}, {"temporal": False}])
def test_gradients(changes):
    random.manual_seed(1)
    module, inputs = example_of(MemoryNetwork, np.random.default_rng(0))
    net = MemoryNetwork(7, 4, options(hidden=3, hops=2, **changes), 3, 3, [5, -1, 2, 6]).to("float64").eval()
    for p in net.parameters():  # as large as after training, so that no curve is almost straight
        p.array[...] *= 6
    for check in (gradcheck, gradgradcheck):
        report = check(lambda *ids, net=net: net(*ids), inputs, parameters=dict(net.named_parameters()))
        assert report.ok, str(report)
    assert module(*inputs).shape == (2, 4)


@pytest.mark.parametrize("changes", [{}, {"tying": "layerwise", "dropout": 0.2, "random_noise": 0.1}])
def test_every_parameter_is_learnt(changes):
    net = network(**changes)
    loss = cross_entropy(net(*net.arrays(STORIES, WORDS)), targets(STORIES))
    for (name, _), g in zip(net.named_parameters(), grad(loss, list(net.parameters()))):
        assert (g.numpy() != 0).any(), name


# ---------------------------------------------------------------------------------------------------------------------
# empty slots, linear start, noise, rates
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("form", ["paper", "code"])
def test_empty_slots_take_their_share_and_learn_nothing(form):
    net = network(form=form).eval()
    story, question = net.arrays(STORIES, WORDS)
    weights = net.hops(story, question)                                    # (B, hops, M)
    assert weights.shape == (4, 3, 5)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-12)
    empty = (story.numpy() == 0).all(-1)
    assert empty.sum(1).tolist() == [2, 4, 0, 3] and (weights.transpose(0, 2, 1)[empty] > 0.05).all()
    with no_grad():
        scores = np.log(weights[1, 0] / weights[1, 0, 4])                  # an empty slot has score 0
    asked = (net.tables[0].numpy()[question.numpy()[1]] * (position_encoding(4, 6) if form == "paper" else
             position_encoding(6, 6, "code")[:4])).sum(0)
    told = (net.tables[0].numpy()[story.numpy()[1, 0]] * (position_encoding(5, 6) if form == "paper" else
            position_encoding(6, 6, "code")[:5])).sum(0)
    time = net.times[0].numpy()[0] * (1 if form == "paper" else position_encoding(6, 6, "code")[5])
    np.testing.assert_allclose(scores, [asked @ (told + time), 0, 0, 0, 0], atol=1e-12)
    for g in grad(cross_entropy(net(story, question), targets(STORIES)), net.tables):
        np.testing.assert_array_equal(g.numpy()[0], 0)
        assert (g.numpy()[4:] != 0).any()


def test_linear_start_is_of_the_first_epochs_and_of_training_alone():
    net = network(linear_start=20)
    ids = net.arrays(STORIES, WORDS)
    seen = {}
    for epoch in (0, 19, 20, 100):
        net.at_epoch(epoch)
        seen[epoch] = net.train()(*ids).numpy(), net.eval()(*ids).numpy()
    direct = find("memn2n")(*ids, net.tables, net.times, hops=3, softmax=False)
    np.testing.assert_allclose(seen[0][0], linear(direct, net.output_weight()).numpy(), rtol=1e-12)
    for epoch in seen:
        np.testing.assert_array_equal(seen[epoch][1], seen[20][1])
        assert np.array_equal(seen[epoch][0], seen[20][0]) == (epoch >= 20)


def test_rates():
    net, none = network(linear_start=20), network()
    assert [net.rate_factor(e) for e in (0, 19, 20, 44, 45, 69, 70, 119)] == [0.5, 0.5, 1, 1, 0.5, 0.5, 0.25, 0.125]
    assert [none.rate_factor(e) for e in (0, 24, 25, 99)] == [1, 1, 0.5, 0.125]


def test_noise_is_up_to_a_tenth_and_in_training_alone():
    net = network(story=50, random_noise=0.1)
    one = told(".".join(["mary went to the kitchen"] * 20), "where is mary")
    story, question = net.arrays([one] * 400, WORDS)
    ages = net._ages(story.numpy())[:, :20]
    assert (np.diff(ages) < 0).all() and ages.min() >= 0
    blanks = ages[:, 0] - 19                                               # those after the oldest sentence
    assert set(blanks.tolist()) == {0, 1, 2}
    expected = np.mean([0, 20 / 21, 2 * 20 / 21])                          # each is after it with probability 20/21
    assert abs(blanks.mean() - expected) < 4 * math.sqrt(2 / 3 / 400)
    assert len(np.unique(net(story, question).numpy()[:, 0])) > 3
    net.eval()
    np.testing.assert_array_equal(net._ages(story.numpy())[0, :20], np.arange(19, -1, -1))


def test_noise_comes_from_the_packages_random_numbers():
    net = network(random_noise=0.5)
    ids = net.arrays(STORIES, WORDS)
    state = random.get_state()
    first, second = net(*ids).numpy(), net(*ids).numpy()
    random.set_state(state)
    np.testing.assert_array_equal(net(*ids).numpy(), first)
    assert (first != second).any()


def test_dropout_acts_on_what_the_question_became_and_in_training_alone():
    net = network(dropout=0.5)
    ids = net.arrays(STORIES, WORDS)
    assert (net(*ids).numpy() != net(*ids).numpy()).any()
    np.testing.assert_array_equal(net.eval()(*ids).numpy(), network().eval()(*ids).numpy())


# ---------------------------------------------------------------------------------------------------------------------
# samples to arrays
# ---------------------------------------------------------------------------------------------------------------------
def test_the_newest_sentences_are_kept_oldest_first():
    net = network(memory=3, story=5)
    story, question = net.arrays([STORIES[2], STORIES[1]], WORDS)
    assert story.shape == (2, 3, 5) and question.shape == (2, 4) and story.dtype == np.int64
    assert WORDS.decode(story.numpy()[0, 0]) == ["mary", "went", "to", "the", "garden"]
    assert WORDS.decode(story.numpy()[0, 2]) == ["john", "is"] and story.numpy()[1, 1:].max() == 0
    assert WORDS.decode(question.numpy()[0]) == ["where", "is", "sam"]
    again = net.arrays([STORIES[2], STORIES[1]], WORDS)                    # from what was kept
    np.testing.assert_array_equal(again[0].numpy(), story.numpy())
    other = Vocabulary(["is", "john"])                                     # another vocabulary, other numbers
    assert net.arrays([STORIES[2]], other)[0].numpy()[0, 2].tolist()[:2] == [5, 4]


@pytest.mark.parametrize("changes", [{"form": "paper"}, {"form": "code"}, {"encoding": "bag"}, {"tying": "layerwise"}])
@pytest.mark.parametrize("story", [5, 2])  # 2: longer stories than any in training
def test_a_batch_is_its_samples_alone(changes, story):
    net = network(story=story, **changes)
    for p in net.parameters():
        p.array[...] *= 5
    samples = [*STORIES, told("", "where"), told("", "")]
    logits, weights = net.eval()(*net.arrays(samples, WORDS)), net.hops(*net.arrays(samples, WORDS))
    whole = grad(logits.sum(), list(net.parameters()))
    parts = [0] * len(whole)
    for b, sample in enumerate(samples):
        alone = net(*net.arrays([sample], WORDS))
        np.testing.assert_allclose(alone.numpy()[0], logits.numpy()[b], rtol=1e-11)
        w = net.hops(*net.arrays([sample], WORDS))[0]
        np.testing.assert_allclose(w, weights[b, :, :w.shape[1]], rtol=1e-11)
        assert (weights[b, :, w.shape[1]:] == 0).all()
        parts = [p + g.numpy() for p, g in zip(parts, grad(alone.sum(), list(net.parameters())))]
    for g, p in zip(whole, parts):
        np.testing.assert_allclose(g.numpy(), p, rtol=1e-9, atol=1e-11)


def test_sentences_beyond_those_of_training_have_the_greatest_age_learnt():
    net = network(story=2).eval()
    assert net._ages(net.arrays(STORIES[2:3], WORDS)[0].numpy()).tolist() == [[1, 1, 1, 1, 0]]


def test_strange_samples():
    net = network().eval()
    assert net(*net.arrays([], WORDS)).shape == (0, 5)
    out = net(*net.arrays([told("", ""), told("who. .xyz", "what")], WORDS)).numpy()
    assert out.shape == (2, 5) and np.isfinite(out).all()


# ---------------------------------------------------------------------------------------------------------------------
# learning
# ---------------------------------------------------------------------------------------------------------------------
def moves(n, seed):
    rng, people, places = np.random.default_rng(seed), ("mary", "john", "sam"), ANSWERS[:3]
    found = []
    for _ in range(n):
        at, story = {}, []
        for _ in range(rng.integers(2, 6)):
            who, where = rng.choice(people), rng.choice(places)
            at[who] = where
            story.append(f"{who} went to the {where}")
        who = sorted(at)[rng.integers(len(at))]
        found.append(told(".".join(story), f"where is {who}", str(at[who])))
    return found


def test_it_learns_who_is_where():
    net = network(dtype="float32", hidden=10, form="code", random_noise=0.1, linear_start=3)
    train, test = moves(600, 1), moves(200, 2)
    optimizer, rng = optim.SGD(net.parameters(), 0.32), np.random.default_rng(0)
    for epoch in range(20):
        net.at_epoch(epoch)
        optimizer.lr = 0.32 * net.rate_factor(epoch)
        order = rng.permutation(len(train))
        for i in range(0, len(train), 32):
            batch = [train[j] for j in order[i:i + 32]]
            loss = cross_entropy(net.train()(*net.arrays(batch, WORDS)), targets(batch))
            optimizer.zero_grad()
            loss.backward()
            optim.clip_grad_norm(net.parameters(), 1.25)
            optimizer.step()
    best = net.eval()(*net.arrays(test, WORDS)).numpy().argmax(1)
    assert (best == targets(test).numpy()).mean() > 0.95
