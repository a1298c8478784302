"""What the frames between gateway and runner say. One home for kinds and numbers; the format is in `frames`.

A stream starts with `hello` in both directions; then any number of runs and file requests share it. `id` is the
gateway's number of a request, `run` the gateway's name of a run (`RUN_ID`). Unknown fields are ignored, unknown kinds
are answered with `error`. All text is UTF-8.

Gateway to runner:

| t | fields | payload |
|---|---|---|
| hello | version | |
| run | run, language, args [str], env {str: str}, cwd (in the workspace), stdin (bool: input follows), timeout (seconds), output_limit (bytes), detached (bool), acks (bool: `ack` follows), key (idempotency key, 1 to 128 bytes, or absent), context (its name, 1 to 128 bytes, or absent for a fresh process) | code |
| stdin | run, eof (bool), offset (bytes of input before it, or absent: it comes next) | input |
| cancel | run | |
| follow | run, stdout, stderr (offsets, 0 where absent), acks (bool, as of `run`) | |
| ack | run, stdout, stderr (offsets up to which all has come) | |
| tail | id, run, cursor (0 is the beginning), wait (seconds, at most 30), limit (bytes, at most 1 MiB) | |
| list | id | |
| usage | id | |
| artifacts | id, since (the name of a run, or absent) | |
| restart | id, context | |
| file | id, op, path, and by op: see below | part of a file |
| ping | id | |
| resize | channel, cols, rows (of a terminal) | |

Runner to gateway:

| t | fields | payload |
|---|---|---|
| hello | version, languages {name: version}, workspace, memory_limit and packages_bytes (bytes or null), runs [names of the live ones] | |
| started | run | |
| known | run, as (the run that its key belongs to, or itself) | |
| out | run, stream (stdout or stderr), offset (bytes of that stream before this piece) | output, at most OUT_PIECE bytes |
| result | run, mime | one form of a cell's last value, at most MAX_RESULT bytes; text/plain is the first |
| display | run, mime (one of MIME_TYPES), index (0 for the first that was shown; forms of one thing share it) | a picture or other rich form that the run showed, at most MAX_DISPLAY bytes |
| end | run, outcome, exit_code (or null), signal (name or null), duration_ms, cpu_ms, max_rss_bytes, stdout_bytes, stderr_bytes, displays (how many of them and results a follower gets, of a detached run), displays_dropped (how many, results too, were too large, or beyond MAX_DISPLAYS), context (or null), context_state (kept, lost or null), artifacts (files that it created or changed: [{path, size, mtime}]), artifacts_more (how many are not named), detail (a sentence or null) | |
| reply | id; to `file` by op; to `tail` state (live or ended), cursor (where to go on), dropped (bytes after the asked cursor that are lost), pieces [[stream, bytes]], end (the fields of the run's `end`, or null); to `artifacts` entries [{path, size, mtime}], truncated; to `usage` cpu (seconds of processor time since the start), memory and memory_limit (bytes or null), disk and disk_limit (bytes of the file system with the workspace); to `list` runs [{run, language, detached, context (or null), started (Unix time), state, outcome (or null)}], contexts [{name, language, state (idle, busy or lost), started (Unix time)}] | part of a file; to `tail` the pieces |
| error | id, run or channel, code (an ErrorCode's value), message | |
| pong | id, runs [names of the live ones] | |
| bye | the last frame of a stream that the runner ends because its exec has ended | |

In both directions, about a channel; see below:

| t | fields | payload |
|---|---|---|
| open | channel (its name, as of a run), kind (terminal; absent: one that is there), received (offset before which the other side's bytes have come; absent: it says itself where it goes on), upto, mark, and by kind; in the answer also offset (where its bytes go on) | by kind |
| data | channel, offset (of the first byte), last (bool: none follows) | at most CHANNEL_PIECE bytes |
| credit | channel, upto (offset before which all is dealt with), mark (a number to give back with it) | |
| close | channel, stay (bool: it may be opened again), code and message of an error | |

`outcome` is ok, error, timeout, cancelled, out_of_memory, output_limit, or sandbox_lost where the runner was told to end. Every accepted `run` gets `started`, all of
its `out`, `display` and `result`, then exactly one `end`; a refused one gets `error` with `run` and nothing else. A run that is not detached
is cancelled when its stream has been gone for ORPHAN_GRACE seconds.

Who gets a run's output: the stream that started it, its owner; nobody owns a detached run. `follow` makes another stream the owner: it gets all
`out` from these offsets on (a gap that the log has lost shows in `offset`), the `display`s that nobody got, or all of
them where the run is detached, and then `end`, whether the run is live or ended. A run that is not detached waits for
a slow owner, and, after 128 KiB, for a new one while it has none. Where its owner reports by `ack` what has come, it waits
rather than lose from the log what has not: then nothing is missing, however a stream ends. A detached run never waits:
its owner gets from the log what it can take. `tail` asks for output without becoming the owner; its cursor counts the bytes of both streams in
the order in which they came, so that after `end` the last cursor is stdout_bytes + stderr_bytes. It is answered at once
where there is more than the cursor or the run has ended, and else when that comes about or `wait` is over.

A log holds 1.5 MiB of a run's output, and 1 MiB and a file of 16 MiB in the workspace's folder `.sandpod` for detached
runs and those with a key; the oldest is dropped first. Ended runs are remembered: of the latter kind the last 64, for
24 hours, and as many terminals; of the others the last 64, for 10 minutes; of all together 32 MiB of output. A run that was refused or
forgotten is not_found. A `run` can be sent again when it is not known whether it came: one whose name was used is
answered with `known`, as itself, and starts nothing. A `run` whose key a live or remembered run has, with the same code, language, args and context, is
answered with `known` in place of `started`, and nothing is started: `follow` brings the rest. With others it is refused.

A run with a context is a cell, of Python or JavaScript: it runs in a process that stays, so variables do too. A name
is of one language, until its context is restarted. Cells of one context wait for each
other, at most MAX_CELLS of them, and a cell's timeout counts from its own beginning. Its env, args and cwd change the
context from then on; what is left out (for cwd also ".") stays as it is. `sys.exit` and `process.exit` end the cell
alone. A promise that is the last value is waited for; what else a JavaScript cell leaves to the event loop goes on. Timeout, cancel
and output_limit interrupt the cell, as Ctrl-C would; a cell that does not end at that (in JavaScript one that is busy after
its first `await`) is killed with its context, and context_state says lost. It says lost too where the context's process had ended before: the cell ran without the
variables. Processes that a cell starts and leaves live until the context ends, which nothing outlives; their output
after the cell's end is read and forgotten, while threads' output goes to the current cell. `restart` ends the process,
with the cell that it runs; the next cell begins a new one. max_rss_bytes of a cell is the peak of its context so far.

File operations (paths relative to the workspace, or absolute inside it, spelled as `paths` says, here and in `artifacts`):

| op | fields | reply |
|---|---|---|
| read | offset, limit | size, mtime; payload the bytes |
| write | overwrite (bool), last (bool), abort (bool: forget the parts that came); parts of one id in order, the file appears whole at the last | size, sha256 (with the last part only; earlier parts get no reply) |
| list | recursive (bool), limit | entries [{path, kind, size, mtime, unreadable (true where permissions forbid to read it or look into it)}], truncated |
| stat | | path, kind, size, mtime |
| delete | recursive (bool) | |
| mkdir | | |
| move | destination, overwrite (bool) | |
| archive | archive (a name for it, chosen by the asker; no path), form (zip, or absent for a tar.gz), part (0 for the first, then one more each time) | last (bool: it was whole before); payload that part of the workspace; not_found where the archive was given up, after 60 seconds without a request |

The folder `.sandpod` is not listed and can't be used by any of them.

A channel carries bytes in both directions, each with offsets from its own beginning. `open` names it; its answer is an
`open`, or an `error` with `channel`. A sender has at most CHANNEL_WINDOW bytes on their way after the last `credit`,
and keeps those that are after it: `open` on any stream has it go on after what has come, so nothing is lost or comes
twice. A receiver that gets more, or a gap, ends the channel. What is opened again leaves the stream that it was on,
which gets `close`. A channel that nobody has for CHANNEL_GRACE seconds ends; so does one that is closed without `stay`.
A sandbox has at most MAX_CHANNELS of them. What comes for one that is not there is dropped: it may have been on its way.

A `terminal` has the fields cols, rows, env, cwd and timeout (as of a `run`), and as its payload the command, or nothing for the
shell itself. It is a run of the channel's name, detached, in shell: it is listed, cancelled and limited as one, and
`tail` has its end, but its output is the channel's alone. Where it must end it is hung up first.
"""

