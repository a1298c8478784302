"""E2B's own client with a Sandpod server: only the address and the key are different."""

import os

from e2b_code_interpreter import Sandbox

server = os.environ.get("E2B_API_URL", "http://127.0.0.1:8000/e2b")
options = {
    "api_url": server,  # or set E2B_API_URL,
    "sandbox_url": server,  # E2B_SANDBOX_URL
    "api_key": os.environ.get("E2B_API_KEY", "none"),  # and E2B_API_KEY; a server without keys takes any
}

with Sandbox.create(timeout=300, **options) as sandbox:
    sandbox.commands.run("echo hello from the sandbox", on_stdout=lambda text: print(text, end=""))
    sandbox.run_code("squares = [n * n for n in range(4)]")
    print(sandbox.run_code("squares").text)
    sandbox.files.write("/home/user/notes.txt", "files are those of /workspace")
    print(*(entry.name for entry in sandbox.files.list("/home/user")))
