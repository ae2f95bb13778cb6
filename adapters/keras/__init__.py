"""Keras: only what `normkit.identify` needs to call a layer."""
