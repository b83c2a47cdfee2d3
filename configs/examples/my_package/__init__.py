"""A user's package with a model class, as `--model my_package.models:ResNet` names it."""
