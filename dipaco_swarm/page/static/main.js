// What the run is comes as server-sent events: the whole picture once, then what changes. Curves are fetched now and then.
import { clock, count, day, duration, el, fixed, hues, moment, percent, perplexity, plural, short } from "./format.js";
import { draw } from "./charts.js";
import { drawMap, drawModules, setShade, shades } from "./map.js";
import * as people from "./people.js";
import { route } from "./detail.js";

const $ = (id) => document.getElementById(id);
const state = { about: null, now: null, paths: [], modules: [], feed: [] };
const RANGES = [["hour", 3600], ["day", 86400], ["week", 604800], ["all", 0]];
let range = 0, curves = null;

// ---------------------------------------------------------------------------------------------------------- the stream

const whole = (picture) => { Object.assign(state, picture); drawAll(); };
const change = (changed) => {
  for (const [part, value] of Object.entries(changed)) {
    if (part === "now") Object.assign(state.now, value);
    else if (part === "feed") state.feed = state.feed.concat(value).slice(-60);
    else if ((part === "paths" || part === "modules") && !Array.isArray(value)) for (const [i, row] of Object.entries(value)) state[part][i] = row;
    else state[part] = value;
  }
  drawAll(changed);
};
const listen = () => {
  const source = new EventSource("api/events");
  source.addEventListener("all", (event) => { whole(JSON.parse(event.data)); tell("live", "live"); });
  source.addEventListener("change", (event) => { if (state.now) change(JSON.parse(event.data)); });
  source.addEventListener("error", () => tell("lost", "the line is lost, trying again"));
};
const tell = (kind, words) => {
  $("state").className = `state ${kind}`;
  if ($("state-text").textContent !== words) $("state-text").textContent = words;
};

// ------------------------------------------------------------------------------------------------------------ drawing

const drawAll = (changed) => {
  const { about, now } = state;
  if (!about || !now) return;
  const has = (part) => !changed || part in changed;
  if (has("about")) drawAbout();
  if (has("now") || has("about")) { drawFigures(); drawStages(); }
  if (has("feed")) drawFeed();
  if (has("paths") || has("modules") || has("about") || has("now")) { drawMap(about, now, state.paths, state.modules); }
  if (has("modules") || has("about")) drawModules(now, state.modules);
  if (!changed) { people.refresh(); fetchCurves(); route(state); }
};

const drawAbout = () => {
  const { about } = state;
  document.title = `${about.run} · dipaco-swarm`;
  $("run").textContent = about.run;
  $("since").textContent = about.guest
    ? `Seen by a guest since ${about.since ? moment(about.since) : "now"}; what was before, the operator's node has.`
    : about.since ? `Curves since ${day(about.since)}, ${clock(about.since)}.` : "";
  $("join").hidden = !about.address;
  if (about.address) $("command").textContent = `dipaco-peer --run '${about.address}'`;
};

const figure = (words, value, more, kind) =>
  el("div", {}, el("dt", { text: words }), el("dd", { class: `value ${kind || ""}`, text: value }), el("dd", { class: "more", text: more }));

/** Words, value and more of the figure that says when the stage ends. */
const drawnEnd = (now, about) => {
  if (now.finished) return ["the run", "finished", "it is served as it is"];
  if (now.target !== null && now.lowest >= now.target)
    return ["the stage", "trained", now.stage + 1 < about.stages.length ? "the next one is made ready" : "the run ends"];
  if (now.left !== null) return ["stage ends in", duration(now.left), `about ${moment(Date.now() / 1000 + now.left)}`];
  return ["stage ends in", "–", now.target === null ? "when the operator says so" : "known after some rounds"];
};

