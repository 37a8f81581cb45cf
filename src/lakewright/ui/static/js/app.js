// The page: a list of tables, or one table with its panels, kept up to date while it is looked at.

import { h, failure, put, say } from "./dom.js";
import { ago, count, exact, size, some, span, zone } from "./format.js";
import { look, setToken, takeToken, wantsToken } from "./api.js";
import { themeButton } from "./theme.js";
import { closeDetails, openDetails } from "./details.js";
import { timelinePanel } from "./timeline.js";
import { freshnessPanel } from "./freshness.js";
import { partitionsPanel } from "./partitions.js";
import { plansPanel } from "./plans.js";
import { servicesPanel } from "./services.js";

const BEAT = 2000, HIDDEN_BEAT = 15_000, TRYING_BEAT = 4000, PLANS_EVERY = 5000;
const TYPES = { COPY_ON_WRITE: "copy on write", MERGE_ON_READ: "merge on read" };

let tables = [], allowWrites = false, current = null;

const main = document.getElementById("main");

function header(table) {
  const live = h("button", { type: "button", id: "live", class: "quiet live" });
  const picker = tables.length > 1 && table
    ? h("select", { id: "table", "aria-label": "Table", onchange: (event) => { location.hash = `#/${event.target.value}`; } }, tables.map((each) => h("option", { value: each.number, selected: each.number === table.number }, each.name ?? each.path)))
    : null;
  put(document.getElementById("top"),
    h("a", { class: "brand", href: tables.length > 1 ? "#/" : "#/0" }, h("img", { src: "icon.svg", alt: "", width: 26, height: 26 }), h("span", null, "Lakewright")),
    table ? h("nav", { "aria-label": "Panels" }, [["timeline", "Timeline"], ["freshness", "Freshness"], ["plans", "Plans"], ["partitions", "Partitions"], ["services", "Services"]].map(([id, name]) =>
      h("a", { href: `#${id}`, onclick: (event) => { event.preventDefault(); document.getElementById(id)?.scrollIntoView(); document.querySelector(`#${id} h2`)?.setAttribute("tabindex", "-1"); document.querySelector(`#${id} h2`)?.focus(); } }, name))) : null,
    h("div", { class: "right" }, picker, table ? live : null, themeButton()));
  return live;
}

function tile(id, name) {
  const value = h("strong", null, "…"), more = h("span", { class: "hint" });
  const element = h("div", { class: "tile", id }, h("span", { class: "tile-name" }, name), value, more);
  element.tell = (text, rest, title, mood) => { value.textContent = text; more.textContent = rest ?? ""; element.title = title ?? ""; element.dataset.mood = mood ?? ""; };
  return element;
}

class TableView {
  constructor(table) {
    this.number = table.number;
    this.allowWrites = allowWrites;
    this.table = table;
    this.version = table.version;
    this.shift = 0;
    this.last = {};
    this.paused = false;
    this.timer = 0;
    this.lastPlans = 0;
    this.live = header(table);
    this.live.addEventListener("click", () => { this.paused = !this.paused; this.showLive(); if (!this.paused) this.beatNow(); });
    this.tiles = { size: tile("tile-size", "Size"), debt: tile("tile-debt", "Log debt"), last: tile("tile-last", "Last commit"), complete: tile("tile-complete", "Complete until"), pending: tile("tile-pending", "Pending"), ttl: tile("tile-ttl", "TTL") };
    this.notices = h("div", { class: "notices", role: "status" });
    this.panels = { timeline: timelinePanel(this), freshness: freshnessPanel(this), plans: plansPanel(this), partitions: partitionsPanel(this), services: servicesPanel(this) };
    document.title = `${table.name} · Lakewright`;
    put(main,
      h("div", { class: "title" }, h("h1", null, table.name), h("p", { class: "hint" }, [TYPES[table.type] ?? table.type, `format version ${table.format_version}`, table.record_key.length ? `key ${table.record_key.join(", ")}` : null, table.partition_by.length ? `partitioned by ${table.partition_by.join(", ")}` : "not partitioned", table.ordering.length ? `ordered by ${table.ordering.join(", ")}` : null].filter(Boolean).join(" · ")), h("p", { class: "hint path" }, table.path)),
      this.notices,
      h("div", { class: "tiles" }, Object.values(this.tiles)),
      this.panels.timeline,
      h("div", { class: "two" }, this.panels.freshness, this.panels.plans),
      this.panels.partitions,
      this.panels.services,
      h("footer", { class: "hint" }, `Times in ${zone()}, sizes in units of 1024.`));
    this.showLive();
    this.refreshAll().then(() => this.wait());
  }

