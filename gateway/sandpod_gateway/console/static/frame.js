// Shows what a program made, in a frame that has no rights: the page around it sends it once.
const STYLE = "body{font:13px/1.5 system-ui,sans-serif;margin:8px}table{border-collapse:collapse}td,th{padding:3px 9px;border:1px solid #d5dae1;text-align:right}";

addEventListener("message", (event) => {
  if (event.source !== parent || typeof event.data !== "string") return;
  document.open();
  document.write(`<!doctype html><style>${STYLE}</style>`, event.data);
  document.close();
  const tell = () => parent.postMessage({ height: document.body.scrollHeight }, "*");
  addEventListener("load", tell);
  setTimeout(tell, 50);
}, { once: true });
addEventListener("load", () => parent.postMessage({ ready: true }, "*"), { once: true });
