// The timeline: a bar for each action, from its request to its completion, in a lane for each kind.

import { empty, failure, h, hideTip, panel, put, s, say, showTip } from "./dom.js";
import { ago, count, kindOf, operationWord, some, span, stateWord, ticks, when, zone } from "./format.js";
import { look } from "./api.js";

const LANES = [["write", "Writes"], ["replace", "Replace"], ["compaction", "Compaction"], ["logcompaction", "Log compaction"], ["clustering", "Clustering"], ["clean", "Clean"], ["rollback", "Rollback"], ["savepoint", "Savepoint"]];
const GUTTER = 118, RIGHT = 14, ROW = 17, PAD = 7, AXIS = 26, LEAST = 5, MOST_ROWS = 4;
const LATEST = 60, FEW = 5, SHORTEST = 1000, MOST_LISTED = 200;

const endOf = (instant, now) => instant.completed_ms ?? Math.max(now, instant.requested_ms);

export function described(instant, now) {
  const [, name] = kindOf(instant);
  const word = operationWord(instant.operation);
  const what = word && word !== name.toLowerCase() ? `${name}: ${word}` : name;
  const lasted = instant.completed_ms !== null
    ? `${when(instant.requested_ms)}, took ${span(instant.completed_ms - instant.requested_ms)}`
    : `${stateWord[instant.state]}, since ${when(instant.requested_ms)} (${ago(instant.requested_ms, now)})`;
  const did = instant.rows !== undefined
    ? `${some(instant.rows, "row")} in ${some(instant.files, "file")}, ${some(instant.partitions, "partition")}${instant.deleted ? `, ${count(instant.deleted)} deleted` : ""}`
    : null;
  return [what, lasted, did, instant.detail, instant.archived ? "in history" : null];
}

