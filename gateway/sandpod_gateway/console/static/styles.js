// Editor and terminal make style elements and style attributes, which the page's policy forbids: they get the page's
// nonce for the ones, and the same by the object model for the others. Nothing that a program prints becomes either.
export function allowStyles() {
  const make = document.createElement.bind(document);
  document.createElement = (name, ...rest) => {
    const made = make(name, ...rest);
    if (String(name).toLowerCase() === "style") made.nonce = document.body.dataset.nonce;
    return made;
  };
  const set = Element.prototype.setAttribute;
  Element.prototype.setAttribute = function (name, value) {
    if (name === "style") this.style.cssText = value;
    else set.call(this, name, value);
  };
}
