"""The system `qa`: its networks, what it measures and shows, the story of the survey's figure 3, the LSTM reader."""
import json

import numpy as np
import pytest
from test_train import assert_same_run

import tinyattn as ta
from tinyattn import Tensor, optim, random
from tinyattn.config import Config
from tinyattn.errors import InputError
from tinyattn.functional import cross_entropy
from tinyattn.gradcheck import gradcheck
from tinyattn.models.lstm_reader import LSTMReader
from tinyattn.models.qa import NETWORKS, QA, Options
from tinyattn.tasks import stories
from tinyattn.tasks.corpus import Corpus
from tinyattn.tasks.qa import Question, cut
from tinyattn.tasks.text import Vocabulary
from tinyattn.train import train

STORY = "Sam walks into the kitchen. Sam picks up an apple. Sam walks into the bedroom. Sam drops the apple. "


def told(text, question="Where is Sam?", answer="attic", support=(0,), task="1"):
    sentences = tuple(cut(s) for s in text.split(".") if s.strip())
    return Question(sentences, cut(question), answer, frozenset(support), task)


def small_corpus(sizes=(40, 10, 20), kind="1", only=lambda story, support: True):
    """Stories with seed 1, of the questions those that `only` wants."""
    parts = stories.generate(kind, sizes, 1)
    return Corpus(*([Question(tuple(map(cut, s)), cut(q), a, frozenset(w), kind) for s, q, a, w in part if only(s, w)]
                    for part in parts))


def small(corpus=None, seed=1, **options):
    corpus = corpus or small_corpus()
    ta.manual_seed(seed)
    system = QA.build(Options(**{"hidden": 6, "hops": 2, **options}), corpus)
    system.corpus = corpus
    return system


# ---------------------------------------------------------------------------------------------------------------------
# any network
# ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("attention", NETWORKS)
def test_every_network_trains_answers_and_shows_its_hops(attention):
    system = small(attention=attention)
    before = system.mean_loss(system.corpus.train)
    train(system, Config.of(system, steps=12, validate_every=6, schedule="constant"))
    assert system.mean_loss(system.corpus.train) < before
    result = system.evaluate("test")
    assert result["questions"] == 20 and 0 <= result["accuracy"] <= 1
    assert result["error"] == pytest.approx(100 * (1 - result["accuracy"])) and result["by_task"][0][:2] == ["1", 20]
    assert ("gold_mass" in result) == (attention != "none")
    prediction = system.predict(STORY + "Where is Sam?")
    assert prediction.record["answer"] in system.answers and json.dumps(prediction.record)
    if attention == "none":
        assert not prediction.looks and system.weights(system.corpus.test) == [None] * 20
        return
    weights, rows, columns, title, _ = prediction.looks[0].as_map()
    assert weights.shape == (2, 4) and rows == ["hop 1", "hop 2"] and columns[3] == "sam drops the apple"
    assert title.startswith("where is sam?") and (weights >= 0).all() and weights.max() <= 1
    assert attention == "dmn" or (weights.sum(1) <= 1 + 1e-5).all()  # the gates of dmn are no distribution
    assert result["by_hop"][0].keys() == {"gold_mse", "gold_kl", "gold_mass", "gold_top"}


@pytest.mark.parametrize("attention", NETWORKS)
def test_a_batch_answers_as_each_question_alone(attention):
    corpus = small_corpus(kind="2")
    system = small(corpus, attention=attention)
    system.model.to(np.float64)
    some = corpus.train[:6]
    together = system.probabilities(some)
    for q, p, w in zip(some, together, system.weights(some)):
        np.testing.assert_allclose(system.probabilities([q])[0], p, atol=1e-12)
        if w is not None:
            np.testing.assert_allclose(system.weights([q])[0], w, atol=1e-12)
            assert w.shape == (2, len(q.story))


