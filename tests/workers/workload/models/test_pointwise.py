from __future__ import annotations

import torch

from autofit_workers.workload.models.pointwise import conv1x1, make_sequences, matmul1x1


def test_both_halves_map_alike_and_their_views_take_no_storage():
    torch.manual_seed(0)
    models = [workload.build_model() for workload in (conv1x1, matmul1x1)]
    models[1].load_state_dict(models[0].state_dict())
    batch = make_sequences(10, torch.device("cpu"))
    outputs = [model(batch) for model in models]
    assert [tuple(output.shape) for output in outputs] == [(10, 1000, 512)] * 2
    assert torch.allclose(*outputs, rtol=0, atol=1e-4)
