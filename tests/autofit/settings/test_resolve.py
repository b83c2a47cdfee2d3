from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from autofit.errors import UnknownGpuError, UsageError
from autofit.hardware.gpus import find_gpu
from autofit.settings.goals import Batching, Maximized, Objective, Risk
from autofit.settings.lengths import worst_case_lengths
from autofit.settings.options import OPTIONS
from autofit.settings.resolve import chosen_cards, chosen_options, resolve_settings
from autofit.settings.tune_settings import TuneSettings
from autofit.settings.values import ALL_CONV_ALGOS
from autofit_workers.spec.knobs import KNOBS, Knobs
from autofit_workers.spec.setup import Parallel, Setup

GIB = 1024**3

LENGTHS = str(Path(__file__).parents[2] / "data" / "lengths.txt")
# What an option means nothing without.
NEEDED = {
    "batch-size": {"maximize": "seq-len"},
    "batching": {"lengths": LENGTHS},
    "nproc": {"search": "parallel=fsdp"},
    "nnodes": {"parallel": "fsdp:8", "probe": "measure"},
}
DERIVED = ("given_knobs", "parallels")  # from what options hold
# Option, its text, the field and what the field holds.
EXAMPLES = [
    ("model", "pkg.mod:net", "model", "pkg.mod:net"),
    ("input", "3x224x224", "input_shape", (3, 224, 224)),
    ("classes", "1000", "num_classes", 1000),
    ("task", "fill-mask", "task", "fill-mask"),
    ("script", "train.py", "script", "train.py"),
    ("script-arg", "--epochs 1 'a b'", "script_arguments", ("--epochs", "1", "a b")),
    ("batch-arg", "--batch-size", "batch_argument", "--batch-size"),
    ("batch-env", "BATCH", "batch_variable", "BATCH"),
    ("batch-name", "BATCH", "batch_name", "BATCH"),
    ("keep-trackers", "true", "keeps_trackers", True),
    ("nproc", "8", "num_processes", 8),
    ("nnodes", "2", "num_nodes", 2),
    ("launcher", "accelerate --config_file f.yaml", "launcher", "accelerate --config_file f.yaml"),
    ("gpu-mem", "16G", "gpu_mem_bytes", 16 * GIB),
    ("gpu", "RTX 3090", "gpu", find_gpu("rtx-3090")),
    ("device", "cuda", "device", "cuda"),
    ("probe", "predict", "probe", "predict"),
    ("conv-algo", "cudnn, native", "conv_algos", ("cudnn", "native")),
    ("precision", "amp-bf16", "knobs.precision", "amp-bf16"),
    ("memory-format", "channels_last", "knobs.memory_format", "channels_last"),
    ("optimizer", "adamw", "knobs.optimizer", "adamw"),
    ("optimizer-impl", "fused", "knobs.optimizer_impl", "fused"),
    ("optimizer-in-backward", "true", "knobs.optimizer_in_backward", True),
    ("set-to-none", "false", "knobs.set_to_none", False),
    ("checkpointing", "every:04", "knobs.checkpointing", "every:4"),
    ("allocator", "max_split:128", "knobs.allocator", "max_split:128"),
    ("grad-accumulation", "4", "knobs.grad_accumulation", 4),
    ("global-batch", "256", "knobs.global_batch", 256),
    ("compile", "true", "knobs.compile", True),
    ("activation-budget", "0.5", "knobs.activation_budget", 0.5),
    ("attention", "math", "knobs.attention", "math"),
    ("adapter", "LoRA:r=8", "knobs.adapter", "lora:r=8"),
    ("base", "nf4", "knobs.base", "nf4"),
    ("clip-grad-norm", "0.5", "knobs.clip_grad_norm", 0.5),
    ("seq-len", "128", "knobs.seq_len", 128),
    ("kernels", "liger", "knobs.kernels", "liger"),
    ("loss", "chunked:08", "knobs.loss", "chunked:8"),
    ("batch-layout", "padded:25", "knobs.batch_layout", "padded:25"),
    ("new-tokens", "256", "knobs.new_tokens", 256),
    ("cache", "static", "knobs.cache", "static"),
    ("num-beams", "4", "knobs.num_beams", 4),
    (
        "search",
        "precision=fp32,amp-bf16; checkpointing=none,blocks",
        "searched",
        (("precision", ("fp32", "amp-bf16")), ("checkpointing", ("none", "blocks"))),
    ),
    ("mode", "infer", "setup.mode", "infer"),
    ("worst-case", "true", "setup.batch_kind", "worst"),
    ("parallel", "ddp:4", "setup.parallel", Parallel(degrees=(("ddp", 4),))),
    ("rank", "0", "setup.rank", 0),  # another needs --parallel
    ("assume", "nonzero=0.25", "setup.nonzero_share", 0.25),
    ("torch", "2.8.1+cu128", "setup.torch", "2.8"),
    ("allow-long", "true", "setup.allows_long", True),
    ("allow-network", "true", "setup.allows_network", True),
    ("allow-subprocesses", "true", "setup.allows_subprocesses", True),
    ("keep-env", "HF_TOKEN,WANDB_API_KEY", "setup.kept_variables", ("HF_TOKEN", "WANDB_API_KEY")),
    ("max-host-memory", "6G", "setup.most_host_bytes", 6 * 1024**3),
    ("maximize", "seq-len", "maximize", Maximized.SEQ_LEN),
    ("batch-size", "4", "batch_size", 4),
    ("lengths", LENGTHS, "lengths", worst_case_lengths([12, 700, 9])),
    ("batching", "packed", "batching", Batching.PACKED),
    ("max-batch", "512", "max_batch", 512),
    ("margin", "5%", "margin", Decimal("0.05")),
    ("reserve", "2G", "reserve_bytes", 2 * GIB),
    ("risk", "worst", "risk", Risk.WORST),
    ("objective", "throughput", "objective", Objective.THROUGHPUT),
    ("samples", "1281167", "epoch_samples", 1281167),
    ("soak-steps", "0", "soak_steps", 0),
    ("max-trials", "6", "max_trials", 6),
    ("max-seconds", "3600", "max_seconds", 3600.0),
    ("storage", "sqlite:///s.db", "storage", "sqlite:///s.db"),
    ("storage-wait", "120", "storage_wait_seconds", 120.0),
    ("study", "mine", "study", "mine"),
    ("dispatch", "inline", "dispatch", "inline"),
    ("address", "ray://head:10001", "address", "ray://head:10001"),
    ("resources", "rack_a=1, ssd=0.5", "resources", (("rack_a", 1.0), ("ssd", 0.5))),
    ("node-wait", "0", "node_wait_seconds", 0.0),
    ("fresh", "true", "fresh", True),
    ("metrics-port", "9464", "metrics_port", 9464),
    ("metrics-host", "0.0.0.0", "metrics_host", "0.0.0.0"),
    ("deadline", "90", "deadline_seconds", 90.0),
    ("threads", "4", "num_threads", 4),
]
each_example = pytest.mark.parametrize(
    ("option", "text", "field", "value"), EXAMPLES, ids=[example[0] for example in EXAMPLES]
)


