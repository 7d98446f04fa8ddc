// A page for each peer and each path, below its own address: #/peer/12D3..., #/path/3.
import { el, count, duration, fixed, moment, percent, perplexity, plural, short, who } from "./format.js";
import { draw } from "./charts.js";

const fact = (words, value, kind) => el("div", {}, el("dt", { text: words }), el("dd", { class: kind, text: value }));
const back = () => el("p", { class: "back" }, el("a", { href: "#/", text: "← the whole run" }));
const heading = (...words) => el("h2", { id: "detail-title", tabindex: "-1" }, ...words);

const missing = (words) => el("section", {}, back(), heading(words));

const peer = async (name) => {
  const answer = await fetch(`api/peers/${encodeURIComponent(name)}`);
  if (!answer.ok) return [missing("Nobody of that name was seen in this run.")];
  const found = await answer.json(), now = found.member;
  const state = now === null ? "not here just now" : !now.awake ? "silent for a while" : now.catching_up ? "catching up" : "training";
  return [el("section", {}, back(), heading(who(found.peer, found.name, found.here)),
    el("dl", {},
      fact("rank", `${found.rank} of ${found.of}`),
      fact("tokens counted", count(found.counted)),
      fact("of all that counted", percent(found.share)),
      fact("time offered", duration(found.offered)),
      fact("here since", moment(found.first)),
      fact("seen", moment(found.last)),
      fact("now", state),
      el("div", {}, el("dt", { text: now === null ? "last path" : "path" }), el("dd", {}, el("a", { href: `#/path/${found.path}`, text: `path ${found.path}` }))),
      ...(now === null ? [] : [
        fact("loss", fixed(now.loss, 3)),
        fact("trained lately", now.trained === null ? "–" : `${percent(now.trained)} of the time`),
        fact("speed", `${short(now.tokens_per_second)} tokens/s`),
        fact("version of its modules", now.version),
        fact("can be dialled", now.reachable ? "yes" : "no, it dials others"),
        fact("moves", now.moves ? "goes where it is needed" : "stays on its path"),
      ]),
      fact("name that nobody can choose", found.peer, "id")),
    el("p", { class: "note", text: "Speed and loss are this peer's own word. Tokens counted are its share of what its modules' versions have behind them." }))];
};

const path = async (index, about, rows) => {
  const answer = await fetch(`api/paths/${index}`);
  const row = rows.find((each) => each[0] === index);
  if (!answer.ok || !row) return [missing(`There is no path ${index} that is trained in this stage.`)];
  const found = await answer.json(), [, peers, low, high, speed, loss, heldout] = row;
  const place = el("div", { class: "chart tall" });
  const table = el("table", {}, el("caption", { class: "hidden", text: `peers that train path ${index}` }),
    el("thead", {}, el("tr", {}, ...["peer", "loss", "tokens/s", "version", "state"].map((words, i) => el("th", { scope: "col", class: i ? null : "left", text: words })))),
    el("tbody", {}, ...found.members.map((m) => el("tr", {},
      el("td", { class: "left who" }, el("a", { href: `#/peer/${encodeURIComponent(m.peer)}` }, who(m.peer, m.name, true))),
      el("td", { text: fixed(m.loss, 3) }), el("td", { text: short(m.tokens_per_second) }), el("td", { text: m.version }),
      el("td", { text: m.catching_up ? "catching up" : m.awake ? "training" : "silent" })))));
  const shown = [el("section", {}, back(), heading(`Path ${index}`),
    el("dl", {},
      fact("modules", about.table[index].map((m, level) => `L${level}M${m}`).join(" ")),
      fact("peers", peers || "nobody"), fact("training loss", fixed(loss, 4)),
      fact("held-out perplexity", heldout === null ? "–" : short(perplexity(heldout))),
      fact("version", low === high ? low : `${low} to ${high}`), fact("speed", `${count(speed)} tokens/s`),
      fact("share of the documents", percent(about.shares[index]))), place),
    el("section", {}, el("h3", { text: peers ? "Who trains it" : "Nobody trains it; --path auto finds the way" }), peers ? el("div", { class: "scroll" }, table) : null,
      found.more ? el("p", { class: "note", text: `and ${plural(found.more, "peer")} more` }) : null)];
  return [...shown, () => draw(place, { at: found.at, tall: true, label: `loss of path ${index}`, format: (v) => v.toFixed(2),
    lines: [{ values: found.loss, kind: "strong", name: "loss" }], none: "its curve begins when it has been trained for a while" })];
};

let shown = "";

/** Draw what the address names; false where it names the run itself. */
export const route = async (state) => {
  const [, kind, name] = location.hash.match(/^#\/(peer|path)\/(.+)$/) || [];
  const home = document.getElementById("home"), place = document.getElementById("detail");
  const fresh = shown !== location.hash;
  shown = location.hash;
  if (!kind) {
    const was = !place.hidden;
    home.hidden = false; place.hidden = true; place.replaceChildren();
    if (was) document.getElementById("content").focus({ preventScroll: true });
    return false;
  }
  if (!state.about) return true;
  const parts = kind === "peer" ? await peer(decodeURIComponent(name)) : await path(Number(name), state.about, state.paths);
  if (shown !== location.hash) return true;
  home.hidden = true; place.hidden = false;
  place.replaceChildren(...parts.filter((part) => typeof part !== "function"));
  parts.filter((part) => typeof part === "function").forEach((part) => part());
  if (fresh) { scrollTo(0, 0); document.getElementById("detail-title").focus({ preventScroll: true }); }
  return true;
};
