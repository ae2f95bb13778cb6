"""Source of normkit.numpy, .torch, .jax and .flax; pyproject.toml maps the names."""

raise ImportError("adapters/ is a source folder: install normkit, then import normkit.torch, ...")
