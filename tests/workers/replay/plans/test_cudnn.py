"""cuDNN's plans: what needs no libcudnn first, then what it says where it is installed."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from autofit_workers.replay.plans.cudnn import Cudnn, CudnnError, dotted, find_library, strides_of
from autofit_workers.replay.plans.cudnn_plans import CudnnPlans
from autofit_workers.replay.plans.device_properties import ARCHITECTURE_LIMITS, DeviceProperties
from autofit_workers.replay.plans.plan import Plan
from autofit_workers.replay.plans.workspace import at_once
from autofit_workers.spec.architecture import Architecture
from autofit_workers.spec.work import Convolution, ConvPass
from tests.workers.replay.plan_tables import CONVOLUTION, DEPTHWISE, GROUPED, MAPS_BYTES, POINTWISE, variant

needs_libcudnn = pytest.mark.skipif(
    not CudnnPlans.is_available(), reason="needs libcudnn: pip install -c constraints.txt '.[cudnn]'"
)


def card(architecture: str) -> DeviceProperties:
    """A large card; cuDNN's plans were not seen to depend on more than the architecture."""
    return DeviceProperties(
        name="a card",
        architecture=architecture,
        num_sms=108,
        total_bytes=80 << 30,
        sm_clock_khz=1_410_000,
        memory_clock_khz=1_593_000,
        memory_bus_bits=5120,
        l2_bytes=40 << 20,
    )


@pytest.mark.parametrize(
    ("shape", "channels_last", "strides"),
    [
        ((2, 3, 5), False, (15, 5, 1)),
        ((2, 3, 5, 7), False, (105, 35, 7, 1)),
        ((2, 3, 5, 7), True, (105, 1, 21, 3)),
        ((2, 3, 4, 5, 7), True, (420, 1, 105, 21, 3)),
        ((1, 1, 1, 1), True, (1, 1, 1, 1)),
    ],
)
def test_dense_tensors_have_the_strides_of_their_layout(shape, channels_last, strides):
    assert strides_of(shape, channels_last=channels_last) == strides


@pytest.mark.parametrize(("number", "text"), [(90100, "9.1.0"), (92700, "9.27.0"), (90801, "9.8.1")])
def test_a_version_is_written_as_people_write_it(number, text):
    assert dotted(number) == text


@pytest.fixture
def nvidia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts a made-up `nvidia` package with some libraries in front of this environment's."""

    def make(*libraries: str) -> Path:
        package = tmp_path / "nvidia"
        package.mkdir()
        (package / "__init__.py").touch()
        for library in libraries:
            path = package / library
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("no library at all")
        monkeypatch.delitem(sys.modules, "nvidia", raising=False)
        monkeypatch.syspath_prepend(tmp_path)
        # For the processes that the test starts.
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return package

    return make