export function timelinePanel(context) {
  const plot = h("div", { class: "plot", id: "timeline-plot", tabindex: "0", role: "group", "aria-label": "Timeline. Arrow keys choose an action, Enter shows it, plus and minus zoom, Shift with arrow keys moves." });
  const note = h("p", { class: "note" });
  const list = h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "The timeline as a list" });
  const listed = h("details", { class: "as-list" }, h("summary", null, "As a list"), list);
  let instants = [], now = Date.now(), view = null, following = true, chosen = -1, archived = false, leftOff = 0;

  const button = (id, label, text, act) => h("button", { type: "button", id, class: "tool", "aria-label": label, title: label, onclick: act }, text);
  const history = h("input", { type: "checkbox", id: "timeline-archived", onchange: () => { archived = history.checked; view = null; element.refresh(); } });
  const tools = [
    h("label", { class: "check" }, history, "with history"),
    button("zoom-latest", "Show the latest actions", "Latest", () => { view = null; following = true; draw(); }),
    button("zoom-all", "Show everything", "All", () => { view = whole(); following = true; draw(); }),
    button("zoom-out", "Zoom out", "−", () => zoom(1.6)),
    button("zoom-in", "Zoom in", "+", () => zoom(1 / 1.6)),
  ];
  const element = panel("timeline", "Timeline", tools, plot, note, listed);

  const dated = () => instants.filter((each) => each.requested_ms !== null);

  function whole(known = dated()) {
    if (!known.length) return { from: now - 3_600_000, to: now };
    const from = Math.min(...known.map((each) => each.requested_ms));
    const to = Math.max(...known.map((each) => endOf(each, now)));
    const margin = Math.max((to - from) * 0.02, 2000);
    return { from: from - margin, to: to + margin };
  }

  // The latest actions; not those before a long silence, which would squeeze all others into a corner.
  function latest() {
    const known = dated().slice(-LATEST);
    for (let index = known.length - FEW; index > 0; index -= 1) {
      const length = whole(known.slice(index));
      if (known[index].requested_ms - known[index - 1].requested_ms > Math.max(3_600_000, 2 * (length.to - length.from))) return length;
    }
    return whole(known);
  }

  function zoom(factor, at) {
    const { from, to } = view ?? latest();
    const middle = at ?? (from + to) / 2;
    if ((to - from) * factor < SHORTEST) return;
    view = { from: middle - (middle - from) * factor, to: middle + (to - middle) * factor };
    following = false;
    draw();
  }

  function pan(part) {
    const { from, to } = view ?? latest();
    const step = (to - from) * part;
    view = { from: from + step, to: to + step };
    following = false;
    draw();
  }

  function choose(index) {
    const known = dated();
    if (!known.length) return;
    chosen = Math.max(0, Math.min(known.length - 1, index));
    const instant = known[chosen];
    const shown = view ?? latest();
    if (instant.requested_ms < shown.from || endOf(instant, now) > shown.to) {
      const half = (shown.to - shown.from) / 2;
      view = { from: instant.requested_ms - half, to: instant.requested_ms + half };
      following = false;
    }
    draw();
    say(described(instant, now).filter(Boolean).join(". "));
  }

  const open = (index) => {
    const instant = dated()[index];
    if (!instant) return;
    chosen = index;
    draw();
    context.openInstant(instant);
  };

  plot.addEventListener("keydown", (event) => {
    const acts = {
      ArrowRight: () => (event.shiftKey ? pan(0.2) : choose(chosen + 1)),
      ArrowLeft: () => (event.shiftKey ? pan(-0.2) : choose(chosen < 0 ? Infinity : chosen - 1)),
      Home: () => choose(0),
      End: () => choose(Infinity),
      Enter: () => open(chosen),
      "+": () => zoom(1 / 1.6),
      "=": () => zoom(1 / 1.6),
      "-": () => zoom(1.6),
      0: () => { view = null; following = true; draw(); },
    };
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  });

  const timeAt = (clientX) => {
    const box = plot.getBoundingClientRect();
    const { from, to } = view ?? latest();
    return from + ((clientX - box.left - GUTTER) / (box.width - GUTTER - RIGHT)) * (to - from);
  };

  // Without focus the wheel scrolls the page, as it should.
  plot.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && document.activeElement !== plot) return;
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / 800);
    else zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event.clientX));
  }, { passive: false });

  let drag = null;
  plot.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    drag = { x: event.clientX, view: view ?? latest(), moved: false, target: event.target };
    plot.setPointerCapture(event.pointerId);
  });
  plot.addEventListener("pointermove", (event) => {
    if (drag) {
      const shift = event.clientX - drag.x;
      if (Math.abs(shift) > 4) drag.moved = true;
      if (!drag.moved) return;
      const step = (shift / (plot.clientWidth - GUTTER - RIGHT)) * (drag.view.to - drag.view.from);
      view = { from: drag.view.from - step, to: drag.view.to - step };
      following = false;
      hideTip();
      draw();
      return;
    }
    const index = event.target.dataset?.index;
    if (index === undefined) hideTip();
    else showTip(event, ...described(dated()[index], now));
  });
  plot.addEventListener("pointerup", () => {
    const index = drag?.target.dataset?.index;
    if (drag && !drag.moved && index !== undefined) open(Number(index));
    drag = null;
  });
  plot.addEventListener("pointerleave", hideTip);
  plot.addEventListener("pointercancel", () => { drag = null; });

  // Bars that would lie on each other lie below each other, as far as there is room.
  function arranged(bars) {
    const ends = [];
    for (const bar of bars) {
      let row = ends.findIndex((end) => end <= bar.x);
      if (row < 0) row = ends.length < MOST_ROWS ? ends.length : ends.indexOf(Math.min(...ends));
      ends[row] = Math.max(ends[row] ?? 0, bar.x + bar.width + 1);
      bar.row = row;
    }
    return Math.max(1, ends.length);
  }

  function draw() {
    const known = dated();
    if (!instants.length) {
      put(plot, empty("Nothing has happened yet", "The first write will appear here by itself, as soon as it begins."));
      return;
    }
    const shown = view ?? latest();
    const width = Math.max(360, plot.clientWidth), inner = width - GUTTER - RIGHT;
    const xOf = (ms) => GUTTER + ((ms - shown.from) / (shown.to - shown.from)) * inner;
    const seen = known.map((instant, index) => ({ instant, index, kind: kindOf(instant)[0] }));
    const drawing = s("svg", { width, role: "img", "aria-label": `${some(instants.length, "action")} on the timeline` });
    drawing.append(s("defs", null,
      s("pattern", { id: "stripes", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, s("rect", { width: 2.5, height: 6, class: "stripe" })),
      s("clipPath", { id: "inside" }, s("rect", { x: GUTTER - 2, y: 0, width: inner + 4, height: 4000 }))));
    let y = 4;
    const lanes = LANES.filter(([kind]) => kind === "write" || seen.some((each) => each.kind === kind));
    const bars = s("g", { "clip-path": "url(#inside)" });
    for (const [kind, name] of lanes) {
      const mine = seen.filter((each) => each.kind === kind)
        .map((each) => ({ ...each, x: xOf(each.instant.requested_ms), end: xOf(endOf(each.instant, now)) }))
        .filter((each) => each.end >= GUTTER - 4 && each.x <= width - RIGHT + 4)
        .map((each) => ({ ...each, width: Math.max(LEAST, each.end - each.x) }));
      const height = arranged(mine) * ROW + 2 * PAD - 3;
      drawing.append(s("rect", { x: 0, y, width, height, class: "lane" }), s("text", { x: 10, y: y + height / 2 + 4, class: "lane-name" }, name));
      for (const bar of mine) {
        const top = y + PAD + bar.row * ROW, chosenClass = bar.index === chosen ? " chosen" : "";
        const shape = { x: bar.x, y: top, width: bar.width, height: ROW - 4, rx: 3, "data-index": bar.index };
        const state = bar.instant.state.toLowerCase();
        bars.append(s("rect", { ...shape, class: `bar k-${kind} ${state}${chosenClass}` }));
        if (state === "inflight") bars.append(s("rect", { ...shape, class: "bar-stripes" }));
      }
      y += height + 3;
    }
    const marks = s("g", { class: "axis" });
    for (const { at, text } of ticks(shown.from, shown.to, inner / 90)) {
      marks.append(s("line", { x1: xOf(at), x2: xOf(at), y1: 0, y2: y }), Math.abs(xOf(at) - xOf(now)) < 34 ? "" : s("text", { x: xOf(at), y: y + 17, "text-anchor": "middle" }, text));
    }
    drawing.append(marks, bars);
    if (now >= shown.from && now <= shown.to) drawing.append(s("line", { x1: xOf(now), x2: xOf(now), y1: 0, y2: y, class: "now" }), s("text", { x: xOf(now), y: y + 17, class: "now-text", "text-anchor": "middle" }, "now"));
    drawing.setAttribute("height", y + AXIS);
    put(plot, drawing);
    plot.dataset.from = Math.round(shown.from);
    plot.dataset.to = Math.round(shown.to);
    const kinds = lanes.filter(([kind]) => seen.some((each) => each.kind === kind));
    put(note,
      h("span", { class: "legend" }, kinds.map(([kind, name]) => h("span", null, h("i", { class: `swatch k-${kind}` }), name))),
      h("span", { class: "legend" }, h("span", null, h("i", { class: "swatch plain completed" }), "completed"), h("span", null, h("i", { class: "swatch plain inflight" }), "in flight"), h("span", null, h("i", { class: "swatch plain requested" }), "requested")),
      h("span", { class: "hint" }, `Times in ${zone()}. Drag to move; click, then wheel or + and − to zoom.`,
        leftOff ? ` ${count(leftOff)} older actions of history are left off.` : "",
        known.length < instants.length ? ` ${count(instants.length - known.length)} actions have names that are no dates.` : ""));
  }

  function drawList() {
    if (!listed.open) return;
    const rows = instants.slice(-MOST_LISTED).reverse().map((instant) => h("tr", null,
      h("td", null, h("i", { class: `swatch k-${kindOf(instant)[0]}` }), kindOf(instant)[1]),
      h("td", null, stateWord[instant.state]),
      h("td", null, when(instant.requested_ms)),
      h("td", { class: "number" }, instant.completed_ms === null ? "–" : span(instant.completed_ms - instant.requested_ms)),
      h("td", { class: "number" }, instant.rows === undefined ? "–" : count(instant.rows)),
      h("td", null, h("button", { type: "button", class: "link", onclick: () => context.openInstant(instant) }, instant.requested_at))));
    put(list, h("table", null,
      h("thead", null, h("tr", null, ["Action", "State", "Requested", "Took", "Rows", "Instant"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", null, rows)));
  }
  listed.addEventListener("toggle", drawList);
  new ResizeObserver(() => instants.length && draw()).observe(plot);

  element.refresh = async () => {
    try {
      const found = await look(`/${context.number}/timeline`, { archived: archived ? 1 : 0 });
      ({ instants, now_ms: now, left_off: leftOff } = found);
      context.told("timeline", found);
      draw();
      drawList();
    } catch (error) {
      put(plot, failure(error, element.refresh));
    }
  };
  // While something is pending its bar grows.
  element.tick = (ms) => {
    now = ms;
    if (following && instants.some((each) => each.state !== "COMPLETED")) draw();
  };
  return element;
}