import re
from typing import Final

VERSION: Final = 1

RUN_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
LANGUAGES: Final = ("python", "javascript", "shell")  # those that the runner knows by itself; a template may add others
LANGUAGE: Final = re.compile(r"[a-z][a-z0-9_+#.-]{0,31}", re.ASCII)  # what a language's name looks like

OUT_PIECE: Final = 64 * 1024  # largest payload of an `out` frame, bytes: the size of a Linux pipe
MIME_TYPES: Final = (
    "text/plain",
    "text/html",
    "image/png",
    "image/svg+xml",
    "image/jpeg",
    "application/json",
    "text/latex",
    "text/markdown",
)
"""What a display or a result can be."""
MAX_DISPLAYS: Final = 32  # displays of one run, each form of one counted
MAX_DISPLAY: Final = 4 * 1024 * 1024  # largest display, bytes
MAX_PICTURES: Final = 8  # pictures of one run; those that are more are kept as files of the workspace
PICTURE_BYTES: Final = 400 * 1024
"""Bytes of all pictures of one run: in base64 they must fit into an answer of 900 KiB. Larger ones are scaled down."""
MAX_RESULT: Final = 512 * 1024  # largest form of a last value, bytes
MAX_CONTEXTS: Final = 8  # contexts of one sandbox
MAX_CELLS: Final = 8  # cells that wait for their turn in one context
FILE_PART: Final = 1024 * 1024  # largest part of a file in one frame, bytes
HIDDEN: Final = ".sandpod"
"""Folder of the workspace that is the runner's own: no file operation shows it or reaches into it."""
KEPT_OUTPUT: Final = 1536 * 1024  # bytes of output that are kept of each run; of a detached one more
MAX_RUNS: Final = 64  # runs at once in one sandbox
ORPHAN_GRACE: Final = 10.0  # seconds that a run outlives the stream that it was started on
STOP_GRACE: Final = 0.5  # seconds between TERM and KILL

CHANNEL_FRAMES: Final = ("open", "data", "credit", "close", "resize")
MAX_CHANNELS: Final = 16  # of one sandbox
CHANNEL_WINDOW: Final = 256 * 1024  # most bytes of one direction that are not acknowledged
CHANNEL_PIECE: Final = 64 * 1024  # largest payload of a `data` frame, bytes
CHANNEL_GRACE: Final = 60.0  # seconds that a channel stays when nobody has it
MAX_TERMINAL: Final = 1000  # columns or rows of a terminal

HANDED_OVER: Final = b"h"
READY: Final = b"r"
SOCKET: Final = "\0sandpod-runner"
"""Abstract Unix socket: inside the pod's own network namespace, and no program can remove it.

Who connects says one byte: HANDED_OVER, with the descriptors of its standard input and output, on which the frames
then pass while the socket stays open; or READY, which is answered with itself.

`serve --listen-fd N` listens on an inherited socket instead: the local backend connects to it from outside."""