const drawFigures = () => {
  const { about, now } = state, held = perplexity(now.heldout), stage = about.stages[now.stage] || {};
  $("subtitle").textContent = [now.finished ? "finished" : `stage ${now.stage} of ${about.stages.length}`, stage.router,
    plural(now.paths, "path"), `${about.codec} on the wire`, about.company].join(" · ");
  const empty = now.paths - now.staffed;
  $("figures").replaceChildren(
    figure("training loss", fixed(now.loss, 3), now.loss === null ? "nobody has trained yet" : "mean of the paths, nats a token"),
    figure("held-out perplexity", held === null ? "–" : short(held), held === null ? "not measured in this run yet" : "best snapshots of the paths"),
    figure("tokens counted", count(now.tokens), now.counted ? `${count(now.counted)} a second lately` : "come into the model by rounds"),
    figure("speed", `${count(now.speed)}/s`, "tokens, as peers say"),
    figure("peers", now.peers.toLocaleString("en"), now.awake < now.peers ? `${now.peers - now.awake} silent` : `${plural(now.keepers, "keeper")} beside`),
    figure("paths trained", `${now.staffed} of ${now.paths}`, empty ? `${empty} ${empty === 1 ? "waits" : "wait"} for somebody` : "every one", empty && !now.finished ? "warn" : ""),
    figure("goodput", percent(now.goodput), now.goodput === null ? "after some rounds" : "of tokens trained came in"),
    figure(...drawnEnd(now, about)));
};