def settings(
    cli: Mapping[str, object] | None = None, env: Mapping[str, str] | None = None, file: Path | None = None
) -> TuneSettings:
    """Resolves with a model named, where none is."""
    return resolve_settings({"model": "davenet", **(cli or {})}, env or {}, file)


@pytest.fixture
def toml(tmp_path: Path) -> Any:
    def write(body: str) -> Path:
        path = tmp_path / "settings.toml"
        path.write_text(body, encoding="utf-8")
        return path

    return write


def refusal(**given: Any) -> str:
    with pytest.raises(UsageError) as caught:
        settings(**given)
    assert caught.value.exit_code == 2
    return str(caught.value)


# ── the same setting from everywhere ────────────────────────────────────────────────────────────


def test_the_examples_cover_every_field() -> None:
    parts = {"knobs": Knobs, "setup": Setup}
    fields = [
        field
        for name in (each.name for each in dataclasses.fields(TuneSettings) if each.name not in DERIVED)
        for field in (
            [f"{name}.{each.name}" for each in dataclasses.fields(parts[name])] if name in parts else [name]
        )
    ]
    assert [example[2] for example in EXAMPLES] == [field for field in fields if field != "knobs.conv_algo"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("max-autotune", "mode=max-autotune"),
        ("mode=Reduce-Overhead", "mode=reduce-overhead"),
        ("mode=default", True),
        ("no", False),
    ],
)
def test_a_mode_of_compile_is_one_setting_however_it_is_written(text: str, value: bool | str) -> None:
    assert KNOBS["compile"].read(text) == value


