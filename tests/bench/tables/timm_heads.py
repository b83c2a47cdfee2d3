"""How many values timm's models return for an image where that is not ImageNet's number of classes.

Found by calling every model of timm 1.0.31 whose configuration names another number, on the meta device:
as they are made when nobody says how many classes there are. Those without a head return their features.
A run on ImageNet's labels ends with an assertion of the device in its first steps where there are fewer
values than classes.
"""

from __future__ import annotations

NUM_CLASSES = 1000
_MODELS = {
    192: """
        eva02_tiny_patch14_224 vit_pe_spatial_tiny_patch16_512 vit_tiny_patch16_dinov3_qkvb
    """,
    256: """
        samvit_base_patch16 samvit_huge_patch16 samvit_large_patch16
    """,
    384: """
        eva02_small_patch14_224 vit_pe_spatial_small_patch16_512 vit_small_patch14_dinov2
        vit_small_patch14_reg4_dinov2 vit_small_patch16_dinov3 vit_small_patch16_dinov3_qkvb
        vit_small_patch16_lingbot vit_small_patch8_224 vit_small_plus_patch16_dinov3
        vit_small_plus_patch16_dinov3_qkvb
    """,
    512: """
        eva02_base_patch16_clip_224 fastvit_mci0 fastvit_mci1 fastvit_mci2 resnet101_clip
        vit_base_mci_224 vit_base_patch16_clip_quickgelu_224 vit_base_patch32_clip_256
        vit_base_patch32_clip_quickgelu_224 vit_betwixt_patch32_clip_224 vit_medium_patch16_clip_224
        vit_medium_patch32_clip_224 vit_pe_core_small_patch16_384 vit_pe_core_tiny_patch16_384
        vit_xsmall_patch16_clip_224
    """,
    640: """
        resnet50x4_clip vit_base_patch16_plus_clip_240
    """,
    768: """
        eva02_base_patch14_224 eva02_large_patch14_clip_224 eva02_large_patch14_clip_336
        fastvit_mci3 fastvit_mci4 gemma4_vit_167m naflexvit_base_patch16_radio_v3
        naflexvit_base_patch16_siglip qwen3_vit_88m resnet50x16_clip sam2_hiera_small
        sam2_hiera_tiny vit_base_patch14_dinov2 vit_base_patch14_reg1_tipsv2
        vit_base_patch14_reg4_dinov2 vit_base_patch16_dinov3 vit_base_patch16_dinov3_qkvb
        vit_base_patch16_lingbot vit_base_patch16_radio_v3 vit_base_patch16_sapiens2
        vit_base_patch16_siglip_224 vit_base_patch16_siglip_256 vit_base_patch16_siglip_384
        vit_base_patch16_siglip_512 vit_base_patch16_siglip_gap_224 vit_base_patch16_siglip_gap_256
        vit_base_patch16_siglip_gap_384 vit_base_patch16_siglip_gap_512 vit_base_patch32_siglip_256
        vit_base_patch32_siglip_gap_256 vit_base_r50_s16_224 vit_large_patch14_clip_quickgelu_224
        vit_large_patch14_clip_quickgelu_336 vit_pe_spatial_base_patch16_512 vitamin_base_224
        vitamin_large_224 vitamin_large_256 vitamin_large_336 vitamin_large_384 vitamin_small_224
    """,
    896: """
        sam2_hiera_base_plus
    """,
    1024: """
        aimv2_large_patch14_224 aimv2_large_patch14_336 aimv2_large_patch14_448 davit_base_fl
        deepseek_vit_412m eva02_enormous_patch14_clip_224 eva02_large_patch14_224
        eva_giant_patch14_clip_224 naflexvit_large_patch16_radio_v3 qwen3_vit_306m
        qwen3_vit_88m_merge resnet50_clip resnet50x64_clip vit_giant_patch14_clip_224
        vit_huge_patch14_clip_378 vit_huge_patch14_clip_quickgelu_224
        vit_huge_patch14_clip_quickgelu_378 vit_intern300m_patch14_448 vit_large_patch14_dinov2
        vit_large_patch14_reg1_tipsv2 vit_large_patch14_reg4_dinov2 vit_large_patch16_dinov3
        vit_large_patch16_dinov3_qkvb vit_large_patch16_lingbot vit_large_patch16_radio_v3
        vit_large_patch16_sapiens2 vit_large_patch16_siglip_256 vit_large_patch16_siglip_384
        vit_large_patch16_siglip_512 vit_large_patch16_siglip_gap_256
        vit_large_patch16_siglip_gap_384 vit_large_patch16_siglip_gap_512 vit_large_patch32_224
        vit_pe_core_base_patch16_224 vit_pe_core_large_patch14_336 vit_pe_lang_large_patch14_448
        vit_pe_spatial_large_patch14_448 vitamin_large2_224 vitamin_large2_256 vitamin_large2_336
        vitamin_large2_384
    """,
    1152: """
        gemma4_vit_570m naflexvit_so400m_patch16_radio_v4 naflexvit_so400m_patch16_siglip
        qwen3_vit_416m sam2_hiera_large vit_so400m_patch14_reg1_tipsv2 vit_so400m_patch14_siglip_224
        vit_so400m_patch14_siglip_378 vit_so400m_patch14_siglip_384
        vit_so400m_patch14_siglip_gap_224 vit_so400m_patch14_siglip_gap_378
        vit_so400m_patch14_siglip_gap_384 vit_so400m_patch14_siglip_gap_448
        vit_so400m_patch14_siglip_gap_896 vit_so400m_patch16_radio_v4 vit_so400m_patch16_siglip_256
        vit_so400m_patch16_siglip_384 vit_so400m_patch16_siglip_512
        vit_so400m_patch16_siglip_gap_256 vit_so400m_patch16_siglip_gap_384
        vit_so400m_patch16_siglip_gap_512 vitamin_xlarge_256 vitamin_xlarge_336 vitamin_xlarge_384
    """,
    1280: """
        naflexvit_huge_patch16_radio_v3 naflexvit_huge_patch16_radio_v4
        vit_gigantic_patch14_clip_224 vit_gigantic_patch14_clip_378
        vit_gigantic_patch14_clip_quickgelu_224 vit_huge_patch14_224 vit_huge_patch14_gap_224
        vit_huge_patch16_gap_448 vit_huge_patch16_radio_v3 vit_huge_patch16_radio_v4
        vit_huge_patch16_sapiens2 vit_huge_plus_patch16_dinov3 vit_huge_plus_patch16_dinov3_qkvb
        vit_pe_core_gigantic_patch14_448
    """,
    1408: """
        vit_giant_patch16_gap_224
    """,
    1536: """
        aimv2_huge_patch14_224 aimv2_huge_patch14_336 aimv2_huge_patch14_448
        naflexvit_giant_patch16_radio_v3 vit_giant_patch14_dinov2 vit_giant_patch14_reg1_tipsv2
        vit_giant_patch14_reg4_dinov2 vit_giant_patch16_lingbot vit_giant_patch16_radio_v3
        vit_giant_patch16_sapiens2 vit_giantopt_patch16_siglip_256 vit_giantopt_patch16_siglip_384
        vit_giantopt_patch16_siglip_gap_256 vit_giantopt_patch16_siglip_gap_384
        vit_pe_lang_gigantic_patch14_448 vit_pe_spatial_gigantic_patch14_448
    """,
    2048: """
        aimv2_1b_patch14_224 aimv2_1b_patch14_336 aimv2_1b_patch14_448 davit_huge_fl
        mobilenetv5_300m qwen3_vit_306m_merge resnet101_clip_gap resnet50_clip_gap
    """,
    2432: """
        vit_5b_patch16_sapiens2
    """,
    2560: """
        resnet50x4_clip_gap
    """,
    2816: """
        focalnet_huge_fl4
    """,
    3072: """
        aimv2_3b_patch14_224 aimv2_3b_patch14_336 aimv2_3b_patch14_448 resnet50x16_clip_gap
    """,
    4096: """
        resnet50x64_clip_gap vit_7b_patch16_dinov3
    """,
    5120: """
        deepseek_vit_412m_align qwen3_vit_416m_merge
    """,
    11821: """
        coatnet_3_rw_224 vit_medium_patch16_gap_240
    """,
    19168: """
        mvitv2_base_cls mvitv2_huge_cls mvitv2_large_cls
    """,
    21841: """
        swinv2_base_window12_192 swinv2_large_window12_192 tiny_vit_11m_224 tiny_vit_21m_224
        tiny_vit_5m_224
    """,
    21842: """
        focalnet_huge_fl3 focalnet_large_fl3 focalnet_large_fl4 focalnet_xlarge_fl3
        focalnet_xlarge_fl4
    """,
    21843: """
        maxvit_xlarge_tf_224
    """,
}
NUM_OUTPUTS = {model: outputs for outputs, models in _MODELS.items() for model in models.split()}
