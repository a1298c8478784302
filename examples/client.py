"""Run a program: at the server of SANDPOD_URL, or at one that runs or is started here."""

from sandpod import Sandbox

with Sandbox() as sandbox:
    print(sandbox.run("1 + 1").result)
