"""The script door: trace an unmodified training script in a child process, without a GPU.

It executes the user's code. The child has a time limit, sees no GPU, is kept off the network and off logging services,
and is stopped after the second or third optimizer step.
"""

from __future__ import annotations

from gpurig.trace.script.parent import trace_script
from gpurig.trace.script.request import ScriptRequest, ScriptTrace

__all__ = ["ScriptRequest", "ScriptTrace", "trace_script"]
