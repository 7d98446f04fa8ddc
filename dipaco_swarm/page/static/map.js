// The coverage map: a cell for each path, in the order of the two levels that branch where there are just two.
import { el, count, fixed, plural } from "./format.js";

export const shades = { peers: "peers", loss: "loss", speed: "speed", behind: "versions" };
let shade = "peers", shape = "", cells = [], state = null;

export const setShade = (value) => { shade = value; if (state) paint(); };

/** How the path table is laid out: rows and columns of modules where all pairs of two levels are paths, else in lines. */
const layout = (about, rows) => {
  const table = about.table, levels = table[0].length;
  const branching = [...Array(levels).keys()].filter((level) => new Set(table.map((row) => row[level])).size > 1);
  if (branching.length === 2) {
    const [a, b] = branching;
    const as = [...new Set(table.map((row) => row[a]))].sort((p, q) => p - q);
    const bs = [...new Set(table.map((row) => row[b]))].sort((p, q) => p - q);
    const at = new Map(table.map((row, i) => [`${row[a]} ${row[b]}`, i]));
    if (at.size === table.length && as.length * bs.length === table.length)
      return { kind: "table", a, b, as, bs, path: (p, q) => at.get(`${p} ${q}`) };
  }
  return { kind: "lines", columns: Math.min(32, Math.max(1, Math.ceil(Math.sqrt(rows.length * 2)))) };
};

export const drawMap = (about, now, rows, modules) => {
  state = { about, now, rows, modules };
  const place = document.getElementById("map");
  const wanted = JSON.stringify([about.table, about.resting]);
  if (wanted !== shape) { shape = wanted; build(place, about, rows); }
  paint();
};

const build = (place, about, rows) => {
  const plan = layout(about, rows);
  const large = about.table.length > 64;
  place.className = `map ${plan.kind} ${large ? "large" : "small"}`;
  cells = about.table.map((modules, index) => {
    const rests = about.resting.includes(index);
    return el(rests ? "span" : "a", { class: rests ? "cell rests" : "cell", href: rests ? null : `#/path/${index}` });
  });
  if (plan.kind === "table") {
    place.style.gridTemplateColumns = `${large ? "34px" : "58px"} repeat(${plan.bs.length}, minmax(0, 1fr))`;
    const key = (level, index) => el("span", { class: "key", "data-module": `L${level}M${index}`, text: large ? `M${index}` : `L${level}M${index}` });
    place.replaceChildren(
      el("span", { class: "key", text: large ? `L${plan.a}\\${plan.b}` : "" }),
      ...plan.bs.map((q) => key(plan.b, q)),
      ...plan.as.flatMap((p) => [key(plan.a, p), ...plan.bs.map((q) => cells[plan.path(p, q)])]));
  } else {
    place.style.gridTemplateColumns = `repeat(auto-fill, minmax(${large ? 22 : 74}px, 1fr))`;
    place.replaceChildren(...cells);
  }
};

const value = (row, lows) => {
  const [, peers, low, high, speed, loss] = row;
  if (shade === "peers") return peers ? Math.min(1, Math.log2(1 + peers) / Math.log2(1 + lows.peers)) : 0;
  if (shade === "speed") return lows.speed ? speed / lows.speed : 0;
  if (shade === "behind") return lows.version[1] > lows.version[0] ? (low - lows.version[0]) / (lows.version[1] - lows.version[0]) : 1;
  return loss === null || lows.loss[1] <= lows.loss[0] ? 0 : (lows.loss[1] - loss) / (lows.loss[1] - lows.loss[0]);
};

