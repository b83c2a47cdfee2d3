"""An answer says which model was predicted, where a configuration decides that, and on what inputs."""

from __future__ import annotations

import importlib.util
import json

import pytest

from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Probe, TrialSpec
from autofit_workers.spec.trace import Trace
from autofit_workers.spec.workloads.references import parse_reference
from autofit_workers.trials.run import run
from autofit_workers.workload.workload import Workload

_SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="needs transformers: pip install -c constraints.txt '.[models]'",
)
@pytest.mark.parametrize(
    ("named", "built", "said", "labels"),
    [
        ("BertForSequenceClassification", "BertForSequenceClassification", "", "labels"),
        (
            "BertModel",
            "BertForMaskedLM",
            " (its configuration names BertModel, which has no loss)",
            "labels 32",
        ),
    ],
)
def test_an_answer_names_the_class_its_parameters_and_its_inputs(tmp_path, named, built, said, labels):
    stated = {"model_type": "bert", "architectures": [named], "vocab_size": 64}
    (tmp_path / "config.json").write_text(json.dumps({**stated, **_SMALL}))
    reference = parse_reference(f"hf:{tmp_path / 'config.json'}")
    spec = TrialSpec(workload=reference, batch_size=2, probe=Probe.PREDICT, knobs=Knobs(seq_len=32))
    trace = Trace.from_json(run(spec).trace_json)
    counted = sum(parameter.numel() for parameter in Workload.load(reference).build_model().parameters())
    assert (
        f"the model is {built}, {counted:,} parameters{said}; a sample is input_ids 32, attention_mask 32, "
        f"{labels}",
    ) == trace.model.sentences
    assert (trace.model.model_class, trace.model.num_parameters) == (built, counted)
    assert trace.model.inputs["input_ids"] == (32,)
