from __future__ import annotations

import torch

from autofit_workers.workload.models.wavenet import GatedLayer, WaveNet, next_sample_loss, wavenet


def tiny() -> WaveNet:
    torch.manual_seed(0)
    return WaveNet(num_blocks=2, dilations=(1, 2, 4), width=4, skip_width=8)


def test_a_sample_changes_only_what_comes_after_it() -> None:
    model = tiny()
    samples = torch.randint(256, (2, 20))
    changed = samples.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 256
    before, after = model(samples), model(changed)
    torch.testing.assert_close(before[..., :9], after[..., :9])
    assert not torch.allclose(before[..., 9:], after[..., 9:])


def test_the_past_reaches_as_far_as_the_dilations_add_up_to() -> None:
    model = tiny()  # 2 × (1 + 2 + 4) = 14 samples back
    samples = torch.randint(256, (1, 20))
    for distance, reaches in ((14, True), (15, False)):
        changed = samples.clone()
        changed[:, 19 - distance] = (changed[:, 19 - distance] + 1) % 256
        assert torch.allclose(model(samples)[..., 19], model(changed)[..., 19]) != reaches


def test_a_layer_is_a_gate_beside_a_shortcut() -> None:
    layer = GatedLayer(3, 5, 2, has_shortcut=True)
    x = torch.randn(1, 3, 8)
    output, skip = layer(x)
    filtered, gate = layer.dilated(torch.nn.functional.pad(x, (2, 0))).split(3, dim=1)
    gated = filtered.tanh() * gate.sigmoid()
    torch.testing.assert_close(output, x + layer.shortcut(gated))
    torch.testing.assert_close(skip, layer.skip(gated))


def test_every_sample_is_predicted_from_those_before_it() -> None:
    model = tiny()
    samples = torch.randint(256, (2, 7))
    log_probabilities = model(samples[:, :6]).log_softmax(1)
    expected = -sum(
        log_probabilities[row, samples[row, position + 1], position]
        for row in range(2)
        for position in range(6)
    )
    torch.testing.assert_close(next_sample_loss(model, samples), expected / 12)


def test_dilations_double_to_512_three_times_and_a_batch_is_a_second_and_a_sample() -> None:
    meta = torch.device("meta")
    with meta:
        model = wavenet.build_model()
    assert [layer.dilation for layer in model.layers] == [2**exponent for exponent in range(10)] * 3
    samples = wavenet.make_batch(3, meta)
    assert samples.shape == (3, 16_001)
    assert model(samples[:, :-1]).shape == (3, 256, 16_000)
