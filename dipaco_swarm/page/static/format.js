// Numbers as people read them. Everything that comes from the run is put into the page as text, never as markup.

export const count = (n) => {
  if (n === null || n === undefined) return "–";
  const a = Math.abs(n);
  for (const [size, unit] of [[1e12, " T"], [1e9, " B"], [1e6, " M"], [1e3, " k"]])
    if (a >= size * 0.9995) { const v = n / size; return `${v >= 99.95 ? Math.round(v) : v.toFixed(v >= 9.995 ? 1 : 2)}${unit}`; }
  return a >= 100 || Number.isInteger(n) ? String(Math.round(n)) : n.toPrecision(2);
};
export const fixed = (n, digits) => (n === null || n === undefined ? "–" : n.toFixed(digits));
export const percent = (n) => (n === null || n === undefined ? "–" : `${n >= 0.9995 ? 100 : n > 0.1 ? Math.round(n * 100) : (n * 100).toFixed(1)} %`);
export const perplexity = (loss) => {
  if (loss === null || loss === undefined) return null;
  return Math.exp(Math.min(loss, 60));
};
export const short = (n) => (n === null || n === undefined ? "–" : n >= 1000 ? count(n) : n.toFixed(n >= 100 ? 0 : n >= 10 ? 1 : 2));
export const duration = (s) => {
  if (s === null || s === undefined) return "–";
  const m = Math.round(s / 60);
  if (s < 90) return `${Math.round(s)} s`;
  if (m < 90) return `${m} min`;
  const h = Math.round(s / 3600);
  if (h < 48) return `${Math.floor(m / 60)} h ${m % 60} min`;
  return h < 24 * 14 ? `${Math.floor(h / 24)} d ${h % 24} h` : `${Math.round(h / 24)} days`;
};
export const clock = (at, seconds = false) =>
  new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", ...(seconds ? { second: "2-digit" } : {}), hour12: false });
export const day = (at) => new Date(at * 1000).toLocaleDateString([], { day: "numeric", month: "short" });
export const moment = (at) => (Math.abs(Date.now() / 1000 - at) < 20 * 3600 ? clock(at) : `${day(at)}, ${clock(at)}`);
export const ago = (at) => {
  const s = Math.max(0, Date.now() / 1000 - at);
  return s < 45 ? "now" : `${duration(s)} ago`;
};
export const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
export const tail = (peer) => peer.slice(-8);

/** An element: its class, text or children, and attributes. */
export const el = (tag, options = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(options)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") made.className = value;
    else if (key === "text") made.textContent = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
};

/** A peer as people read it: what it calls itself, and the end of the name that nobody can choose. */
export const who = (peer, name, here) =>
  el("span", { class: here === undefined ? null : here ? "here" : "away" },
    name ? el("span", { class: "chosen", dir: "auto", text: name }) : null, name ? " " : null,
    el("span", { class: "id", text: tail(peer) }));

/** Colours of several paths, apart in both themes. */
export const hues = (n) => Array.from({ length: n }, (_, i) => `hsl(${Math.round((185 + i * (n < 5 ? 78 : 360 / n)) % 360)} 52% 52%)`);
