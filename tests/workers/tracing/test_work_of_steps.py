"""What the operators of a traced step have to do."""

from __future__ import annotations

from collections import Counter

from autofit_workers.spec.work import ConvPass, Layout, WorkCall


def operators(calls: tuple[WorkCall, ...]) -> Counter[str]:
    return Counter(call.work.operator for call in calls)


def test_a_step_has_its_products_once_forward_and_twice_backward(trace_of) -> None:
    found = operators(trace_of("small:perceptron").work)
    assert found["aten.addmm"] == 2
    # The gradient of the first layer's input is not wanted.
    assert found["aten.mm"] == 3


def test_a_convolution_is_of_each_pass(trace_of) -> None:
    calls = trace_of("small:convolutional").work
    passes = Counter(each.conv_pass for call in calls for each in call.work.convolutions)
    assert passes[ConvPass.FPROP] == passes[ConvPass.WGRAD] > passes[ConvPass.DGRAD] > 0


def test_views_have_no_work_and_are_counted(trace_of) -> None:
    calls = trace_of("small:attention").work
    assert not {"aten.view", "aten.t", "aten.transpose.int", "aten.detach"} & set(operators(calls))
    assert sum(call.num_views for call in calls) > 0


def test_only_the_last_step_is_kept(trace_of) -> None:
    trace = trace_of("small:perceptron")
    (begin,) = (mark.position for mark in trace.marks if mark.name == "step 3 input")
    assert all(call.position >= begin for call in trace.work)


def test_a_transposed_weight_is_told(trace_of) -> None:
    call = next(c for c in trace_of("small:perceptron").work if c.work.operator == "aten.addmm")
    assert [each.layout for each in call.work.inputs[1:]] == [Layout.CONTIGUOUS, Layout.TRANSPOSED]
    assert call.module


def test_a_recurrent_layer_has_work_though_it_is_seen_as_allocations_alone(trace_of) -> None:
    found = operators(trace_of("small:lstm").work)
    assert found["aten._cudnn_rnn"] == found["aten._cudnn_rnn_backward"] > 0


def test_an_operator_on_lists_writes_the_first_of_them(trace_of) -> None:
    works = [call.work for call in trace_of("small:foreach_adam").work]
    calls = [work for work in works if work.operator.startswith("aten._foreach_lerp_")]
    assert calls
    assert all(2 * len(work.outputs) == len(work.inputs) for work in calls)


def test_what_goes_element_by_element_is_told(trace_of) -> None:
    flags = {call.work.operator: call.work.flags for call in trace_of("small:perceptron").work}
    assert flags["aten.relu"] == ("pointwise",)
    assert flags["aten.addmm"] == ()