def test_a_knob_with_a_number_is_one_setting_however_the_number_is_written() -> None:
    written = {"allocator": "max_split:0128", "checkpointing": "every:04", "conv_algo": "chunked:064"}
    plain = Knobs(allocator="max_split:128", checkpointing="every:4", conv_algo="chunked:64")
    assert Knobs(**written) == plain


def test_the_default_that_the_help_names_is_the_one_that_holds() -> None:
    settings = resolve_settings({"model": "davenet"}, {}, None)
    compared = set()
    for option in OPTIONS.values():
        held = operator.attrgetter(option.field)(settings)
        if option.default and held is not None:
            assert option.read(option.default.partition(";")[0]) == held, option.name
            compared.add(option.name)
    assert {"max-batch", "margin", "risk", "precision", "deadline", "node-wait", "dispatch"} <= compared


@each_example
def test_a_setting_is_read_alike_from_call_environment_and_file(
    toml: Any, option: str, text: str, field: str, value: object
) -> None:
    variable = "AUTOFIT_" + option.upper().replace("-", "_")
    of_script = OPTIONS[option].of_scripts
    model = {"script": "train.py"} if of_script else {"model": "davenet"}
    model = {} if option in ("model", "script") else {**model, **NEEDED.get(option, {})}
    from_call = resolve_settings({**model, option.replace("-", "_"): text}, {}, None)
    from_environment = resolve_settings(model, {variable: text}, None)
    from_file = resolve_settings(model, {}, toml(f'[tune]\n{option} = "{text}"\n'))
    held = operator.attrgetter(field)(from_call)
    assert held == value
    assert type(held) is type(value)
    assert from_call == from_environment == from_file


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("gpu-mem = 17179869184", "gpu_mem_bytes", 16 * GIB),
        ("input = [3, 224, 224]", "input_shape", (3, 224, 224)),
        ('input = "40×1024"', "input_shape", (40, 1024)),
        ('conv-algo = ["native", "cudnn", "native"]', "conv_algos", ("native", "cudnn")),
        ('conv-algo = "all"', "conv_algos", ALL_CONV_ALGOS),
        ("margin = 0.05", "margin", Decimal("0.05")),
        ("reserve = 0", "reserve_bytes", 0),
        ("fresh = true", "fresh", True),
        ("deadline = 2.5", "deadline_seconds", 2.5),
        ("resources = {rack_a = 1, ssd = 0.5}", "resources", (("rack_a", 1.0), ("ssd", 0.5))),
        ('resources = ["rack_a=1", "ssd=0.5"]', "resources", (("rack_a", 1.0), ("ssd", 0.5))),
        ("metrics-port = 0", "metrics_port", 0),
    ],
)
def test_a_file_may_use_toml_s_own_types(toml: Any, line: str, field: str, value: object) -> None:
    assert getattr(settings(file=toml(f"[tune]\n{line}\n")), field) == value


def test_what_is_not_given_anywhere_has_its_default() -> None:
    assert settings() == TuneSettings(model="davenet")
    default = TuneSettings(model="davenet")
    assert (default.max_batch, default.margin, default.metrics_host) == (65536, Decimal("0.03"), "127.0.0.1")
    assert (default.device, default.probe, default.conv_algos) == ("auto", "auto", None)


