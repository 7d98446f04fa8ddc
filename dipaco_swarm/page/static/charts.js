// Curves as SVG. A chart has lines over one time axis; a pointer or the arrow keys say the values at a time.
import { clock, day } from "./format.js";

const NS = "http://www.w3.org/2000/svg";
let plots = 0;
const svg = (tag, attributes = {}, text) => {
  const made = document.createElementNS(NS, tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
};
const tip = () => document.getElementById("tip");

/** Round values between two numbers, about so many. */
const ticks = (low, high, about) => {
  const raw = (high - low) / Math.max(1, about);
  const power = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw) || power;
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(value);
  return found;
};
const timeTicks = (from, to, about) => {
  const steps = [60, 300, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800, 1209600, 2592000, 7776000];
  const step = steps.find((s) => (to - from) / s <= about) || steps.at(-1);
  const shift = new Date(from * 1000).getTimezoneOffset() * 60;
  const found = [];
  for (let at = Math.ceil((from - shift) / step) * step + shift; at <= to; at += step) found.push(at);
  return found.map((at) => [at, step >= 86400 ? day(at) : clock(at)]);
};

/**
 * @param {HTMLElement} place
 * @param {{at: number[], lines: {values: (number|null)[], kind?: string, name: string, color?: string}[], band?: (number|null)[][],
 *   format: (n: number) => string, label: string, zero?: boolean, tall?: boolean, stages?: number[], most?: number, skipHigh?: boolean}} chart
 */
export const draw = (place, chart) => {
  place.chart = chart;
  if (!place.watched) {
    place.watched = new ResizeObserver(() => place.chart && render(place));
    place.watched.observe(place);
  }
  render(place);
};

const extent = (chart) => {
  const all = chart.lines.flatMap((line) => line.values).concat((chart.band || []).flat()).filter((v) => v !== null && v !== undefined);
  if (!all.length) return null;
  let low = Math.min(...all), high = Math.max(...all);
  if (chart.skipHigh && all.length > 40) high = Math.max([...all].sort((a, b) => a - b)[Math.floor(all.length * 0.985)], low);
  if (chart.zero) low = Math.min(0, low);
  if (chart.most !== undefined) high = Math.max(high, chart.most);
  if (high - low < 1e-9 * Math.max(1, Math.abs(high))) { const pad = Math.abs(high) * 0.05 || 1; high += pad; if (!chart.zero) low -= pad; }
  return [low, high];
};

const render = (place) => {
  const chart = place.chart, { width, height } = place.getBoundingClientRect();
  if (width < 20) return;
  const range = chart.at.length > 1 ? extent(chart) : null;
  if (!range) {
    place.replaceChildren(Object.assign(document.createElement("p"), { className: "empty", textContent: chart.none || "not known yet" }));
    return;
  }
  const [low, high] = range, from = chart.at[0], to = chart.at.at(-1);
  const left = chart.tall ? 42 : 38, bottom = chart.tall ? 20 : 15, top = 8, right = 6;
  const x = (at) => left + ((at - from) / (to - from || 1)) * (width - left - right);
  const y = (value) => top + (1 - (value - low) / (high - low)) * (height - top - bottom);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0", "aria-label": spoken(chart) });
  for (const value of ticks(low, high, chart.tall ? 5 : 2)) {
    root.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
    root.append(svg("text", { class: "axis", x: left - 6, y: y(value) + 4, "text-anchor": "end" }, chart.format(value)));
  }
  for (const [at, words] of timeTicks(from, to, Math.max(1, Math.floor((width - left) / (chart.tall ? 90 : 66)))))
    if (x(at) < width - 22) root.append(svg("text", { class: "axis", x: x(at), y: height - 3, "text-anchor": "middle" }, words));
  (chart.stages || []).forEach((stage, i, all) => {
    if (i && all[i - 1] !== stage) root.append(svg("line", { class: "stage-mark", x1: x(chart.at[i]), x2: x(chart.at[i]), y1: top, y2: height - bottom }));
  });
  place.plot ??= `plot-${++plots}`;
  const clip = svg("clipPath", { id: place.plot }), plot = svg("g", { "clip-path": `url(#${place.plot})` });
  clip.append(svg("rect", { width, height }));  // what is above the scale leaves the picture
  root.append(clip);
  if (chart.band) plot.append(svg("path", { class: "area", d: area(chart, x, y) }));
  for (const line of chart.lines) {
    const path = svg("path", { class: `line ${line.kind || ""}`, d: trace(chart.at, line.values, x, y) });
    if (line.color) path.style.stroke = line.color;
    plot.append(path);
  }
  root.append(plot);
  const cursor = svg("g");
  root.append(cursor);
  follow(root, chart, cursor, { x, y, from, to, left, right, top, bottom, width, height });
  place.replaceChildren(root);
};

