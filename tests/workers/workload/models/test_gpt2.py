from __future__ import annotations

import torch
from torch import nn

from autofit_workers.workload.models.gpt2 import GPT2, gpt2, next_token_loss


def tiny() -> GPT2:
    torch.manual_seed(0)
    return GPT2(num_layers=2, num_heads=2, width=8, context=6, vocabulary=11)


def test_a_token_changes_only_what_comes_after_it() -> None:
    model = tiny().eval()
    tokens = torch.randint(11, (2, 6))
    changed = tokens.clone()
    changed[:, 3] = (changed[:, 3] + 1) % 11
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3:], after[:, 3:])


def test_every_token_is_predicted_from_those_before_it() -> None:
    model = tiny().eval()
    tokens = torch.randint(11, (2, 7))
    log_probabilities = model(tokens[:, :6]).log_softmax(2)
    expected = -sum(
        log_probabilities[row, position, tokens[row, position + 1]]
        for row in range(2)
        for position in range(6)
    )
    torch.testing.assert_close(next_token_loss(model, tokens), expected / 12)


def test_the_output_layer_is_the_token_embedding() -> None:
    model = tiny().eval()
    hidden: list[torch.Tensor] = []
    model.norm.register_forward_hook(lambda _norm, _inputs, output: hidden.append(output))
    logits = model(torch.randint(11, (1, 6)))
    torch.testing.assert_close(logits, hidden[0] @ model.tokens.weight.T)


def test_dropout_works_in_training_alone() -> None:
    model = tiny()
    tokens = torch.randint(11, (2, 6))
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    torch.testing.assert_close(model(tokens), model(tokens))


def test_batch_is_the_context_and_the_token_after_it() -> None:
    meta = torch.device("meta")
    tokens = gpt2.make_batch(3, meta)
    assert tokens.shape == (3, 1025)
    with meta:
        model = gpt2.build_model()
    assert model(tokens[:, :-1]).shape == (3, 1024, 50257)
    assert {m.approximate for m in model.modules() if isinstance(m, nn.GELU)} == {"tanh"}