# ── precedence ──────────────────────────────────────────────────────────────────────────────────


def test_the_call_wins_over_the_environment_which_wins_over_the_file(toml: Any) -> None:
    file = toml("[tune]\nmax-batch = 1\nclasses = 1\nthreads = 1\n")
    env = {"AUTOFIT_MAX_BATCH": "2", "AUTOFIT_CLASSES": "2"}
    resolved = settings({"max_batch": 3}, env, file)
    assert (resolved.max_batch, resolved.num_classes, resolved.num_threads) == (3, 2, 1)


def test_none_in_the_call_and_empty_in_the_environment_are_not_given(toml: Any) -> None:
    resolved = settings({"max_batch": None}, {"AUTOFIT_MAX_BATCH": ""}, toml("[tune]\nmax-batch = 7\n"))
    assert resolved.max_batch == 7


def test_a_switch_can_be_turned_off_again() -> None:
    assert settings({"fresh": False}, {"AUTOFIT_FRESH": "1"}).fresh is False


def test_a_value_that_is_overridden_is_still_checked(toml: Any) -> None:
    assert "max-batch" in refusal(cli={"max_batch": 3}, file=toml("[tune]\nmax-batch = 'many'\n"))


def test_a_card_in_the_call_puts_aside_the_memory_in_the_file_and_the_other_way_round(toml: Any) -> None:
    by_card = settings({"gpu": "t4"}, {}, toml("[tune]\ngpu-mem = '24G'\n"))
    assert (by_card.gpu, by_card.gpu_mem_bytes) == (find_gpu("t4"), None)
    by_memory = settings({}, {"AUTOFIT_GPU_MEM": "16G"}, toml("[tune]\ngpu = 'rtx-3090'\n"))
    assert (by_memory.gpu, by_memory.gpu_mem_bytes) == (None, 16 * GIB)


def test_this_machine_alone_puts_aside_a_cluster_further_down_and_the_other_way_round(toml: Any) -> None:
    file = toml("[tune]\naddress = 'head:6379'\nnode-wait = 5\nresources = {rack_a = 1}\n")
    here = settings({"dispatch": "inline"}, {}, file)
    assert (here.address, here.node_wait_seconds, here.resources) == (None, 30.0, ())
    there = settings({"address": "auto"}, {"AUTOFIT_DISPATCH": "inline"})
    assert (there.dispatch, there.address) == ("ray", "auto")


