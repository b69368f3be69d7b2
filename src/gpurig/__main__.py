"""``python -m gpurig`` is ``gpurig``."""

from gpurig.cli import main

if __name__ == "__main__":
    main()