  now() { return Date.now() + this.shift; }

  openInstant(instant) { openDetails(this.number, instant, this.now()); }

  notice(text) {
    put(this.notices, h("p", { class: "notice" }, text, h("button", { type: "button", class: "quiet", "aria-label": "Dismiss", onclick: () => put(this.notices) }, "✕")));
  }

  // Panels tell what they have found; the tiles above them say it in short.
  told(name, found) {
    this.last[name] = found;
    this.drawTiles();
  }

  drawTiles() {
    const now = this.now(), { timeline, partitions, freshness, plans } = this.last;
    if (partitions) {
      const all = partitions.totals;
      this.tiles.size.tell(size(all.bytes), `${some(all.partitions, "partition")}, ${some(all.groups, "file group")}`);
      if (this.table.type === "MERGE_ON_READ") this.tiles.debt.tell(all.log_files ? size(all.log_bytes) : "none", all.log_files ? `${some(all.log_files, "log file")} in ${some(all.partitions_with_logs, "partition")}` : "no log file waits");
      else this.tiles.debt.tell("none", "a copy-on-write table has none");
      const { ttl } = partitions;
      this.tiles.ttl.tell(ttl.policies.length ? (ttl.expired ? `${count(ttl.expired)} expired` : "on time") : "no policy", ttl.policies.length ? (ttl.enabled ? some(ttl.policies.length, "policy", "policies") : "switched off") : "partitions stay for good", "", ttl.expired ? "warn" : "");
    }
    if (timeline) {
      const done = timeline.instants.filter((each) => each.completed_ms !== null && ["commit", "deltacommit", "replacecommit"].includes(each.action));
      const newest = done.reduce((best, each) => (!best || each.completed_ms > best.completed_ms ? each : best), null);
      this.tiles.last.tell(newest ? ago(newest.completed_ms, now) : "never", newest ? (newest.rows === undefined ? "" : `${some(newest.rows, "row")}, took ${span(newest.completed_ms - newest.requested_ms)}`) : "nothing was written yet", newest ? exact(newest.completed_ms) : "");
    }
    if (freshness) {
      const [snapshot, optimized] = freshness.views.map((each) => (freshness.definition === "watermark" ? each.watermark : each.completion));
      this.tiles.complete.tell(snapshot === null ? "unknown" : `${span(now - snapshot)} ago`, snapshot === null ? "no event times are tracked" : optimized === null ? "snapshot view" : `read-optimized: ${span(now - optimized)} ago`, exact(snapshot));
    }
    if (plans) {
      const alive = plans.pending.filter((each) => each.heartbeat?.alive).length, dead = plans.pending.filter((each) => each.heartbeat && !each.heartbeat.alive).length;
      this.tiles.pending.tell(count(plans.pending.length), plans.pending.length ? [alive ? `${count(alive)} alive` : null, dead ? `${count(dead)} with an expired heartbeat` : null, !alive && !dead ? "nobody executes them" : null].filter(Boolean).join(", ") : "nothing waits", "", dead ? "warn" : "");
    }
  }

  async refreshAll() {
    await Promise.all(Object.values(this.panels).map((each) => each.refresh()));
  }

