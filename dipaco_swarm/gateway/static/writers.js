// Who has written what: a path has a colour, and the legend says which modules it was and who had them.
import { el, hues, tail } from "./format.js";

const MANY = 16;  // with more paths, colours go to those that write, in turn
const known = new Map();
let paths = 1;

export const begin = (count) => { paths = count; known.clear(); draw(); };

const colour = (path) => {
  const index = paths <= MANY ? path : [...known.keys()].indexOf(path) % MANY;
  return hues(Math.min(paths, MANY))[index];
};
const versions = (modules) =>
  Object.entries(modules).map(([module, state]) => `${module} version ${state.split(":")[0]}`).join(", ");
const by = (writer) => (writer.by === "this gateway" ? "this gateway" : `peer ${tail(writer.by)}`);

/** A place for what somebody writes from here on, in the colour of the path, which is named where it is another one. */
export const place = (writer, before) => {
  known.set(writer.path, writer);
  draw();
  const words = `path ${writer.path}: ${versions(writer.modules)}; written by ${by(writer)}`;
  const made = el("span", { class: "window", title: words, "data-path": writer.path },
    before?.dataset.path === String(writer.path) ? null : el("span", { class: "tag", text: `path ${writer.path}` }));
  made.style.setProperty("--path", colour(writer.path));
  return made;
};

const draw = () => {
  const rows = [...known].sort(([a], [b]) => a - b).map(([path, writer]) => {
    const row = el("li", {}, el("span", { class: "swatch", "aria-hidden": "true" }), el("b", { text: `path ${path}` }),
      el("span", { class: "more", text: `${versions(writer.modules)}; ${by(writer)}` }));
    row.style.setProperty("--path", colour(path));
    return row;
  });
  document.getElementById("legend").replaceChildren(...rows);
};
