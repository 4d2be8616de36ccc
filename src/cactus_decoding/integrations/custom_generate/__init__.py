"""The parts of `cactus_decoding.integrations.transformers`."""
