"""A user whom the image does not list."""

import subprocess
import sys

ASK = """
import os
os.getuid = lambda: 54321
from sandpod_runner.zygote.hooks import name_own_user
name_own_user()
import getpass, pwd
entry = pwd.getpwuid(os.getuid())
print(entry.pw_name, entry.pw_uid, entry.pw_dir, pwd.getpwnam("someone").pw_uid, entry in pwd.getpwall())
del os.environ["LOGNAME"], os.environ["USER"]
print(getpass.getuser(), pwd.getpwuid(0).pw_name)
try: pwd.getpwuid(54322)
except KeyError: print("nobody")
"""


def test_user_without_an_entry_has_a_name_and_a_home() -> None:
    env = {"USER": "someone", "LOGNAME": "someone", "HOME": "/tmp/home", "PYTHONPATH": ":".join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", ASK], env=env, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["someone 54321 /tmp/home 54321 True", "sandbox root", "nobody"]
