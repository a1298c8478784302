// Terminal output as text with classes: colours and weights are kept, whatever else a program sends is dropped or named.
const sequence = /\x1b(?:\[([0-9;:]*)[ -/]*([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])/g;
const control = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g;
const weights = { 1: "b", 2: "d", 3: "i", 4: "u", 7: "r", 9: "s" };
const ends = { 22: "bd", 23: "i", 24: "u", 27: "r", 29: "s" };

/** Text in which control characters, and those that turn its direction, are seen rather than obeyed. */
export function plain(text) {
  return text.replace(control, (char) => {
    const code = char.charCodeAt(0);
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : `\u2039${code.toString(16).padStart(4, "0")}\u203a`;
  });
}

/** The nearest of the eight colours to one of 256. */
function nearest(number) {
  if (number < 16) return number % 8;
  if (number > 231) return number > 243 ? 7 : 0;
  const cube = number - 16;
  const [red, green, blue] = [Math.floor(cube / 36), Math.floor(cube / 6) % 6, cube % 6];
  return (red > 2 ? 1 : 0) | (green > 2 ? 2 : 0) | (blue > 2 ? 4 : 0);
}

function colour(codes) {
  const kind = codes.shift();
  if (kind === 5) return nearest(codes.shift() ?? 0);
  const [red = 0, green = 0, blue = 0] = codes.splice(0, 3);
  return (red > 127 ? 1 : 0) | (green > 127 ? 2 : 0) | (blue > 127 ? 4 : 0);
}

/** What is set at a point of a stream: `take` changes it by the parameters of one sequence. */
export class Style {
  weights = new Set();
  fore = null;
  back = null;

  take(parameters) {
    const codes = parameters.split(/[;:]/).slice(0, 32).map(Number);
    while (codes.length) {
      const code = codes.shift();
      if (code === 0) this.clear();
      else if (weights[code]) this.weights.add(weights[code]);
      else if (ends[code]) for (const each of ends[code]) this.weights.delete(each);
      else if (code === 38) this.fore = colour(codes);
      else if (code === 48) this.back = colour(codes);
      else if (code === 39) this.fore = null;
      else if (code === 49) this.back = null;
      else if (code >= 30 && code <= 37) this.fore = code - 30;
      else if (code >= 40 && code <= 47) this.back = code - 40;
      else if (code >= 90 && code <= 97) this.fore = code - 90;
      else if (code >= 100 && code <= 107) this.back = code - 100;
    }
  }

  clear() {
    this.weights.clear();
    this.fore = this.back = null;
  }

  get classes() {
    const colours = [this.fore === null ? "" : `f${this.fore}`, this.back === null ? "" : `g${this.back}`];
    return [...this.weights, ...colours].filter(Boolean).join(" ");
  }

  copy() {
    return Object.assign(new Style(), { weights: new Set(this.weights), fore: this.fore, back: this.back });
  }
}

/** Puts one line into an element, and leaves the style as it is at the line's end. */
export function render(line, style, into) {
  let from = 0;
  const put = (text) => {
    if (!text) return;
    const classes = style.classes;
    if (!classes) return into.append(plain(text));
    const span = document.createElement("span");
    span.className = classes;
    span.textContent = plain(text);
    into.append(span);
  };
  for (const found of line.matchAll(sequence)) {
    put(line.slice(from, found.index));
    from = found.index + found[0].length;
    if (found[2] === "m") style.take(found[1] || "0");
  }
  put(line.slice(from));
}