# ── refusals ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"gpu_mem": "16Q"}, ["--gpu-mem: '16Q' is not a size", "16GB"]),
        ({"gpu_mem": "-1"}, ["--gpu-mem: '-1' is not a size"]),
        ({"gpu_mem": "0"}, ["--gpu-mem: '0' is less than one byte"]),
        ({"gpu_mem": True}, ["--gpu-mem: 'True' is not a size"]),
        ({"margin": "3"}, ["--margin: '3' is not a share below 100%", "3%"]),
        ({"device": "tpu"}, ["--device: 'tpu' is not one of auto, cuda, cpu"]),
        ({"dispatch": "slurm"}, ["--dispatch: 'slurm' is not one of ray, inline"]),
        ({"optimizer": "addam"}, ["--optimizer: 'addam'", "Did you mean adam"]),
        ({"conv_algo": "cudnn,winograd"}, ["--conv-algo: 'winograd' is not one of"]),
        ({"conv_algo": "cuddn"}, ["--conv-algo: 'cuddn' is not one of", "Did you mean cudnn?"]),
        (
            {"conv_algo": "chunked"},
            ["--conv-algo: chunked needs a number of samples of 1 or more, as in chunked:64"],
        ),
        ({"conv_algo": "chunked:0"}, ["--conv-algo: chunked:0 needs a number of samples"]),
        ({"conv_algo": "fft:3"}, ["--conv-algo: 'fft:3' is not one of"]),
        (
            {"allocator": "max_split: 128"},
            ["--allocator: max_split: 128 needs a number of MiB"],
        ),
        ({"conv_algo": []}, ["--conv-algo: [] is not a list of values"]),
        ({"input": "3x224x"}, ["--input: '3x224x' is not the shape of one sample", "3x224x224"]),
        ({"input": 7}, ["--input: 7 is not the shape"]),
        ({"max_batch": "0"}, ["--max-batch: '0' is not a whole number of 1 or more"]),
        ({"max_batch": 2.5}, ["--max-batch: 2.5 is not a whole number"]),
        ({"classes": True}, ["--classes: True is not a whole number"]),
        ({"metrics_port": 65536}, ["--metrics-port: 65536 is not a whole number from 0 to 65535"]),
        ({"deadline": "soon"}, ["--deadline: 'soon' is not a number of seconds: expected more than 0"]),
        ({"deadline": 0}, ["--deadline: 0 is not a number of seconds: expected more than 0"]),
        ({"deadline": "nan"}, ["--deadline: 'nan'"]),
        ({"deadline": True}, ["--deadline: True"]),
        ({"node_wait": -1}, ["--node-wait: -1 is not a number of seconds: expected 0 or more"]),
        ({"resources": "rack_a"}, ["--resources: 'rack_a' is no amount", "rack_a=1"]),
        ({"resources": "rack_a=0"}, ["--resources: 'rack_a=0' is no amount"]),
        ({"resources": "=1"}, ["--resources: '=1' is no amount"]),
        ({"resources": "GPU=2"}, ["GPU is a resource that autofit asks for itself"]),
        ({"resources": "a=1,a=2"}, ["a is a resource that is named twice"]),
        ({"fresh": "maybe"}, ["--fresh: 'maybe' is neither true nor false"]),
        ({"study": " "}, ["--study: expected some text"]),
        ({"gpu_memory": "16G"}, ["unknown setting 'gpu_memory'", "gpu_mem"]),
    ],
)
def test_a_bad_value_in_the_call_is_refused_by_its_option(given: dict[str, object], parts: list[str]) -> None:
    message = refusal(cli=given)
    for part in parts:
        assert part in message


def test_an_unknown_card_keeps_its_own_error_and_says_where_it_was_named() -> None:
    with pytest.raises(
        UnknownGpuError, match=r"AUTOFIT_GPU in the environment: no card named 'rtx-3091'.*rtx-3090"
    ):
        settings(env={"AUTOFIT_GPU": "rtx-3091"})


def test_a_bad_value_in_the_environment_is_refused_by_its_variable() -> None:
    message = refusal(env={"AUTOFIT_GPU_MEM": "16Q"})
    assert message.startswith("AUTOFIT_GPU_MEM in the environment: '16Q' is not a size")


def test_an_unknown_variable_of_ours_is_refused_with_a_near_name() -> None:
    message = refusal(env={"AUTOFIT_GPUMEM": "16G", "PATH": "/bin"})
    assert message.startswith(
        "the environment: unknown variable 'AUTOFIT_GPUMEM'. Did you mean AUTOFIT_GPU_MEM"
    )


def test_variables_of_ours_that_are_no_settings_are_left_alone() -> None:
    others = {"AUTOFIT_STATE_DIR": "/somewhere", "AUTOFIT_UNVERIFIED_TORCH": "1"}
    assert settings(env=others) == TuneSettings(model="davenet")


def test_a_bad_value_in_a_file_is_refused_by_file_table_and_key(toml: Any) -> None:
    file = toml("[tune]\ngpu-mem = '16Q'\n")
    assert refusal(file=file).startswith(f"{file}, [tune] gpu-mem: '16Q' is not a size")


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("[tune]\ngpu_mem = '16G'\n", ["[tune]: unknown key 'gpu_mem'", "Did you mean gpu-mem?"]),
        ("[tuen]\ngpu-mem = '16G'\n", ["unknown table or key 'tuen'", "Did you mean tune?"]),
        ("gpu-mem = '16G'\n", ["unknown table or key 'gpu-mem'"]),
        ("tune = 3\n", ["tune is not a table", "[tune]"]),
        ("[tune]\nmodel = 'davenet'\ngpu-mem = 16G\n", ["not TOML", "line 3"]),
        ("[tune]\nthreads = 1\nthreads = 2\n", ["not TOML", "line 3"]),
    ],
)
def test_a_file_that_is_not_as_it_should_be_is_refused(toml: Any, body: str, parts: list[str]) -> None:
    file = toml(body)
    message = refusal(file=file)
    assert message.startswith(str(file))
    for part in parts:
        assert part in message


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    assert refusal(file=missing) == f"cannot read the settings file {missing}: No such file or directory"
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    assert "not UTF-8 text" in refusal(file=binary)


