"""Commands that need not import torch first: one process has done so, and forks a new one for each.

A forked process has the libraries and nothing of ours: it imports mdl's modules itself. A test of the interpreter's own
start says `fresh=True`; processes that commands start are not forked by this one in any case.
"""

import gc
import importlib
import os
import runpy
import sys
import types

from mdl.peers.launch.nursery import become, wait_for_a_command

# What a peer, an agent and a cloud import of others.
LIBRARIES = (
    "torch",
    "torch._dynamo",  # with the first optimizer of torch.optim
    "safetensors.numpy",
    "safetensors.torch",
    "zmq",
    "zeroconf",
    "psutil",
    "msgspec",
    "typer",
    "rich.live",
)


def _run(words):
    """`python WORDS`."""
    program, *arguments = words
    more = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    if program == "-m":
        sys.path[:0] = [os.getcwd(), *more]
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif program == "-c":
        sys.path[:0] = ["", *more]
        code, sys.argv = arguments[0], [program, *arguments[1:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(code, "<command>", "exec"), main.__dict__)
    else:
        sys.path[:0] = [os.path.dirname(os.path.abspath(program)), *more]
        sys.argv = words
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    for library in LIBRARIES:
        importlib.import_module(library)
    for name in [name for name in sys.modules if name.split(".")[0] == "mdl"]:
        del sys.modules[name]
    gc.collect()
    request, files = wait_for_a_command(int(sys.argv[1]))
    become(request, files)
    _run(request["words"])
