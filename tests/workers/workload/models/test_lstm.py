from __future__ import annotations

import torch

from autofit_workers.workload.models.lstm import LanguageModel, lstm, next_word_loss


def tiny() -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(vocabulary=11, width=8)


def test_a_word_changes_only_what_comes_after_it_in_its_own_sequence() -> None:
    model = tiny().eval()
    words = torch.randint(11, (6, 2))
    changed = words.clone()
    changed[3, 1] = (changed[3, 1] + 1) % 11
    before, after = model(words), model(changed)
    torch.testing.assert_close(before[:, 0], after[:, 0])
    torch.testing.assert_close(before[:3], after[:3])
    assert not torch.allclose(before[3:, 1], after[3:, 1])


def test_every_word_is_predicted_from_those_before_it() -> None:
    model = tiny().eval()
    words = torch.randint(11, (7, 2))
    log_probabilities = model(words[:6]).log_softmax(2)
    expected = -sum(
        log_probabilities[position, column, words[position + 1, column]]
        for position in range(6)
        for column in range(2)
    )
    torch.testing.assert_close(next_word_loss(model, words), expected / 12)


def test_dropout_is_everywhere_but_between_the_steps() -> None:
    meta = torch.device("meta")
    with meta:
        model = lstm.build_model()
    assert (model.dropout.p, model.recurrent.dropout, model.recurrent.num_layers) == (0.65, 0.65, 2)
    words = lstm.make_batch(3, meta)
    assert words.shape == (36, 3)
    assert model(words[:-1]).shape == (35, 3, 10_000)