def test_a_file_without_the_table_gives_nothing(toml: Any) -> None:
    assert settings(file=toml("# all of it commented out\n")) == TuneSettings(model="davenet")


def test_a_model_is_needed() -> None:
    with pytest.raises(UsageError, match=r"no model: name one, such as davenet"):
        resolve_settings({}, {}, None)


@pytest.mark.parametrize(
    ("cli", "message"),
    [
        ({"gpu": "t4", "gpu_mem": "16G"}, "--gpu and --gpu-mem cannot be combined"),
        (
            {"torch": "2.8", "probe": "measure"},
            "--torch 2.8 predicts a release of PyTorch, and --probe measure",
        ),
        (
            {"torch": "1.4"},
            "--torch: how PyTorch 1.4 takes memory is not known: predictions follow 2.6 to 2.15",
        ),
        ({"torch": "nightly"}, "--torch: 'nightly' is no release of PyTorch such as 2.8"),
        ({"device": "cpu", "gpu": "t4"}, "--gpu cannot be combined with --device cpu"),
        ({"device": "cpu"}, "--device cpu needs a limit"),
        (
            {"device": "cpu", "gpu_mem": "4G", "probe": "predict"},
            "--probe predict predicts memory of GPUs",
        ),
        (
            {"device": "cpu", "gpu_mem": "4G", "allocator": "max_split:64"},
            "--allocator and --search allocator",
        ),
        ({"global_batch": 64, "parallel": "ddp:2"}, "--global-batch counts the samples of one process"),
        (
            {"global_batch": 64, "grad_accumulation": 2},
            "grad_accumulation and global_batch cannot be combined",
        ),
        (
            {"dispatch": "inline", "address": "head:6379"},
            "--address is for a Ray cluster and cannot be combined with --dispatch inline: drop one of them",
        ),
        ({"dispatch": "inline", "node_wait": 30}, "--node-wait is for a Ray cluster"),
        (
            {"dispatch": "inline", "node_wait": 5, "resources": "rack_a=1", "address": "auto"},
            "--address and --resources and --node-wait are for a Ray cluster",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(cli: dict[str, object], message: str) -> None:
    assert refusal(cli=cli).startswith(message)


def test_settings_made_without_resolving_are_checked_too() -> None:
    with pytest.raises(UsageError, match="cannot be combined"):
        TuneSettings(model="davenet", gpu=find_gpu("t4"), gpu_mem_bytes=GIB)


@pytest.mark.parametrize("number", ["0", "-5", "1e6", "many"])
def test_an_epoch_has_one_sample_at_least(number: str) -> None:
    said = refusal(cli={"gpu": "t4", "samples": number})
    assert said.startswith("--samples: ")
    assert number in said


@pytest.mark.parametrize(
    "line", ['gpu = "t4, a100-40g"', 'gpu = ["t4", "a100-40g"]', 'gpu = ["T4", "Tesla T4", "a100-40g"]']
)
def test_several_cards_are_a_fleet(tmp_path: Path, line: str) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(f'[tune]\nmodel = "davenet"\n{line}\n')
    assert chosen_cards({}, {}, file) == ("t4", "a100-40g")
    assert resolve_settings({"gpu": "h200"}, {}, file).gpu == find_gpu("h200")
    assert chosen_cards({"gpu_mem": "16G"}, {}, file) == ()
    with pytest.raises(UsageError, match="t4, a100-40g are several cards: name one with --gpu"):
        resolve_settings({}, {}, file)


def test_a_card_of_a_fleet_that_does_not_exist_is_named() -> None:
    with pytest.raises(UsageError, match=r"--gpu: no card named 'a101'"):
        chosen_cards({"gpu": "t4,a101"}, {}, None)


@pytest.mark.parametrize(
    "value",
    [
        ["set-to-none=true,false", "optimizer_impl=fused"],
        {"set_to_none": [True, False], "optimizer-impl": ["fused"]},
    ],
)
def test_what_is_searched_may_be_a_list_or_a_table(value: object) -> None:
    assert settings({"search": value}).searched == (
        ("set_to_none", (True, False)),
        ("optimizer_impl", ("fused",)),
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"search": "precisoin=fp32"}, "'precisoin' is no knob to search"),
        ({"search": "precision=fp31"}, "'fp31' is not one of"),
        ({"search": ""}, "'' is no knob to search"),
        ({"search": "precision"}, "precision has no values: write each knob once, as precision=A,B"),
        ({"search": "precision=fp32;precision=bf16"}, "precision is named twice"),
        ({"search": "conv-algo=cudnn"}, "are those of --conv-algo A,B"),
        (
            {"search": "precision=fp32", "precision": "bf16"},
            "--precision sets what --search precision=… chooses",
        ),
    ],
)
def test_what_cannot_be_searched_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        settings(given)