  async refreshChanged() {
    const { timeline, freshness, plans, partitions } = this.panels;
    await Promise.all([timeline, freshness, plans, partitions].map((each) => each.refresh()));
  }

  showLive(problem) {
    this.live.dataset.state = problem ? "lost" : this.paused ? "paused" : "live";
    put(this.live, h("i", { class: "pulse" }), problem ? "No answer" : this.paused ? "Paused" : "Live");
    this.live.setAttribute("aria-pressed", String(!this.paused));
    this.live.title = problem ?? (this.paused ? "Click to follow the table again" : "The page follows the table. Click to pause");
  }

  wait(milliseconds) {
    clearTimeout(this.timer);
    if (this.gone) return;
    this.timer = setTimeout(() => this.beat(), milliseconds ?? (document.hidden ? HIDDEN_BEAT : BEAT));
  }

  beatNow() { this.wait(0); }

  async beat() {
    if (this.paused || this.gone) return this.wait();
    try {
      const pulse = await look(`/${this.number}/pulse`);
      if (this.gone) return undefined;
      this.shift = pulse.now_ms - Date.now();
      this.panels.services.jobs(pulse.jobs, pulse.now_ms);
      if (pulse.version !== this.version) {
        this.version = pulse.version;
        await this.refreshChanged();
        this.lastPlans = pulse.now_ms;
      } else if (pulse.pending && pulse.now_ms - this.lastPlans > PLANS_EVERY) {
        this.lastPlans = pulse.now_ms;
        await this.panels.plans.refresh();
      }
      this.panels.timeline.tick(pulse.now_ms);
      this.drawTiles();
      this.showLive();
      return this.wait();
    } catch (error) {
      this.showLive(error.message);
      return this.wait(TRYING_BEAT);
    }
  }

  leave() {
    this.gone = true;
    clearTimeout(this.timer);
    closeDetails();
  }
}

function showTables() {
  header(null);
  document.title = "Tables · Lakewright";
  put(main, h("div", { class: "title" }, h("h1", null, "Tables"), h("p", { class: "hint" }, some(tables.length, "table is served", "tables are served"))),
    h("ul", { class: "cards" }, tables.map((each) => h("li", null, each.error
      ? h("div", { class: "card broken" }, h("h2", null, each.path), h("p", { class: "warned" }, each.error))
      : h("a", { class: "card", href: `#/${each.number}` }, h("h2", null, each.name), h("p", { class: "hint path" }, each.path),
          h("p", null, `${TYPES[each.type] ?? each.type} · ${some(each.instants, "action")} on the timeline`),
          h("p", null, each.last_write_ms === null ? "nothing was written yet" : `last commit ${ago(each.last_write_ms, Date.now())}`, each.pending ? h("span", { class: "badge inflight" }, `${count(each.pending)} pending`) : null))))));
}

async function route() {
  current?.leave?.();
  current = null;
  const found = /^#\/(\d+)$/.exec(location.hash);
  try {
    const all = await look("");
    tables = all.tables;
    allowWrites = all.allow_writes;
    const number = found ? Number(found[1]) : tables.length === 1 ? 0 : null;
    if (number === null) showTables();
    else {
      const table = await look(`/${number}`);
      current = new TableView(table);
      say(`table ${table.name}`);
    }
  } catch (error) {
    header(null);
    put(main, failure(error, route), wantsToken(error) ? tokenForm() : null);
  }
}

function tokenForm() {
  const token = h("input", { type: "password", id: "token", autocomplete: "off", placeholder: "Token" });
  return h("form", { class: "cancel", onsubmit: (event) => { event.preventDefault(); setToken(token.value); route(); } },
    h("label", { for: "token" }, "Or give the token of that link:"), token, h("button", { type: "submit", class: "tool" }, "Use it"));
}

document.addEventListener("visibilitychange", () => { if (!document.hidden) current?.beatNow?.(); });
addEventListener("hashchange", () => { if (location.hash === "#main") return; takeToken(); route(); });
takeToken();
route();
