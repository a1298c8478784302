// What a program writes, as it comes: bounded in the page, whatever comes, and drawn once a frame.
import { render, Style } from "./ansi.js";

const MAX_LINES = 4000; // in the page
const MAX_LINE = 4000; // characters of a line that are shown
const MAX_WAITING = 400_000; // characters of a stream that wait to be drawn

class Stream {
  waiting = "";
  raw = ""; // of the last line, which may go on
  long = 0; // characters of it that are not shown
  style = new Style();
  begin = new Style(); // the style at the beginning of that line
  element = null;

  constructor(name) {
    this.name = name;
  }
}

export class Output {
  constructor(pane) {
    this.pane = pane;
    this.forget();
  }

  clear() {
    this.forget();
    this.pane.replaceChildren();
  }

  forget() {
    this.streams = { out: new Stream("out"), err: new Stream("err") };
    this.dropped = 0; // lines
    this.note = null;
    this.drawing = 0;
  }

  write(name, text) {
    if (!text) return;
    const stream = this.streams[name];
    stream.waiting += text;
    if (stream.waiting.length > MAX_WAITING) {
      const cut = stream.waiting.length - MAX_WAITING / 2;
      const lines = count(stream.waiting, cut);
      if (lines) { // what is before it would not stay in the page
        this.dropped += lines;
        stream.waiting = stream.waiting.slice(stream.waiting.lastIndexOf("\n", cut) + 1);
        Object.assign(stream, { raw: "", long: 0, element: null });
      } else {
        stream.long += stream.waiting.length - MAX_LINE;
        stream.waiting = stream.waiting.slice(0, MAX_LINE);
      }
    }
    this.drawing ||= requestAnimationFrame(() => this.draw());
  }

  /** Says something that no program wrote. */
  say(text, kind = "cut") {
    this.draw();
    const line = document.createElement("p");
    line.className = kind;
    line.textContent = text;
    this.pane.append(line);
    this.pane.scrollTop = this.pane.scrollHeight;
  }

  draw() {
    cancelAnimationFrame(this.drawing);
    this.drawing = 0;
    const pane = this.pane;
    const follows = pane.scrollHeight - pane.scrollTop - pane.clientHeight < 40;
    for (const stream of Object.values(this.streams)) this.drawStream(stream);
    while (pane.childElementCount > MAX_LINES) {
      this.dropped += 1;
      (pane.firstElementChild === this.note ? this.note.nextElementSibling : pane.firstElementChild).remove();
    }
    if (this.dropped) {
      if (!this.note?.isConnected) {
        this.note = document.createElement("p");
        this.note.className = "cut";
        pane.prepend(this.note);
      }
      this.note.textContent = `${this.dropped.toLocaleString()} earlier lines are not shown.`;
    }
    if (follows) pane.scrollTop = pane.scrollHeight;
  }

  drawStream(stream) {
    if (!stream.waiting) return;
    const lines = stream.waiting.split("\n");
    stream.waiting = "";
    const surplus = lines.length - MAX_LINES;
    if (surplus > 1) {
      this.dropped += surplus - 1;
      lines.splice(1, surplus - 1);
    }
    lines.forEach((text, index) => {
      if (index) this.end(stream);
      this.extend(stream, text);
    });
  }

  end(stream) {
    if (!stream.element && !stream.raw) this.line(stream); // an empty one
    Object.assign(stream, { raw: "", long: 0, element: null, begin: stream.style.copy() });
  }

  extend(stream, text) {
    if (!text) return;
    stream.raw += text;
    const again = stream.raw.replace(/\r+$/, "").lastIndexOf("\r");
    if (again >= 0) stream.raw = stream.raw.slice(again + 1); // it is written anew, as by a progress bar
    if (stream.raw.length > MAX_LINE) {
      stream.long += stream.raw.length - MAX_LINE;
      stream.raw = stream.raw.slice(0, MAX_LINE);
    }
    if (!stream.element?.isConnected) this.line(stream);
    stream.element.replaceChildren();
    stream.style = stream.begin.copy();
    render(stream.raw.replace(/\r+$/, ""), stream.style, stream.element);
    if (stream.long) {
      const rest = document.createElement("span");
      rest.className = "cut";
      rest.textContent = ` … ${stream.long.toLocaleString()} more characters`;
      stream.element.append(rest);
    }
  }

  line(stream) {
    stream.element = document.createElement("div");
    stream.element.className = `line ${stream.name}`;
    this.pane.append(stream.element);
  }
}

function count(text, end) {
  let lines = 0;
  for (let at = text.indexOf("\n"); at >= 0 && at < end; at = text.indexOf("\n", at + 1)) lines += 1;
  return lines;
}