def test_a_higher_place_decides_whether_a_knob_is_set_or_searched(toml: Any) -> None:
    file = toml("[tune]\nprecision = 'bf16'\nsearch = {optimizer-impl = ['fused', 'loop']}\n")
    searching = settings({"search": "precision=fp32,bf16"}, file=file)
    assert (searching.searched, searching.knobs.precision) == ((("precision", ("fp32", "bf16")),), "fp32")
    setting = settings({"optimizer_impl": "fused"}, file=file)
    assert (setting.searched, setting.knobs.optimizer_impl, setting.knobs.precision) == ((), "fused", "bf16")


def test_a_higher_place_decides_how_a_batch_is_accumulated_and_what_is_run(toml: Any) -> None:
    file = toml("[tune]\ngrad-accumulation = 2\nscript = 'train.py'\nbatch-arg = '--bs'\n")
    found = settings({"global_batch": 64}, file=file)
    assert (found.knobs.global_batch, found.knobs.grad_accumulation) == (64, None)
    assert (found.script, found.batch_argument) == (None, None)


def test_what_is_searched_is_told_as_it_could_be_typed(toml: Any) -> None:
    file = toml("[tune]\nsearch = {precision = ['fp32', 'bf16'], set-to-none = [true, false]}\n")
    told = chosen_options({"model": "davenet"}, {}, file)["search"]
    assert told == "precision=fp32,bf16;set-to-none=true,false"
    assert settings({"search": told}).searched == settings(file=file).searched


# ── what is fixed ───────────────────────────────────────────────────────────────────────────────


def test_knobs_are_given_wherever_and_whatever_they_are_and_searched_ones_are_fixed(toml: Any) -> None:
    assert settings().fixed_knobs == frozenset()
    file = toml('[tune]\nallocator = "default"\n')
    given = {"precision": "fp32", "search": "memory-format=contiguous,channels_last"}
    resolved = settings(given, {"AUTOFIT_CHECKPOINTING": "blocks"}, file)
    assert set(resolved.given_knobs) == {"precision", "checkpointing", "allocator"}
    assert resolved.fixed_knobs == {"memory_format"}
    assert settings({"conv_algo": "cudnn"}).fixed_knobs == {"conv_algo"}
    assert settings({"conv_algo": "all"}).fixed_knobs == {"conv_algo"}


def test_an_adapters_file_is_read_where_a_user_names_it(tmp_path: Path) -> None:
    (file := tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4}')
    assert settings({"adapter": str(file)}).knobs.adapter == "lora:r=4"
    assert "cannot be read" in refusal(cli={"adapter": str(tmp_path / "missing.json")})