def load_error() -> str:
    """What loading libcudnn in a process of its own is refused with."""
    code = """if True:
        from autofit_workers.replay.plans.cudnn import Cudnn, CudnnError
        try:
            Cudnn.load()
        except CudnnError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_library_is_looked_for_in_all_nvidia_packages(nvidia):
    package = nvidia("cublas/lib/libcublas.so.12", "cudnn/lib/libcudnn.so.9", "cudnn/lib/libcudnn_ops.so.9")
    assert find_library("libcudnn.so.9") == package / "cudnn/lib/libcudnn.so.9"
    assert find_library("libcublas.so.*") == package / "cublas/lib/libcublas.so.12"
    assert find_library("libnvrtc.so.*") is None
    assert CudnnPlans.is_available()


def test_without_libcudnn_the_next_step_is_to_install_it(nvidia):
    nvidia()
    assert find_library("libcudnn.so.9") is None
    assert not CudnnPlans.is_available()
    assert "pip install -c constraints.txt '.[cudnn]'" in load_error()


def test_a_file_that_is_no_library_is_told_as_such(nvidia):
    nvidia("cudnn/lib/libcudnn.so.9")
    assert "libcudnn cannot be loaded" in load_error()
    assert "libcudnn.so.9" in load_error()


def test_a_libcudnn_that_plans_on_gpus_alone_is_refused_with_the_version_to_install():
    library = SimpleNamespace(cudnnGetVersion=lambda: 90701, cudnnGetErrorString=lambda _status: b"")
    with pytest.raises(CudnnError, match=r"cuDNN 9\.7\.1 plans only on a GPU: install 9\.8\.0 or newer"):
        Cudnn(library)


@pytest.fixture(scope="module")
def plans_on() -> Callable[[str, Convolution], tuple[Plan, ...]]:
    """Asks libcudnn for the plans of a convolution on a card of an architecture."""
    sources: dict[str, CudnnPlans] = {}

    def ask(architecture: str, call: Convolution) -> tuple[Plan, ...]:
        source = sources.setdefault(architecture, CudnnPlans(card(architecture)))
        return source.plans([call])[0]

    return ask


@needs_libcudnn
def test_a_dense_convolution_on_ampere_first_copies_the_map_it_reads_for_tensor_cores(plans_on):
    first, *others = plans_on("sm_80", CONVOLUTION)
    assert first.uses_tensor_cores
    assert MAPS_BYTES <= first.workspace_bytes < 1.1 * MAPS_BYTES
    assert min(plan.workspace_bytes for plan in others) == 0


@needs_libcudnn
@pytest.mark.parametrize("conv_pass", [ConvPass.DGRAD, ConvPass.WGRAD])
def test_its_gradients_copy_both_maps(conv_pass, plans_on):
    first = plans_on("sm_80", variant(conv_pass=conv_pass))[0]
    assert first.uses_tensor_cores
    assert 2 * MAPS_BYTES <= first.workspace_bytes < 1.25 * 2 * MAPS_BYTES


@needs_libcudnn
@pytest.mark.parametrize("conv_pass", ConvPass)
def test_turing_has_no_tensor_cores_for_fp32_and_next_to_no_workspace(conv_pass, plans_on):
    plans = plans_on("sm_75", variant(conv_pass=conv_pass))
    assert not any(plan.uses_tensor_cores for plan in plans)
    assert plans[0].workspace_bytes < MAPS_BYTES / 100


@needs_libcudnn
def test_half_precision_that_is_channels_last_already_needs_no_copy(plans_on):
    half = variant(dtype="float16", element_bytes=2)
    assert plans_on("sm_80", half)[0].workspace_bytes >= MAPS_BYTES // 2
    last = variant(dtype="float16", element_bytes=2, channels_last=True)
    assert plans_on("sm_80", last)[0].workspace_bytes < MAPS_BYTES // 100


ALL_KINDS = {
    "1-D": variant(
        input_shape=(8, 64, 1000),
        weight_shape=(64, 64, 5),
        output_shape=(8, 64, 500),
        stride=(2,),
        padding=(2,),
        dilation=(1,),
    ),
    "3-D": variant(
        input_shape=(2, 16, 16, 16, 16),
        weight_shape=(16, 16, 3, 3, 3),
        output_shape=(2, 16, 16, 16, 16),
        stride=(1, 1, 1),
        padding=(1, 1, 1),
        dilation=(1, 1, 1),
    ),
    "grouped": GROUPED,
    "depthwise": DEPTHWISE,
    "pointwise": POINTWISE,
    "dilated": variant(padding=(2, 2), dilation=(2, 2)),
    "channels last": variant(channels_last=True),
    "fp16": variant(dtype="float16", element_bytes=2),
    "bf16": variant(dtype="bfloat16", element_bytes=2),
    "fp64": variant(dtype="float64", element_bytes=8),
    "odd": variant(input_shape=(3, 5, 17, 31), weight_shape=(7, 5, 3, 3), output_shape=(3, 7, 17, 31)),
}


@needs_libcudnn
@pytest.mark.parametrize("conv_pass", ConvPass)
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_every_kind_of_convolution_has_plans_in_every_pass(kind, conv_pass, plans_on):
    call = variant(
        **{f: getattr(ALL_KINDS[kind], f) for f in Convolution.__slots__} | {"conv_pass": conv_pass}
    )
    plans = plans_on("sm_80", call)
    assert plans
    assert len(set(plans)) == len(plans)
    assert all(plan.workspace_bytes >= 0 for plan in plans)


@needs_libcudnn
@pytest.mark.parametrize(
    "architecture", [name for name in ARCHITECTURE_LIMITS if Architecture.of(name).is_planned_for]
)
def test_every_architecture_is_planned_for(architecture, plans_on):
    assert plans_on(architecture, CONVOLUTION)


@needs_libcudnn
@pytest.mark.parametrize("conv_pass", ConvPass)
@pytest.mark.parametrize("kind", ["grouped", "channels last", "fp16"])
def test_cudnn_wants_no_more_for_a_batch_than_for_the_piece_that_it_runs_at_once(kind, conv_pass, plans_on):
    call = dataclasses.replace(ALL_KINDS[kind], conv_pass=conv_pass).of_samples(30_000)
    piece = at_once(call)
    assert piece.input_shape[0] == 2**31 // (64 * 56 * 56)

    def largest_bytes(each: Convolution) -> int:
        return max(plan.workspace_bytes for plan in plans_on("sm_80", each))

    # Weights that are summed over pieces take a few bytes for each.
    assert largest_bytes(call) == pytest.approx(largest_bytes(piece), rel=0.001)


@needs_libcudnn
def test_shapes_that_do_not_belong_together_are_refused_in_cudnns_words(plans_on):
    with pytest.raises(CudnnError, match="BAD_PARAM"):
        plans_on("sm_80", variant(output_shape=(64, 64, 50, 50)))
