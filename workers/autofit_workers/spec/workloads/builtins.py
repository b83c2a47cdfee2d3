"""Built-in workloads by name; their files are in `autofit_workers.workload.models`.

To add one, write its file with a `Workload` in it, and add an entry below.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinWorkload:
    """Description of a workload that autofit brings along, available without importing its module.

    Attributes:
        description: description in one line.
        source: the paper or comparison that it was written from.
        module, attribute: module and attribute of its `Workload`.
        sample: the natural size of one sample, in words.
        optimizer: name of its default optimizer.
    """

    name: str
    description: str
    source: str
    module: str
    attribute: str
    sample: str
    optimizer: str


_HARWATH_2018 = (
    "Harwath et al. 2018, Jointly Discovering Visual Objects and Spoken Words from Raw Sensory Input"
)

BUILTINS = {
    builtin.name: builtin
    for builtin in (
        BuiltinWorkload(
            name="davenet",
            description="DAVEnet, both branches, with the sampled margin ranking loss",
            source=_HARWATH_2018,
            module="autofit_workers.workload.models.davenet",
            attribute="davenet",
            sample="a 3×224×224 image and its 40×1024 spectrogram",
            optimizer="sgd-momentum",
        ),
        BuiltinWorkload(
            name="davenet-audio",
            description="the audio branch of DAVEnet",
            source=_HARWATH_2018,
            module="autofit_workers.workload.models.davenet",
            attribute="davenet_audio",
            sample="a 40×1024 spectrogram",
            optimizer="sgd-momentum",
        ),
        BuiltinWorkload(
            name="davenet-image",
            description="the image branch of DAVEnet",
            source=_HARWATH_2018,
            module="autofit_workers.workload.models.davenet",
            attribute="davenet_image",
            sample="a 3×224×224 image",
            optimizer="sgd-momentum",
        ),
        BuiltinWorkload(
            name="vgg16",
            description="VGG-16 (configuration D), 1000 classes",
            source=(
                "Simonyan & Zisserman 2015, Very Deep Convolutional Networks for Large-Scale "
                "Image Recognition"
            ),
            module="autofit_workers.workload.models.vgg",
            attribute="vgg16",
            sample="a 3×224×224 image",
            optimizer="sgd-momentum",
        ),
        BuiltinWorkload(
            name="resnet50",
            description="ResNet-50 (v1.5), 1000 classes",
            source="He et al. 2016, Deep Residual Learning for Image Recognition",
            module="autofit_workers.workload.models.resnet",
            attribute="resnet50",
            sample="a 3×224×224 image",
            optimizer="sgd-momentum",
        ),
        BuiltinWorkload(
            name="gpt2",
            description="GPT-2 with 124 million parameters, next-token prediction",
            source="Radford et al. 2019, Language Models are Unsupervised Multitask Learners",
            module="autofit_workers.workload.models.gpt2",
            attribute="gpt2",
            sample="a sequence of 1024 tokens",
            optimizer="adamw",
        ),
        BuiltinWorkload(
            name="wavenet",
            description="WaveNet: gated dilated convolutions of raw audio, 256 classes a sample",
            source="van den Oord et al. 2016, WaveNet: A Generative Model for Raw Audio",
            module="autofit_workers.workload.models.wavenet",
            attribute="wavenet",
            sample="one second of audio, 16,000 samples",
            optimizer="adam",
        ),
        BuiltinWorkload(
            name="lstm",
            description="the large LSTM language model of Penn Treebank, 66 million parameters",
            source="Zaremba et al. 2014, Recurrent Neural Network Regularization",
            module="autofit_workers.workload.models.lstm",
            attribute="lstm",
            sample="a sequence of 35 words",
            optimizer="sgd",
        ),
        *(
            BuiltinWorkload(
                name=f"big-filter:{size}",
                description=f"three filters of {size}×{size} over frames of one channel; batch = frames",
                source="a question on TensorFlow's memory for large filters, 2017",
                module="autofit_workers.workload.models.big_filter",
                attribute=f"big_filter_{size}",
                sample="a 1×321×481 frame",
                optimizer="sgd",
            )
            for size in (5, 7, 135)
        ),
        BuiltinWorkload(
            name="conv1x1",
            description="a linear map of each step as a 1×1 convolution, 32 to 512",
            source="a comparison of the memory of 1×1 convolution and matrix product",
            module="autofit_workers.workload.models.pointwise",
            attribute="conv1x1",
            sample="a sequence of 1000 steps",
            optimizer="sgd",
        ),
        BuiltinWorkload(
            name="matmul1x1",
            description="the same map as a matrix product, with one copy of the filter a sample",
            source="a comparison of the memory of 1×1 convolution and matrix product",
            module="autofit_workers.workload.models.pointwise",
            attribute="matmul1x1",
            sample="a sequence of 1000 steps",
            optimizer="sgd",
        ),
    )
}
