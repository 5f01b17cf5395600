"""What a controller knows and decides. The core needs torch and safetensors only; ``predictors.training`` learns from files."""
