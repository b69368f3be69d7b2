"""Start of the child process, in the user's own Python: ``python bootstrap.py PACKAGE_FOLDER REQUEST REPORT``.

gpurig need not be installed there: the package is loaded from its folder, and nothing else of the parent's environment
becomes visible to the script.
"""

import importlib.util
import sys
from pathlib import Path


def load_package(folder: Path) -> None:
    """Make ``import gpurig`` mean the package in `folder`, without touching sys.path."""
    spec = importlib.util.spec_from_file_location(
        "gpurig", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpurig"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    del sys.path[0]  # this folder: the script must not see it
    load_package(Path(sys.argv[1]))
    from gpurig.trace.script.child import main

    main(Path(sys.argv[2]), Path(sys.argv[3]))
