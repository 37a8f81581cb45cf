// Completion and freshness of the two views over time, from what commits keep.

import { empty, failure, h, hideTip, panel, put, s, showTip } from "./dom.js";
import { ago, clock, day, isDated, some, span, ticks, when } from "./format.js";
import { look } from "./api.js";

// Completion has two definitions; the page shows the one that the table goes by.
const LAST_COMMIT = [
  ["snapshot_freshness", "snapshot", "Snapshot: newest row", "fresh"],
  ["snapshot_completion", "snapshot", "Snapshot: complete until", "complete"],
  ["read_optimized_freshness", "optimized", "Read-optimized: newest row", "fresh"],
  ["read_optimized_completion", "optimized", "Read-optimized: complete until", "complete"],
];
const WATERMARK = LAST_COMMIT.map(([key, view, name, kind]) => [key.replace("completion", "watermark"), view, name.replace("complete until", "watermark"), kind]);
const LEFT = 74, RIGHT = 14, TOP = 10, BOTTOM = 26, HEIGHT = 250, LATEST = 60, FEW = 5;

export function freshnessPanel(context) {
  const tiles = h("div", { class: "views" });
  const plot = h("div", { class: "plot chart", id: "freshness-plot" });
  const legend = h("p", { class: "note" });
  const table = h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Freshness as a list" });
  const listed = h("details", { class: "as-list" }, h("summary", null, "As a list"), table);
  const shown = new Set([...LAST_COMMIT, ...WATERMARK].map(([key]) => key));
  let series = LAST_COMMIT;
  let points = [], found = null, all = false, now = Date.now();
  const range = (id, text, value) => h("button", { type: "button", id, class: "tool", "aria-pressed": String(all === value), onclick: () => { all = value; for (const each of ranges) each.setAttribute("aria-pressed", String((each.id === "freshness-all") === all)); draw(); } }, text);
  const ranges = [range("freshness-latest", "Latest", false), range("freshness-all", "All", true)];
  const element = panel("freshness", "Completion and freshness", ranges, tiles, plot, legend, listed);

  // Not what was before a long silence, unless all is wanted.
  function visible() {
    const dated = points.filter((each) => each.at_ms !== null);
    if (all) return dated;
    const latest = dated.slice(-LATEST);
    for (let index = latest.length - FEW; index > 0; index -= 1) {
      const length = latest.at(-1).at_ms - latest[index].at_ms;
      if (latest[index].at_ms - latest[index - 1].at_ms > Math.max(3_600_000, 2 * length)) return latest.slice(index);
    }
    return latest;
  }

  function draw() {
    const known = visible();
    const values = known.flatMap((each) => series.filter(([key]) => shown.has(key)).map(([key]) => each[key])).filter(isDated);
    if (!points.length || !known.length) {
      put(plot, empty("No commit keeps completion or freshness", "They are kept where a table tracks event times: create it with event_time, and every commit tells up to when each view is complete."));
      put(legend);
      listed.hidden = true;
      return;
    }
    listed.hidden = false;
    const width = Math.max(320, plot.clientWidth), inner = width - LEFT - RIGHT, high = HEIGHT - TOP - BOTTOM;
    const first = known[0].at_ms, last = Math.max(known.at(-1).at_ms, first + 1000);
    const least = Math.min(...values, last), most = Math.max(...values, first);
    const margin = Math.max((most - least) * 0.05, 1000);
    const x = (ms) => LEFT + ((ms - first) / (last - first)) * inner;
    const y = (ms) => TOP + high - ((ms - (least - margin)) / (most - least + 2 * margin)) * high;
    const drawing = s("svg", { width, height: HEIGHT, role: "img", "aria-label": "Event time that each view is complete up to, and of its newest row, by the time of the commit" });
    drawing.append(s("defs", null, s("clipPath", { id: "chart" }, s("rect", { x: LEFT, y: TOP, width: inner, height: high }))));
    const axis = s("g", { class: "axis" });
    for (const { at, text } of ticks(first, last, inner / 90)) axis.append(s("line", { x1: x(at), x2: x(at), y1: TOP, y2: TOP + high }), s("text", { x: x(at), y: HEIGHT - 8, "text-anchor": "middle" }, text));
    for (const { at, text } of ticks(least - margin, most + margin, high / 40)) axis.append(s("line", { x1: LEFT, x2: width - RIGHT, y1: y(at), y2: y(at) }), s("text", { x: LEFT - 8, y: y(at) + 4, "text-anchor": "end" }, text));
    drawing.append(axis);
    const lines = s("g", { "clip-path": "url(#chart)" });
    // Where a commit would be that holds all rows up to its own time.
    lines.append(s("line", { class: "ideal", x1: x(first), y1: y(first), x2: x(last), y2: y(last) }));
    for (const [key, view, , kind] of series) {
      if (!shown.has(key)) continue;
      let path = "", on = false;
      for (const each of known) {
        if (!isDated(each[key])) { on = false; continue; }
        path += on ? `H${x(each.at_ms).toFixed(1)}V${y(each[key]).toFixed(1)}` : `M${x(each.at_ms).toFixed(1)},${y(each[key]).toFixed(1)}`;
        on = true;
      }
      lines.append(s("path", { d: path, class: `line v-${view} ${kind}`, "data-series": key }));
      if (known.length < 90) for (const each of known) if (isDated(each[key])) lines.append(s("circle", { cx: x(each.at_ms), cy: y(each[key]), r: 2.2, class: `dot v-${view}` }));
    }
    const cross = s("line", { class: "cross", y1: TOP, y2: TOP + high, visibility: "hidden" });
    drawing.append(lines, cross);
    drawing.addEventListener("pointermove", (event) => {
      const at = first + ((event.clientX - drawing.getBoundingClientRect().left - LEFT) / inner) * (last - first);
      const nearest = known.reduce((best, each) => (Math.abs(each.at_ms - at) < Math.abs(best.at_ms - at) ? each : best));
      cross.setAttribute("x1", x(nearest.at_ms));
      cross.setAttribute("x2", x(nearest.at_ms));
      cross.setAttribute("visibility", "visible");
      showTip(event, when(nearest.at_ms), ...series.map(([key, , name]) => `${name} ${nearest[key] === null ? "unknown" : !isDated(nearest[key]) ? when(nearest[key]) : `${when(nearest[key])} (${span(nearest.at_ms - nearest[key])} behind)`}`));
    });
    drawing.addEventListener("pointerleave", () => { hideTip(); cross.setAttribute("visibility", "hidden"); });
    put(plot, drawing);
  }

  function drawLegend() {
    put(legend, h("span", { class: "legend" }, series.map(([key, view, name, kind]) => {
      const box = h("input", { type: "checkbox", checked: shown.has(key), id: `show-${key}`, onchange: () => { if (box.checked) shown.add(key); else shown.delete(key); draw(); } });
      return h("label", { class: "check" }, box, h("i", { class: `rule v-${view} ${kind}` }), name);
    })), h("span", { class: "hint" }, "Up: event time. Across: when the commit completed. Dotted: no delay at all."));
  }

  function drawTiles() {
    if (!points.length && found.views.every((each) => each.completion === null && each.freshness === null)) return put(tiles);
    const told = { snapshot: "Snapshot view", read_optimized: "Read-optimized view" };
    const byWatermark = found.definition === "watermark";
    const until = (each) => (byWatermark ? each.watermark : each.completion);
    const text = (ms) => (ms === null ? "completion unknown" : `complete until ${isDated(ms) ? `${day(ms)} ${clock(ms)}` : when(ms)}`);
    put(tiles, found.views.map((each) => h("div", { class: `view v-${each.view === "snapshot" ? "snapshot" : "optimized"}` },
      h("span", { class: "tile-name" }, told[each.view]),
      h("strong", null, text(until(each))),
      h("span", { class: "hint" }, isDated(until(each)) ? `${span(now - until(each))} behind` : "", each.freshness === null ? "" : ` · newest row ${isDated(each.freshness) ? ago(each.freshness, now) : when(each.freshness)}`))),
    h("p", { class: "hint definition" }, byWatermark ? `Completion is the watermark: the greatest event time less ${span(found.lateness_ms)}. Rows that came later than that: ${found.late_rows}.` : "Completion is the least event time of the last commit."),
    found.waiting.length ? h("p", { class: "hint held" }, `Held back by ${found.waiting[0].path}`) : null);
  }

  function drawList() {
    if (!listed.open) return;
    put(table, h("table", null,
      h("thead", null, h("tr", null, h("th", { scope: "col" }, "Commit"), series.map(([, , name]) => h("th", { scope: "col" }, name)))),
      h("tbody", null, [...points].reverse().slice(0, 200).map((each) => h("tr", null, h("td", null, when(each.at_ms)), series.map(([key]) => h("td", null, when(each[key]))))))));
  }
  listed.addEventListener("toggle", drawList);
  new ResizeObserver(() => points.length && draw()).observe(plot);

  element.refresh = async () => {
    try {
      found = await look(`/${context.number}/freshness`);
      points = found.history;
      series = found.definition === "watermark" ? WATERMARK : LAST_COMMIT;
      now = context.now();
      context.told("freshness", found);
      drawTiles();
      draw();
      if (points.length) drawLegend();
      drawList();
      ranges.forEach((each) => { each.hidden = !points.length; });
      plot.setAttribute("data-points", some(points.length, "point"));
    } catch (error) {
      put(plot, failure(error, element.refresh));
    }
  };
  return element;
}