const trace = (at, values, x, y) => {
  const gap = 6 * median(at);
  let path = "", last = null;
  values.forEach((value, i) => {
    if (value === null || value === undefined) return;
    path += `${last !== null && at[i] - last <= gap ? "L" : "M"}${x(at[i]).toFixed(1)} ${y(value).toFixed(1)}`;
    last = at[i];
  });
  return path;
};
const median = (at) => {
  const steps = at.slice(1).map((t, i) => t - at[i]).sort((a, b) => a - b);
  return Math.max(30, steps[Math.floor(steps.length / 2)] || 0);
};
const area = (chart, x, y) => {
  const known = chart.band.map((row, i) => [chart.at[i], row]).filter(([, row]) => row[0] !== null);
  if (known.length < 2) return "";
  const upper = known.map(([at, row]) => `${x(at).toFixed(1)} ${y(row[2]).toFixed(1)}`);
  const lower = known.map(([at, row]) => `${x(at).toFixed(1)} ${y(row[0]).toFixed(1)}`).reverse();
  return `M${upper.concat(lower).join("L")}Z`;
};
const spoken = (chart) => {
  const line = chart.lines.find((each) => each.kind === "strong") || chart.lines[0];
  const known = line.values.filter((value) => value !== null && value !== undefined);
  if (!known.length) return `${chart.label}: not known yet`;
  return `${chart.label}: ${chart.format(known[0])} at first, ${chart.format(known.at(-1))} now. Arrow keys say values at a time.`;
};

const follow = (root, chart, cursor, box) => {
  let index = null;
  const say = (i, clientX, clientY) => {
    index = i;
    const at = chart.at[i], place = box.x(at);
    cursor.replaceChildren(svg("line", { class: "cursor", x1: place, x2: place, y1: box.top, y2: box.height - box.bottom }));
    const rows = chart.lines.filter((line) => line.values[i] !== null && line.values[i] !== undefined);
    const told = [...rows].sort((a, b) => b.values[i] - a.values[i]).slice(0, 12).map((line) => `${line.name}  ${chart.format(line.values[i])}`);
    for (const line of rows.filter((each) => each.kind !== "thin")) cursor.append(svg("circle", { class: "knob", cx: place, cy: Math.max(box.top, box.y(line.values[i])), r: 3 }));
    const shown = tip(), frame = root.getBoundingClientRect();
    shown.textContent = [`${day(at)}, ${clock(at)}`, ...told].join("\n");
    shown.hidden = false;
    const px = clientX ?? frame.left + place, py = clientY ?? frame.top + box.top;
    shown.style.left = `${Math.max(4, Math.min(px + 14, innerWidth - shown.offsetWidth - 6))}px`;
    shown.style.top = `${Math.max(4, Math.min(py + 14, innerHeight - shown.offsetHeight - 6))}px`;
  };
  const hide = () => { index = null; cursor.replaceChildren(); tip().hidden = true; };
  const nearest = (event) => {
    const frame = root.getBoundingClientRect();
    const at = box.from + ((event.clientX - frame.left - box.left) / (box.width - box.left - box.right)) * (box.to - box.from);
    let low = 0, high = chart.at.length - 1;
    while (high - low > 1) { const middle = (low + high) >> 1; if (chart.at[middle] > at) high = middle; else low = middle; }
    return at - chart.at[low] < chart.at[high] - at ? low : high;
  };
  root.addEventListener("pointermove", (event) => say(nearest(event), event.clientX, event.clientY));
  root.addEventListener("pointerleave", hide);
  root.addEventListener("blur", hide);
  root.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -1e9, End: 1e9 }[event.key];
    if (event.key === "Escape") hide();
    if (step === undefined) return;
    event.preventDefault();
    say(Math.max(0, Math.min(chart.at.length - 1, (index ?? chart.at.length - 1) + step)));
    root.setAttribute("aria-label", tip().textContent);
  });
};
