"""Starts a program whose modules come as a zip file at the beginning of the input. Its name is the argument."""

import importlib
import os
import sys

archive = os.memfd_create("modules")
with open(archive, "wb", closefd=False) as file:
    file.write(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))
# In place of the workspace, where a file of the user's may have a standard module's name.
sys.path[0] = f"/proc/self/fd/{archive}"
importlib.import_module(f"sandpod_gateway.packages.inside.{sys.argv[1]}").run()
