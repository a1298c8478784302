"""`python -m sandpod`: the command line, where the program `sandpod` is not on the PATH."""

from sandpod.cli.main import main

main()
