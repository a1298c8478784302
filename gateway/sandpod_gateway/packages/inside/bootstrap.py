"""Runs a program of this package, whose modules come as a zip file first in the input. Its name is the argument."""

import importlib
import os
import sys

archive = os.memfd_create("modules")
with open(archive, "wb", closefd=False) as file:
    file.write(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))
# In place of the workspace, where a file of the user's may have a standard module's name.
sys.path[0] = f"/proc/self/fd/{archive}"
package = "sandpod_gateway.packages.inside"
importlib.import_module(f"{package}.stream").run(importlib.import_module(f"{package}.{sys.argv[1]}"))
