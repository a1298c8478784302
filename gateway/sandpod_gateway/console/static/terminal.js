// A terminal in the sandbox, over a WebSocket that may break: what was typed and shown goes on where it was.
import { told } from "./api.js";
import { FitAddon } from "./vendor/xterm-addon-fit.js";
import { Terminal } from "./vendor/xterm-xterm.js";

const WINDOW = 192 * 1024; // bytes of input that wait for the server's word
const PAUSES = [250, 500, 1000, 2000, 5000, 10_000]; // ms before it connects again
const $ = (id) => document.getElementById(id);

export class TerminalPane {
  constructor(sandbox) {
    this.address = `${location.origin.replace(/^http/, "ws")}/api/v1/sandboxes/${encodeURIComponent(sandbox)}/terminal`;
    this.screen = new Terminal({ fontSize: 13, fontFamily: getComputedStyle(document.body).getPropertyValue("--mono"), scrollback: 5000, screenReaderMode: true, theme: { background: "#10141b", foreground: "#e7eaee" } });
    this.fit = new FitAddon();
    this.screen.loadAddon(this.fit);
    this.screen.open($("screen"));
    this.fit.fit();
    this.screen.onData((text) => this.type(new TextEncoder().encode(text)));
    this.screen.onBinary((text) => this.type(Uint8Array.from(text, (char) => char.charCodeAt(0))));
    this.screen.onResize(({ cols, rows }) => this.say({ resize: [cols, rows] }));
    new ResizeObserver(() => $("screen").offsetParent && this.fit.fit()).observe($("screen"));
    $("terminal-new").onclick = () => this.begin();
    for (const event of ["online", "visibilitychange"]) document.addEventListener(event, () => this.hurry());
    addEventListener("online", () => this.hurry());
    addEventListener("pagehide", () => this.socket?.close(1000));
    this.begin();
  }

  begin() {
    Object.assign(this, { name: null, received: 0, base: 0, input: new Uint8Array(0), sent: 0, failures: 0, ended: false });
    this.screen.reset();
    $("terminal-new").hidden = true;
    this.connect();
  }

  connect() {
    clearTimeout(this.waiting);
    this.waiting = null;
    this.state(this.name ? "Connecting again…" : "Connecting…");
    const query = this.name
      ? { terminal: this.name, received: this.received }
      : { cols: this.screen.cols, rows: this.screen.rows };
    const socket = (this.socket = new WebSocket(`${this.address}?${new URLSearchParams(query)}`));
    socket.binaryType = "arraybuffer";
    socket.onmessage = ({ data }) => (typeof data === "string" ? this.heed(JSON.parse(data)) : this.show(new Uint8Array(data)));
    socket.onclose = (event) => socket === this.socket && this.closed(event);
  }

  heed(said) {
    if (said.terminal) {
      this.name = said.terminal;
      this.failures = 0;
      this.state("Connected");
      this.taken(said.received);
      this.sent = 0; // what the sandbox does not have is sent anew
      this.flush();
      this.say({ resize: [this.screen.cols, this.screen.rows] });
    } else if ("taken" in said) {
      this.taken(said.taken);
      this.flush();
    } else if (said.exit) this.end(`Ended: ${said.exit.detail ?? said.exit.outcome}${said.exit.exit_code == null ? "" : `, exit code ${said.exit.exit_code}`}`);
    else if (said.error) this.end(`${said.error.message} ${said.error.next ?? ""}`);
  }

  show(data) {
    this.received += data.length;
    const upTo = this.received;
    this.screen.write(data, () => this.say({ ack: upTo }));
  }

  type(data) {
    if (this.ended) return;
    const joined = new Uint8Array(this.input.length + data.length);
    joined.set(this.input);
    joined.set(data, this.input.length);
    this.input = joined;
    this.flush();
  }

  /** Forgets input that the sandbox has: so many bytes from the terminal's beginning. */
  taken(count) {
    const done = Math.min(this.input.length, Math.max(0, count - this.base));
    this.input = this.input.slice(done);
    this.sent = Math.max(0, this.sent - done);
    this.base += done;
  }

  flush() {
    if (this.socket?.readyState !== WebSocket.OPEN || !this.name) return;
    const part = this.input.subarray(this.sent, WINDOW);
    if (part.length) this.socket.send(part);
    this.sent += part.length;
  }

  say(message) {
    if (this.socket?.readyState === WebSocket.OPEN && this.name) this.socket.send(JSON.stringify(message));
  }

  closed({ code }) {
    if (this.ended) return;
    if (code === 1008 || (!this.name && this.failures >= 2)) return this.end("The terminal could not be opened. Load the page again.");
    if (this.failures >= 20) return this.end("The server can't be reached.");
    const pause = PAUSES[Math.min(this.failures, PAUSES.length - 1)];
    this.failures += 1;
    this.state("The connection broke; connecting again…");
    this.waiting = setTimeout(() => this.connect(), pause);
  }

  hurry() {
    if (this.waiting && !document.hidden) this.connect();
  }

  end(text) {
    this.ended = true;
    this.state(text);
    $("terminal-new").hidden = false;
    told(); // the sandbox may have ended with it
  }

  state(text) {
    $("terminal-state").textContent = text;
  }

  focus() {
    this.fit.fit();
    this.screen.focus();
  }
}
