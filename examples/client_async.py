"""Follow a program while it runs, and bring a file in and out."""

import asyncio

from sandpod import AsyncSandbox

CODE = """
import csv
with open("numbers.csv") as file:
    for row in csv.reader(file):
        print("sum:", sum(map(int, row)), flush=True)
open("done.txt", "w").write("all summed")
"""


async def main() -> None:
    """Use a sandbox of its own, which is closed at the end."""
    async with AsyncSandbox() as sandbox:
        await sandbox.files.write("numbers.csv", "1,2,3\n40,2\n")
        result = await sandbox.run(CODE, on_stdout=lambda text: print(text, end=""))
        print(result.outcome, await sandbox.files.read_text("done.txt"))


asyncio.run(main())