@pytest.mark.parametrize("attention", NETWORKS)
def test_a_run_goes_on_bit_for_bit_and_comes_back(attention, tmp_path):
    options = {"attention": attention, "linear_start": 2, "dropout": 0.1}
    config = Config.of(small(**options), steps=10, validate_every=4, seed=3, batch_size=8)
    train(small(**options), config, run=tmp_path / "whole")
    train(small(**options), config, run=tmp_path / "parts", stop_at=5)
    train(small(seed=9, **options), config, run=tmp_path / "parts", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    system = small(**options)
    train(system, config, run=tmp_path / "parts", resume=True)
    again = QA.restore(json.loads(json.dumps(config.options)), json.loads(json.dumps(system.extra())))
    again.model.load_state_dict(system.model.state_dict())
    q = STORY + "Where is Sam?"
    assert again.predict(q).record == system.predict(q).record
    assert again.describe() == system.describe()


def test_the_epoch_reaches_the_network():
    system = small(linear_start=3)
    system.at_epoch(2)
    assert system.model.linear and system.rate_factor(2) == 0.5
    system.at_epoch(3)
    assert not system.model.linear and system.rate_factor(3) == 1.0
    lstm = small(attention="none")
    lstm.at_epoch(1)
    assert lstm.rate_factor(1) == 1.0


def test_wide_enough_for_one_task_and_for_several():
    assert small(hidden=0).model.options.hidden == 20
    both = small_corpus()
    both.train += small_corpus(kind="15").train
    assert small(both, hidden=0).model.options.hidden == 50


def test_each_network_proposes_its_own_training():
    found = {a: Config.proposed(QA, Options(attention=a)) for a in NETWORKS}
    assert [found[a].options["dropout"] for a in NETWORKS] == [0.0, 0.1, 0.1, 0.0, 0.0]
    assert [found[a].learning_rate for a in NETWORKS] == [0.32, 3e-3, 3e-3, 1e-2, 1e-2]
    assert [found[a].clip for a in NETWORKS] == [1.25, 1.0, 1.0, 40.0, 40.0]
    assert [found[a].optimizer for a in NETWORKS] == ["sgd", "adam", "adam", "adam", "adam"]
    assert {found[a].schedule for a in ("dmn", "dmn_plus")} == {"linear"} and found["memn2n"].keep == "last"
    assert Options(attention="dmn", dropout=0.0).dropout == 0.0 and small(attention="dmn").model.dropout.p == 0.1


@pytest.mark.parametrize("bad, message", [
    ({"attention": "memnet"}, "attention: expected one of memn2n"), ({"hops": 0}, "hops of at least 1"),
    ({"memory": 0}, "memory"), ({"dropout": 1.0}, "dropout"), ({"random_noise": -0.1}, "random_noise"),
    ({"tying": "none"}, "tying: expected one of adjacent, layerwise"), ({"linear_start": -1}, "linear_start"),
    ({"gates": 1.0}, "gates is an option of dmn"), ({"gates": 1e300, "attention": "dmn"}, "gates of at most"),
    ({"windows": 3, "attention": "dmn"}, "windows is an option of key_value"),
    ({"nonlinear": True, "attention": "none"}, "nonlinear is an option of memn2n"), ({"hidden": -1}, "hidden"),
])
def test_options_that_cannot_be(bad, message):
    with pytest.raises(InputError, match=f"qa: .*{message}"):
        small(**bad)


# ---------------------------------------------------------------------------------------------------------------------
# what is measured
# ---------------------------------------------------------------------------------------------------------------------
class Peeks:
    """A network that looks at the newest kept sentence in hop 1 and the oldest in hop 2, and always answers `attic`."""
    memory = 3

    def eval(self):
        return self

    def arrays(self, samples, words, bucket=1):
        self.samples = samples
        return ()

    def __call__(self):
        return Tensor(np.tile([4.0, 0.0], (len(self.samples), 1)))

    def hops(self):
        kept = [min(len(s.story), self.memory) for s in self.samples]
        found = np.zeros((len(kept), 2, max(kept)))
        for row, n in zip(found, kept):
            row[0, n - 1] = row[1, 0] = 1.0
        return found


def test_figures_by_hand():
    system = small(memory=3)
    a, b, c, d = "Sam is in the attic.", "Ruth is in the attic.", "Ivy is in the attic.", "Omar is in the attic."
    samples = [told(a + b + c + d, support={3}, task="10"), told(a + b + c + d, support={0}, task="2"),
               told(a + b, support={0, 1}, answer="cellar", task="2"),
               told(a + b, support=(), answer="moon", task="name")]
    system.corpus = Corpus(samples, samples, samples)
    system.model, system.answers, system.numbers = Peeks(), ["attic", "cellar"], {"attic": 0, "cellar": 1}
    result = system.evaluate("test")
    assert result["by_task"] == [["2", 2, 50.0], ["10", 1, 100.0], ["name", 1, 0.0]]
    assert (result["accuracy"], result["error"], result["failed"], result["tasks"]) == (0.5, 50.0, 2, 3)
    assert result["unknown_answers"] == 1 and "1 of 4 answers" in result["remarks"][0]
    p = np.exp(4) / (1 + np.exp(4))
    assert result["loss"] == pytest.approx(-(2 * np.log(p) + np.log(1 - p)) / 3, abs=1e-6)
    # the first support is kept as the third of 3 sentences, the second is lost, and the third question has two of two
    assert [hop["gold_mass"] for hop in result["by_hop"]] == [1.0, 0.5] and result["gold_mass"] == 1.0
    assert result["gold_top"] == 1.0 and result["gold_found"] == 1.0
    assert "gold_mass" not in system.evaluate("test", limit=0) and system.evaluate("test", limit=1)["questions"] == 1
    look = system._look(samples[0]).looks[0]
    assert look.gold == ((0, 2), (1, 2)) and look.columns[2] == "omar is in the attic"


def test_answers_that_training_never_has_give_no_loss_and_no_validation():
    """The mean over no question is no number, and by no means a perfect 0."""
    corpus = small_corpus()
    system = small(corpus)
    system.whole = [told("Sam walks into the moon", answer="moon")]
    found = system.evaluate("all")
    assert found["loss"] is None and found["accuracy"] == 0 and found["unknown_answers"] == 1
    corpus.validation = system.whole * 3
    with pytest.raises(InputError, match="qa: expected validation questions with answers that training has.*none in 3"):
        small(corpus)


@pytest.mark.parametrize("answers", [[], ["attic", "attic"]])
def test_answers_of_a_checkpoint_are_there_each_once(answers):
    extra = {**small().extra(), "answers": answers}
    with pytest.raises(ValueError, match="expected answers, each once"):
        QA.restore(Options(hidden=6, hops=2), extra)


def test_one_of_several_right_answers_will_do():
    system = small()
    q = told(STORY)
    best = system.predict(STORY + "Where is Sam?").record["answer"]
    system.whole = [Question(q.story, q.question, "x", answers=("nowhere", best)), Question(q.story, q.question, "x")]
    assert system.evaluate("all")["accuracy"] == 0.5


def test_words_that_were_never_read_are_named():
    found = small().predict("A zebra walks into the kitchen. Where is the zebra?")
    assert {"a", "zebra"} <= set(found.record["unknown_words"]) and "zebra" in found.line


def test_examples_are_small_and_of_every_task():
    corpus = small_corpus()
    corpus.test += small_corpus(kind="15").test
    system = small(corpus)
    titles = [p.looks[0].title for p in system.examples(4)]
    assert len(titles) == 4 and {t.split()[0] for t in titles} == {"where", "who"}
    assert np.isfinite(system.example_graph().item())


# ---------------------------------------------------------------------------------------------------------------------
# the story of the survey's figure 3
# ---------------------------------------------------------------------------------------------------------------------
def test_the_first_hop_finds_the_drop_and_the_second_where_that_was():
    """Hu 2018, figure 3. Trained on questions about things that were put down: about one that is carried, the sentence
    of its taking tells as much. Two hops, as in the figure."""
    corpus = small_corpus((12_000, 600, 1200), "2", lambda story, support: any(
        verb in story[i] for i in support for verb in ("drops", "puts down", "leaves")))
    system = small(corpus, hops=2, hidden=20, linear_start=4)
    train(system, Config.of(system, steps=1800, seed=1))
    result, found = system.evaluate("test"), system.predict(STORY + "Where is the apple?")
    weights, _, columns, _, _ = found.looks[0].as_map()
    assert found.record["answer"] == "bedroom"
    assert [columns[i] for i in weights.argmax(1)] == ["sam drops the apple", "sam walks into the bedroom"]
    assert result["accuracy"] > 0.9 and min(hop["gold_top"] for hop in result["by_hop"]) > 0.9


# ---------------------------------------------------------------------------------------------------------------------
# the LSTM reader
# ---------------------------------------------------------------------------------------------------------------------
def reader(dropout=0.0, memory=50):
    random.manual_seed(4)
    options = type("Sizes", (), {"hidden": 3, "memory": memory, "dropout": dropout})
    return LSTMReader(8, 3, options).to(np.float64)


WORDS = Vocabulary(["sam", "is", "attic", "where"])
SAMPLES = [told("sam attic. sam is attic. attic is"), told("is attic", "where is sam"), told("sam. is", "is")]
TARGETS = np.array([0, 2, 1])


def test_the_reader_reads_the_newest_sentences_then_the_question():
    ids, lengths = reader(memory=2).arrays(SAMPLES, WORDS)
    assert ids.numpy().tolist() == [[4, 5, 6, 6, 5, 7, 5, 4], [5, 6, 7, 5, 4, 0, 0, 0], [4, 5, 5, 0, 0, 0, 0, 0]]
    assert lengths.numpy().tolist() == [8, 5, 3]


def test_the_readers_gradients_and_its_padding():
    model = reader()
    arrays = model.arrays(SAMPLES, WORDS)
    report = gradcheck(lambda: cross_entropy(model(*arrays), Tensor(TARGETS)), [], dict(model.named_parameters()))
    assert report.ok, str(report)
    cross_entropy(model(*arrays), Tensor(TARGETS)).backward()
    together = {name: p.grad.numpy().copy() for name, p in model.named_parameters()}
    assert all(np.abs(g).max() > 0 for g in together.values())
    model.zero_grad()
    for sample, target in zip(SAMPLES, TARGETS):
        (cross_entropy(model(*model.arrays([sample], WORDS)), Tensor([target])) / 3).backward()
    for name, p in model.named_parameters():
        np.testing.assert_allclose(p.grad.numpy(), together[name], atol=1e-12, err_msg=name)


def test_the_reader_drops_words_and_units_of_its_last_state_in_training():
    model = reader(dropout=0.5)
    model.answer.weight, model.answer.bias = Tensor(np.eye(3)), Tensor(np.zeros(3))  # so the logits are that state
    arrays = model.arrays(SAMPLES * 100, WORDS)
    whole, dropped = model.eval()(*arrays).numpy(), model.train()(*arrays).numpy()
    assert (whole != 0).all() and 0.4 < (dropped == 0).mean() < 0.6
    kept = dropped != 0
    assert np.abs(dropped[kept] - 2 * whole[kept]).min() > 0  # of other words, too


def test_20_steps_of_the_reader_are_pytorchs():
    torch = pytest.importorskip("torch")
    model = reader()
    lstm = torch.nn.LSTM(3, 3, batch_first=True, dtype=torch.float64)
    w = {name: torch.tensor(p.numpy().copy(), requires_grad=True) for name, p in model.named_parameters()}
    ids, lengths = model.arrays(SAMPLES, WORDS)
    rows, n = torch.tensor(ids.numpy().copy()), torch.tensor(lengths.numpy().copy())
    ours, theirs = optim.Adam(model.parameters(), lr=0.05), torch.optim.Adam(list(w.values()), lr=0.05)
    for _ in range(20):
        inner = {name.removeprefix("reader."): t for name, t in w.items() if name.startswith("reader.")}
        x = torch.nn.functional.embedding(rows, w["words.weight"], padding_idx=0)
        hs, _ = torch.func.functional_call(lstm, inner, (x,))
        logits = hs[torch.arange(3), n - 1] @ w["answer.weight"].T + w["answer.bias"]
        a = cross_entropy(model(ids, lengths), Tensor(TARGETS))
        b = torch.nn.functional.cross_entropy(logits, torch.tensor(TARGETS))
        assert abs(a.item() - b.item()) < 1e-8
        model.zero_grad()
        theirs.zero_grad()
        a.backward()
        b.backward()
        ours.step()
        theirs.step()
    for name, p in model.named_parameters():
        np.testing.assert_allclose(p.numpy(), w[name].detach().numpy(), rtol=0, atol=1e-8, err_msg=name)