const paint = () => {
  const { rows, about, modules } = state, large = about.table.length > 64;
  const losses = rows.map((row) => row[5]).filter((loss) => loss !== null);
  const lows = {
    peers: Math.max(2, ...rows.map((row) => row[1])),
    speed: Math.max(...rows.map((row) => row[4] || 0)),
    version: [Math.min(...rows.map((row) => row[2])), Math.max(...rows.map((row) => row[2]))],
    loss: [Math.min(...losses), Math.max(...losses)],
  };
  for (const row of rows) {
    const [index, peers, low, high, speed, loss] = row, cell = cells[index];
    if (!cell) continue;
    const v = value(row, lows);
    cell.style.setProperty("--v", v.toFixed(2));
    cell.classList.toggle("nobody", peers === 0);
    const where = about.table[index].map((m, level) => `L${level}M${m}`).join(" ");
    const shown = { peers, loss: loss === null ? "–" : loss.toFixed(1), speed: count(speed || 0).replace(" ", ""), behind: low }[shade];
    const said = `path ${index}, ${where}: ${peers ? plural(peers, "peer") : "nobody"}, loss ${fixed(loss, 3)}, version ` +
      `${low === high ? low : `${low} to ${high}`}, ${count(speed)} tokens/s`;
    if (cell.said === `${shown} ${said}`) continue;
    cell.said = `${shown} ${said}`;
    cell.title = said;
    // what is drawn is short; who listens hears all of it
    if (large) cell.replaceChildren(String(shown), el("span", { class: "hidden", text: ` ${shades[shade]}; ${said}` }));
    else cell.replaceChildren(el("b", { text: `path ${index}` }), peers ? `${plural(peers, "peer")}, loss ${fixed(loss, 2)}` : "nobody yet",
      el("span", { class: "hidden", text: `, ${where}, version ${low === high ? low : `${low} to ${high}`}` }));
  }
  const least = state.now.minimum;
  const trouble = new Map(modules.map((m) => [m[0], m[2] === 0 ? "bad" : m[2] < least || !m[5] ? "warn" : ""]));
  for (const key of document.querySelectorAll("#map .key[data-module]")) {
    const kind = trouble.get(key.dataset.module) || "";
    if (key.className !== `key ${kind}`.trim()) key.className = `key ${kind}`.trim();
  }
  const empty = rows.filter((row) => row[1] === 0).length;
  document.getElementById("map-note").textContent =
    (empty ? `${plural(empty, "path")} of ${rows.length} ${empty === 1 ? "has" : "have"} nobody; hatched. ` : "Every path is trained. ") +
    (about.resting.length ? `${plural(about.resting.length, "path")} ${about.resting.length === 1 ? "rests" : "rest"} in this stage. ` : "") +
    "A path takes one module of each level.";
};

const CHIPS = 40;

export const drawModules = (now, modules) => {
  const place = document.getElementById("modules");
  const least = now.minimum, newest = {};  // levels have clocks of their own
  const level = (m) => m[0].split("M")[0];
  for (const m of modules) newest[level(m)] = Math.max(newest[level(m)] || 0, m[1]);
  const behind = (m) => m[1] < newest[level(m)] - 1;
  const levels = new Map();
  for (const module of modules) {
    if (!levels.has(level(module))) levels.set(level(module), []);
    levels.get(level(module)).push(module);
  }
  const rank = (m) => (m[2] === 0 ? 0 : m[2] < least ? 1 : !m[5] ? 2 : behind(m) ? 3 : 4);
  place.replaceChildren(...[...levels].map(([name, all]) => {
    const shown = all.length <= CHIPS ? all : [...all].sort((p, q) => rank(p) - rank(q) || p[1] - q[1]).slice(0, CHIPS);
    const chips = shown.map((m) => {
      const [module, version, holders, keepers, peers, agree] = m;
      const kind = ["bad", "warn", "warn", "behind", ""][rank(m)];
      const words = holders === 0 ? "nobody has it" : !agree ? "holders differ" : `held by ${holders}`;
      return el("li", { class: `chip ${kind}`, title: `${module}: version ${version}, ${words}, of them ${plural(keepers, "keeper")}; trained by ${plural(peers, "peer")}` },
        `M${module.split("M")[1]} v${version} `, el("span", { class: "held", text: words }));
    });
    const more = all.length - shown.length;
    return el("div", { class: "level" }, el("h3", { text: name }),
      el("ul", { class: "chips" }, ...chips, more ? el("li", { class: "chip", text: `and ${more} more, all well` }) : null));
  }));
  const lost = modules.filter((m) => m[2] === 0).length, few = modules.filter((m) => m[2] > 0 && m[2] < least).length;
  const differ = modules.filter((m) => !m[5]).length;
  const late = modules.filter(behind).length;
  document.getElementById("modules-note").textContent = [
    lost ? `${plural(lost, "module")} that nobody has` : null,
    few ? `${plural(few, "module")} with fewer than ${least} holders` : null,
    differ ? `${plural(differ, "module")} whose holders differ, healing` : null,
    late ? `${plural(late, "module")} more than one version behind the others of the level` : null,
  ].filter(Boolean).join("; ") || `All ${modules.length} are held by ${least} or more, with the same bytes everywhere.`;
};
