"""Trainable modules that draft from the target's features: their configuration, layers, files and public layouts."""
