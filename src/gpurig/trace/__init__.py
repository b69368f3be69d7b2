"""From a training script, a step function or a model to a StepTrace. Importing this room does not import PyTorch."""
