"""The readers of the tables, on lines in the tables' form."""

from __future__ import annotations

import pytest

from tests.bench.tables import gpumemnet_timm, synthetic_cnn, synthetic_net, timm_brackets, xmem
from tests.bench.tables.families import ACCEPTANCE_FAMILIES, family_of, groups_of, registered
from tests.bench.tables.setting import Setting
from tests.bench.tables.synthetic_recipe import Recipe
from tests.bench.tables.timm_history import had_fast_norms

XMEM_HEADER = (
    "family,model,optimizer,batch_size,gpu,gpu_total_bytes,real_oom,ground_nvml_peak_bytes,xmem_est_bytes,"
    "xmem_runtime_s,dnnmem_est_bytes,schedtune_est_bytes,llmem_est_bytes,zero_grad_mode_effective_by_code,"
    "target_iteration\n"
)
TIMM_HEADER = "timm_model,batch_size,real_max_gpu_mem_MiB\n"
BRACKETS_HEADER = (
    "mode,precision,layout,torch,gpu,model,img_size,fits_batch,did_not_fit_batch,param_count_M\n"
)
SYNTHETIC_HEADER = (
    "Filename,Depth,Activations-Params,Activation Function,Total Parameters,Batch Size,"
    "Max GPU Memory (MiB),Status\n"
)


@pytest.mark.parametrize(
    ("model", "module", "family"),
    [
        ("resnet50", "resnet", "resnet"),
        ("wide_resnet50_2", "resnet", "resnet"),
        ("seresnext50_32x4d", "resnet", "resnext"),
        ("resnetv2_50", "resnetv2", "resnetv2"),
        ("efficientnetv2_rw_s", "efficientnet", "efficientnet"),
        ("mobilenetv2_100", "efficientnet", "mobilenet"),
        ("mobilenetv3_large_100", "mobilenetv3", "mobilenet"),
        ("deit_base_patch16_224", "deit", "vit"),
        ("vit_base_patch16_224", "vision_transformer", "vit"),
        ("vit_relpos_base_patch16_224", "vision_transformer_relpos", "vit-relpos"),
        ("swinv2_cr_tiny_224", "swin_transformer_v2_cr", "swin"),
        ("coat_tiny", "coat", "coat"),
        ("forgotten", None, "gone"),
    ],
)
def test_the_module_decides_the_family(model: str, module: str | None, family: str) -> None:
    assert family_of(model, module) == family


def test_the_families_with_a_promise_are_a_class_of_their_own() -> None:
    assert len(ACCEPTANCE_FAMILIES) == 10
    assert groups_of("vit") == ("acceptance",)
    assert groups_of("coat") == ()


def test_models_and_their_old_names_are_read_from_source() -> None:
    source = """
@register_model
def new_name(pretrained=False, **kwargs):
    pass

def helper():
    pass

register_model_deprecations(__name__, {
    'old_name': 'new_name.tag',
})
"""
    assert registered(source) == ["new_name", "old_name"]


def test_settings_that_differ_have_keys_that_differ() -> None:
    first = Setting(source="timm", model="a/b c")
    assert first.key == Setting(source="timm", model="a/b c").key
    assert first.key.startswith("a_b_c-")
    assert first.key != Setting(source="timm", model="a/b c", memory_format="channels_last").key


def test_an_xmem_run_that_ran_out_of_memory_has_only_its_label(tmp_path) -> None:
    (tmp_path / xmem.FILE).write_text(
        XMEM_HEADER
        + "CNN,VGG16,SGD,657,RTX 4060,8318222336,true,7000000000,8e9,20,7e9,6.5e9,,1?,3\n"
        + "Transformer,T5-small,AdamW,10,RTX 3060,12622168064,false,2766143488,2835349504,37,1,2,-1,0,3\n"
        + "Transformer,T5-small,AdamW,10,RTX 3060,12622168064,false,2766143488,2835349504,37,1,2,-1,1?,3\n"
    )
    oom, ran, unchosen = xmem.read(tmp_path)
    assert (oom.ran, oom.measured_bytes, oom.total_bytes) == (False, None, 8318222336)
    assert (oom.gpu, oom.architecture, oom.family, oom.groups) == ("rtx-4060", "sm_89", "vgg", ("CNN",))
    assert (oom.setting.model, oom.setting.step, oom.setting.image_size) == ("vgg16", "xmem-middle", 86)
    assert "LLMem" not in oom.others
    assert (ran.ran, ran.measured_bytes, ran.setting.step) == (True, 2766143488, "xmem-tokens-begin")
    assert unchosen.setting.step == "xmem-tokens-end"
    assert ran.setting.release == "transformers==4.51.3"
    assert (oom.measured_from, ran.measured_from) == ("step 1 input", "")
    assert ran.others == {"xMem": 2835349504, "DNNMem": 1, "SchedTune": 2, "LLMem": None}


def name(**changes: str) -> str:
    values = {"channels": "3", "depth": "2", "arch": "uniform", "size": "8", "norm": "False", **changes}
    return (
        f"input_channels:{values['channels']}_num_classes:5_depth:{values['depth']}_arch:{values['arch']}"
        f"_base_filters:4_batch:6_input_size:{values['size']}_act:leaky_relu_dropout:0.25_dropout:True"
        f"_batchnorm:{values['norm']}.out"
    )