const drawStages = () => {
  const { about, now } = state;
  $("activity").textContent = now.activity ? `The node: ${now.activity}.` : "";
  $("stages").replaceChildren(...about.stages.map((stage, i) => {
    const kind = i < now.stage || now.finished ? "done" : i === now.stage ? "now" : "still";
    const paths = stage.paths === null ? "the same paths" : plural(stage.paths, "path");
    const goal = stage.rounds === null ? "ends when the operator says so" : plural(stage.rounds, "round");
    const parts = [el("span", { class: "mark", text: kind === "done" ? "✓" : i, "aria-hidden": "true" }),
      el("span", { class: "what", text: `${stage.router}, ${paths}` })];
    if (kind === "now") {
      const share = now.target ? Math.min(1, now.version / now.target) : null;
      if (share !== null) {
        const bar = el("div", { class: "bar", role: "progressbar", "aria-label": `stage ${i}`, "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.round(share * 100) }, el("span"));
        bar.firstChild.style.width = `${(share * 100).toFixed(1)}%`;
        parts.push(bar);
      }
      const round = now.round ? `a round in ${duration(now.round)}` : null;
      const left = now.left && !now.finished ? `done in about ${duration(now.left)}` : null;
      parts.push(el("span", { class: "more", text: [`version ${fixed(now.version, 1)}${now.target ? ` of ${now.target}` : ""}, slowest module ${now.lowest}`, round, left].filter(Boolean).join("; ") }));
    } else parts.push(el("span", { class: "more", text: kind === "done" ? `done, ${goal}` : `to come, ${goal}` }));
    return el("li", { class: kind, "aria-current": kind === "now" ? "step" : null }, ...parts);
  }));
};

const MARKED = new Set(["stage-opened", "run-finished", "router-fitted", "version-everywhere", "run-extended", "promoted", "stage-ends"]);
const drawFeed = () => {
  const rows = [...state.feed].reverse().map((event) =>
    el("li", { class: MARKED.has(event.kind) ? "mark" : null, title: event.kind },
      el("time", { datetime: new Date(event.at * 1000).toISOString(), text: Date.now() / 1000 - event.at < 72000 ? clock(event.at) : day(event.at) }),
      el("span", { text: event.line })));
  $("feed").replaceChildren(...(rows.length ? rows : [el("li", {}, el("time"), el("span", { class: "quiet", text: "nothing yet" }))]));
};

// ------------------------------------------------------------------------------------------------------------- curves

const fetchCurves = async () => {
  const wanted = range;
  try {
    const answer = await fetch(wanted ? `api/history?seconds=${wanted}` : "api/history");
    if (!answer.ok) return;
    const found = await answer.json();
    if (wanted === range) { curves = found; drawCurves(); }
  } catch { /* the state says that the line is lost */ }
};

/** The mean of some neighbours, so that batches of a few sequences do not hide where a curve goes. */
const smooth = (values) => {
  const reach = Math.floor(values.length / 90);
  return reach ? values.map((value, i) => {
    if (value === null) return null;
    const near = values.slice(Math.max(0, i - reach), i + reach + 1).filter((v) => v !== null);
    return near.reduce((sum, v) => sum + v, 0) / near.length;
  }) : values;
};

const drawCurves = () => {
  const { at, stage } = curves;
  const stages = stage;
  const paths = curves.paths || [], colors = hues(paths.length), several = paths.length > 1;
  const mean = { values: smooth(curves.loss), kind: "strong", name: several || curves.band ? "all paths" : "loss" };
  draw($("chart-loss"), {
    at, stages, tall: true, label: "training loss", format: (v) => v.toFixed(2), skipHigh: true,
    none: "the curve begins with the first look; wait some seconds",
    lines: [...(several ? paths.map((values, i) => ({ values: smooth(values), kind: "thin", name: `path ${i}`, color: colors[i] })) : []), mean], band: curves.band });
  $("chart-loss-note").textContent = (curves.band ? "Thick: the mean of all paths. Shaded: eight of ten paths. " : several ? "Thick: the mean; thin: each path. " : "") +
    (at.length >= 90 && !curves.band ? "Smoothed. " : "") + (new Set(stage).size > 1 ? "A dotted line is a new stage." : "");
  draw($("chart-tokens"), { at, stages, label: "tokens counted", format: count, zero: true, lines: [{ values: curves.tokens, kind: "strong", name: "tokens" }] });
  draw($("chart-speed"), { at, stages, label: "tokens a second", format: count, zero: true, lines: [
    { values: curves.counted, kind: "second", name: "counted" }, { values: curves.speed, kind: "strong", name: "as peers say" }] });
  draw($("chart-peers"), { at, stages, label: "peers that train", format: (v) => (Number.isInteger(v) ? count(v) : v.toFixed(1)), zero: true, lines: [{ values: curves.peers, kind: "strong", name: "peers" }, { values: curves.staffed, kind: "second", name: "paths trained" }] });
  draw($("chart-goodput"), { at, stages, label: "goodput", format: percent, zero: true, most: 1, lines: [{ values: curves.goodput, kind: "strong", name: "counted of trained" }], none: "known after some rounds" });
  draw($("chart-trained"), { at, stages, label: "share of the time trained", format: percent, zero: true, most: 1, lines: [{ values: curves.trained, kind: "strong", name: "of the time" }], none: "no peer says it yet" });
  draw($("chart-heldout"), { at, stages, label: "held-out perplexity", format: short, skipHigh: true, lines: [{ values: curves.heldout.map(perplexity), kind: "strong", name: "perplexity" }], none: "not measured yet" });
};

// ---------------------------------------------------------------------------------------------------------- the rest

const choice = (place, name, entries, chosen, pick) => {
  place.replaceChildren(...entries.map(([words, value]) => {
    const input = el("input", { type: "radio", name, value, onchange: () => pick(value) });
    input.checked = value === chosen;
    return el("label", {}, input, words);
  }));
};
choice($("range"), "range", RANGES, range, (value) => { range = value; fetchCurves(); });
choice($("shade"), "shade", Object.entries(shades).map(([value, words]) => [words, value]), "peers", setShade);
$("copy").addEventListener("click", async () => {
  try { await navigator.clipboard.writeText($("command").textContent); $("copy").textContent = "copied"; }
  catch { getSelection().selectAllChildren($("command")); $("copy").textContent = "marked: now copy"; }
  setTimeout(() => { $("copy").textContent = "copy"; }, 2500);
});
addEventListener("hashchange", () => route(state));
people.begin();
listen();
setInterval(() => {
  if (document.hidden) return;
  if ($("home").hidden) route(state); else { people.refresh(); fetchCurves(); }
}, 15000);
document.addEventListener("visibilitychange", () => { if (!document.hidden && state.now) { people.refresh(); fetchCurves(); } });
