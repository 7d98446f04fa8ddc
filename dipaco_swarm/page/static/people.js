// The ranking, 25 rows at a time: a thousand peers cost a page no more than four.
import { el, count, duration, ago, plural, who, short } from "./format.js";

const COUNT = 25;
const COLUMNS = [
  ["rank", "", null], ["who", "peer", "name"], ["path", "path", null], ["counted", "tokens counted", "counted"],
  ["offered", "time offered", "offered"], ["speed", "tokens/s now", null], ["last", "seen", "last"],
];
let start = 0, sort = "counted", asked = 0, timer = null;

const heading = () => el("tr", {}, ...COLUMNS.map(([key, words, by]) =>
  el("th", { scope: "col", class: key === "who" ? "left" : ["speed", "last", "path"].includes(key) ? "narrow-out" : null,
    "aria-sort": by ? (sort === by ? (by === "name" ? "ascending" : "descending") : "none") : null },
    by ? el("button", { type: "button", text: words, onclick: () => { sort = by; start = 0; refresh(); } }) : words || el("span", { class: "hidden", text: "rank" }))));

const line = (row) => el("tr", {},
  el("td", { class: "quiet", text: row.rank }),
  el("td", { class: "left who" }, el("a", { href: `#/peer/${encodeURIComponent(row.peer)}`, title: row.peer }, who(row.peer, row.name, row.here))),
  el("td", { class: "narrow-out", text: row.path }),
  el("td", { text: count(row.counted) }),
  el("td", { text: duration(row.offered) }),
  el("td", { class: "narrow-out", text: row.speed === null ? "–" : short(row.speed) }),
  el("td", { class: "narrow-out", text: ago(row.last) }));

export const refresh = async () => {
  const mine = ++asked;
  const query = new URLSearchParams({ start, count: COUNT, sort, find: document.getElementById("find").value.trim() });
  if (document.getElementById("here").checked) query.set("here", "1");
  try {
    const answer = await fetch(`api/peers?${query}`);
    if (!answer.ok || mine !== asked) return;
    const found = await answer.json();
    if (mine !== asked) return;
    const table = document.getElementById("people"), focus = document.activeElement?.getAttribute?.("href");
    table.tHead.replaceChildren(heading());
    table.tBodies[0].replaceChildren(...found.rows.map(line));
    if (focus && table.contains(document.activeElement) === false) table.querySelector(`a[href="${CSS.escape(focus)}"]`)?.focus();
    const end = start + found.rows.length;
    document.getElementById("page").textContent = found.total ? `${start + 1} to ${end} of ${plural(found.total, "peer")}` : "nobody of that kind yet";
    document.getElementById("before").disabled = start === 0;
    document.getElementById("after").disabled = end >= found.total;
  } catch { /* the line is lost; the state above says so */ }
};

export const begin = () => {
  const later = () => { clearTimeout(timer); timer = setTimeout(() => { start = 0; refresh(); }, 200); };
  document.getElementById("find").addEventListener("input", later);
  document.getElementById("here").addEventListener("change", later);
  document.getElementById("before").addEventListener("click", () => { start = Math.max(0, start - COUNT); refresh(); });
  document.getElementById("after").addEventListener("click", () => { start += COUNT; refresh(); });
};
