// A text that goes on, or a conversation where the model was taught to hold one. Nothing is kept: a reload forgets all.
// What comes from the model is put into the page as text, never as markup.
import { el, plural } from "./format.js";
import { Trouble, parts, read } from "./stream.js";
import * as writers from "./writers.js";

const $ = (id) => document.getElementById(id);
let about = null, key = "", under = null;
let text = "";     // where it goes on with texts: all of it so far
let turns = [];    // where it holds conversations: {role, content}

// -------------------------------------------------------------------------------------------------------- what it says

const tell = (kind, words) => { $("state").className = `state ${kind}`; $("state-text").textContent = words; };
const trouble = (words) => { $("trouble").hidden = !words; $("trouble").textContent = words || ""; };

const open = async () => {
  try {
    about = await read("about", key);
  } catch (error) {
    const locked = error.status === 401;
    $("door").hidden = !locked;
    tell("lost", locked ? "a key is needed" : "not reached");
    $("subtitle").textContent = error.message;
    if (locked) $("key").focus();
    return;
  }
  $("door").hidden = true;
  $("talk").hidden = false;
  document.title = `${about.run} · ask`;
  $("run").textContent = about.run;
  $("subtitle").textContent = [plural(about.paths, "path"), about.asks_peers ? "peers of the run write" : "this gateway writes"].join(" · ");
  $("text-title").textContent = about.chats ? "Conversation" : "Text";
  $("manner").textContent = about.chats
    ? "Each question goes out with the whole conversation before it. Nothing is kept: a reload forgets it."
    : "This model was not taught to hold conversations: it goes on with texts. Write a beginning; what you write next is put behind it. Nothing is kept.";
  $("log").dataset.empty = about.chats ? "Nobody has said anything yet." : "The text begins with what you write.";
  $("log").className = about.chats ? "" : "goes-on";
  $("words-label").textContent = about.chats ? "your question" : "your text";
  $("seen").textContent = about.asks_peers
    ? "Peers that write or check an answer see the whole text and this gateway's address, and can keep both. They are strangers: write nothing that no stranger may read."
    : "Nobody else sees what you write: this gateway has the model and asks no peers.";
  $("legend-note").textContent = about.paths === 1 ? "The run has one path." :
    `The colour says which of the ${about.paths} paths has written: the router chooses it by the text's first tokens${about.reroutes ? ", and anew in between if you like" : ""}.`;
  $("path").max = about.paths - 1;
  $("reroute-label").hidden = !about.reroutes;
  writers.begin(about.paths);
  ready();
  $("words").focus();
};

const ready = () => {
  tell("live", "ready");
  const goes = about.chats ? turns.at(-1)?.role === "user" : text !== "";
  $("send").textContent = $("words").value === "" && goes ? (about.chats ? "ask again" : "go on") : "send";
  $("send").disabled = $("words").value === "" && !goes;
  $("send").hidden = under !== null;
  $("stop").hidden = under === null;
  $("words").placeholder = about.chats ? "Ask something" : text === "" ? "The beginning of a text" : "What comes next, or nothing";
  $("anew").disabled = text === "" && turns.length === 0;
  $("log").setAttribute("aria-busy", String(under !== null));
  if (under) tell("live", "writing ...");
};

// -------------------------------------------------------------------------------------------------------- the text

const nearEnd = () => innerHeight + scrollY > document.documentElement.scrollHeight - 160;
const toEnd = () => scrollTo({ top: document.documentElement.scrollHeight });

const turn = (who, mine) => {
  const body = el("div", { class: "text", dir: "auto" });
  $("log").append(el("article", { class: mine ? "turn mine" : "turn" }, el("h3", { text: who }), body));
  return body;
};

/** Where the next words go; a text is one place, a conversation has one for each turn. */
const sheet = () => {
  if (about.chats) return turn(about.run, false);
  if (!$("log").firstChild) $("log").append(el("div", { class: "text", dir: "auto" }));
  return $("log").firstChild;
};

const say = (words) => {
  if (about.chats) {
    turn("you", true).textContent = words;
    turns.push({ role: "user", content: words });
  } else {
    sheet().append(el("span", { class: "mine", text: words }));
    text += words;
  }
};

const number = (id) => ($(id).value === "" ? undefined : Number($(id).value));
const asked = () => {
  const path = number("path");
  const how = {
    model: path === undefined ? about.run : `${about.run}:path-${path}`, max_tokens: number("tokens") ?? 128,
    temperature: number("temperature") ?? 0.8, top_k: number("top-k") ?? 40, seed: number("seed"),
    reroute: path === undefined ? number("reroute") : undefined };
  return about.chats ? ["v1/chat/completions", { ...how, messages: turns }] : ["v1/completions", { ...how, prompt: text }];
};

const write = async () => {
  const body = sheet(), signal = (under = new AbortController()).signal;
  let place = body, written = "", last = null;
  body.classList.add("writing");
  trouble("");
  ready();
  toEnd();
  try {
    const [address, question] = asked();
    for await (const part of parts(address, key, question, signal)) {
      last = part.dipaco || last;
      const choice = part.choices[0];
      if (!choice) continue;
      if (choice.written_by) body.append(place = writers.place(choice.written_by, body.lastElementChild));
      const words = choice.text ?? choice.delta?.content ?? "";
      if (!words) continue;
      const follow = nearEnd();
      place.append(words);
      written += words;
      if (follow) toEnd();
    }
    $("last").textContent = last ? `The last answer came with seed ${last[0].seed}: with it, the same modules write the same again.` : "";
  } catch (error) {
    if (error.name !== "AbortError") trouble(error instanceof Trouble ? error.message : `This page has a fault: ${error}`);
  } finally {
    body.classList.remove("writing");
    if (under?.signal === signal) under = null;
    if (body.isConnected) {  // else everything was begun anew meanwhile
      if (!about.chats) text += written;
      else if (written) turns.push({ role: "assistant", content: written });
      else body.parentElement.remove();
    }
    ready();
  }
};

// ----------------------------------------------------------------------------------------------------------- the rest

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (under || $("send").disabled) return;
  const words = $("words").value;
  if (words) say(words);
  $("words").value = "";
  write();
  $("words").focus();
});
$("words").addEventListener("input", ready);
$("words").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); $("ask").requestSubmit(); }
});
addEventListener("keydown", (event) => { if (event.key === "Escape") under?.abort(); });
$("stop").addEventListener("click", () => { under?.abort(); $("words").focus(); });
$("anew").addEventListener("click", () => {
  under?.abort();
  under = null;
  text = "";
  turns = [];
  $("log").replaceChildren();
  $("last").textContent = "";
  writers.begin(about.paths);
  trouble("");
  ready();
  $("words").focus();
});
const unfold = (shown) => {
  $("how").hidden = !shown;
  $("how-button").setAttribute("aria-expanded", String(shown));
};
$("how-button").addEventListener("click", () => unfold($("how").hidden));
$("how").addEventListener("invalid", () => unfold(true), true);  // a value that cannot be is shown, and said by the browser
$("door").addEventListener("submit", (event) => { event.preventDefault(); key = $("key").value; open(); });
open();
