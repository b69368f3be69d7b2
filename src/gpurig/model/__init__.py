"""The nouns of gpurig: frozen dataclasses with units in their names. Imports nothing of ours."""