def test_a_synthetic_run_says_in_its_name_how_it_was_made(tmp_path) -> None:
    layers = "\"[('conv2d', 256, 112), ('linear', 5, 25)]\""
    (tmp_path / synthetic_cnn.FILE).write_text(
        SYNTHETIC_HEADER
        + f"{name()},2,{layers},LeakyReLU,137,6,2000,SUCCESSFUL\n"
        + f"{name()},2,{layers},LeakyReLU,137,6,30000,OOM_CRASH\n"
        + f"{name()},2,[],LeakyReLU,137,6,0,SUCCESSFUL\n"
    )
    ran, oom = synthetic_cnn.read(tmp_path)
    assert (ran.measured_bytes, ran.ran, ran.family) == (2000 * 1024**2, True, "uniform")
    assert (oom.measured_bytes, oom.ran) == (None, False)
    recipe = Recipe.from_name(ran.setting.model)
    assert (recipe.activation, recipe.dropout_rate, recipe.batch_norm) == ("leaky_relu", 0.25, False)
    assert ran.setting.layers == (("conv2d", 256, 112), ("linear", 5, 25))
    assert ran.setting.step == "gpumemnet"


def test_models_that_cannot_have_been_trained_on_imagenet_are_a_group_of_their_own(tmp_path) -> None:
    (tmp_path / gpumemnet_timm.FILE).write_text(
        TIMM_HEADER + "resnet50_clip,8,3131\nresnet101_clip,8,2183\nresnet18,8,2153\n"
    )
    features, too_few, usual = gpumemnet_timm.read(tmp_path)
    assert [row.setting.num_classes for row in (features, too_few, usual)] == [None, None, 1000]
    assert [row.groups[-1] for row in (features, too_few, usual)] == [
        gpumemnet_timm.ENOUGH,
        gpumemnet_timm.TOO_FEW,
        gpumemnet_timm.ENOUGH,
    ]


def test_peaks_of_timm_models_stand_beside_what_was_said_of_live_tensors(tmp_path) -> None:
    (tmp_path / gpumemnet_timm.FILE).write_text(TIMM_HEADER + "resnet18,8,2153.0\nresnet18,9,2200.0\n")
    known, unknown = gpumemnet_timm.read(tmp_path)
    live_bytes, with_constant_bytes = known.others.values()
    assert live_bytes is not None and with_constant_bytes is not None
    assert 0 < live_bytes < 300 * 1024**2  # parameters, and activations of eight images
    assert with_constant_bytes - live_bytes == 1775 * 1024**2
    assert set(unknown.others.values()) == {None}


@pytest.mark.parametrize(
    ("architecture", "layers", "num_parameters"),
    [
        ("uniform", (("conv2d", 256, 112), ("conv2d", 256, 148), ("linear", 5, 25)), 285),
        (
            # A 1×1 convolution beside two layers; then a block that halves the sides to 4.
            "residual",
            (
                ("conv2d", 256, 16),
                ("conv2d", 256, 112),
                ("conv2d", 256, 148),
                ("conv2d", 96, 30),
                ("conv2d", 96, 222),
                ("conv2d", 96, 330),
                ("linear", 5, 35),
            ),
            893,
        ),
        ("dense", (), 20),  # too shallow for a block
    ],
)
def test_synthetic_networks_have_the_layers_that_are_listed(
    architecture: str, layers: synthetic_net.Layers, num_parameters: int
) -> None:
    recipe = Recipe.from_name(name(arch=architecture))
    network = synthetic_net.build(recipe, layers)
    assert sum(parameter.numel() for parameter in network.parameters()) == num_parameters


def test_layers_that_the_recipe_does_not_make_are_refused() -> None:
    recipe = Recipe.from_name(name())
    with pytest.raises(ValueError, match="the table lists"):
        synthetic_net.build(recipe, (("conv2d", 256, 999), ("linear", 5, 25)))


@pytest.mark.parametrize(
    ("module", "torch_release", "expected"),
    [
        ("vision_transformer", "2.4", False),
        ("vision_transformer", "2.9", True),
        ("convnext", "2.1", True),
        ("eva", "2.4", True),
    ],
)
def test_vision_transformers_have_fast_norms_since_2025(
    module: str, torch_release: str, expected: bool
) -> None:
    assert had_fast_norms(module, torch_release) is expected


def test_models_of_timm_are_traced_with_the_release_that_ran(tmp_path) -> None:
    (tmp_path / gpumemnet_timm.FILE).write_text(TIMM_HEADER + "ese_vovnet57b,8,2987.0\n")
    ran = "rtx3090,resnet50,224,256,384,25.56\n"
    (tmp_path / timm_brackets.TRAIN_FILE).write_text(BRACKETS_HEADER + "train,amp,nchw,1.12," + ran)
    (tmp_path / timm_brackets.INFER_FILE).write_text(BRACKETS_HEADER + "infer,amp,nchw,2.1," + ran)
    readers = (gpumemnet_timm.read, timm_brackets.read_train, timm_brackets.read_infer)
    releases = [row.setting.release for read in readers for row in read(tmp_path)]
    assert releases == ["timm==1.0.12", "timm==0.6.7", ""]
