"""Run a program: at the server of SANDPOD_URL, or at one that is started here."""

from sandpod import Sandbox

with Sandbox() as sandbox:
    print(sandbox.run("1 + 1").result)
