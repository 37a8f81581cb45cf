// Partitions, page by page, and the file groups of the one that is chosen.

import { empty, failure, h, panel, put, say } from "./dom.js";
import { ago, count, exact, size, some, when } from "./format.js";
import { look } from "./api.js";

const COLUMNS = [["partition", "Partition"], ["bytes", "Size"], ["groups", "File groups"], ["log_bytes", "Log debt"], ["written_at", "Last write"], ["expires_at", "Expires"]];
const LIMIT = 25, PATIENCE = 250;

export function partitionsPanel(context) {
  const search = h("input", { type: "search", id: "partition-search", placeholder: "Search partitions", "aria-label": "Search partitions", autocomplete: "off", spellcheck: "false" });
  const table = h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "One page of the partitions" });
  const pager = h("nav", { class: "pager", "aria-label": "Pages of partitions" });
  const groups = h("div", { class: "groups", id: "groups" });
  const ttl = h("p", { class: "note" });
  const element = panel("partitions", "Partitions", [search], ttl, table, pager, groups);
  const asked = { search: "", sort: "partition", order: "asc", offset: 0, limit: LIMIT };
  let chosen = null, turn = 0, waiting = 0;

  const ask = (changes) => { Object.assign(asked, changes); return element.refresh(); };

  search.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => ask({ search: search.value.trim(), offset: 0 }), PATIENCE);
  });

  function heading([key, name]) {
    const mine = asked.sort === key;
    const arrow = mine ? (asked.order === "asc" ? " ▲" : " ▼") : "";
    const next = mine ? (asked.order === "asc" ? "desc" : "asc") : ["partition", "expires_at"].includes(key) ? "asc" : "desc";
    return h("th", { scope: "col", class: ["bytes", "groups"].includes(key) ? "number" : null, "aria-sort": mine ? (asked.order === "asc" ? "ascending" : "descending") : "none" },
      h("button", { type: "button", class: "sort", "data-sort": key, onclick: async () => {
        await ask({ sort: key, order: next, offset: 0 });
        table.querySelector(`[data-sort="${key}"]`)?.focus();
        say(`sorted by ${name}, ${next === "asc" ? "ascending" : "descending"}`);
      } }, name, h("span", { "aria-hidden": "true" }, arrow)));
  }

  function expiry(row, now) {
    if (row.policy === undefined) return h("span", { class: "none" }, "–");
    if (row.rows_before_ms) return h("span", { title: row.policy }, `rows before ${when(row.rows_before_ms)}`);
    if (row.expired) return [h("span", { class: "badge bad", title: row.policy }, `expired ${ago(row.expires_ms, now)}`), row.blocked_by ? h("span", { class: "hint" }, ` held by ${row.blocked_by}`) : null];
    return h("span", { title: `${row.policy}: ${when(row.expires_ms)}` }, row.expires_ms === null ? "–" : ago(row.expires_ms, now));
  }

  function line(row, largest, now) {
    const name = row.partition || "the whole table";
    const choice = h("button", { type: "button", class: "link", "data-partition": row.partition, "aria-expanded": String(row.partition === chosen), onclick: () => choose(row.partition) }, name);
    return h("tr", { class: row.partition === chosen ? "chosen" : null },
      h("th", { scope: "row" }, choice),
      h("td", { class: "number" }, h("span", { class: "sized" }, h("i", { class: "share", style: { width: `${Math.max(2, (row.bytes / largest) * 100)}%` } }), h("span", null, size(row.bytes)))),
      h("td", { class: "number" }, count(row.groups)),
      h("td", null, row.log_files ? [h("span", { class: "debt" }, `${size(row.log_bytes)} in ${some(row.log_files, "log")}`), row.debt_reason ? h("span", { class: "hint" }, ` ${row.debt_reason}`) : null] : h("span", { class: "none" }, "none")),
      h("td", { title: exact(row.written_ms) }, ago(row.written_ms, now)),
      h("td", null, expiry(row, now)));
  }

  function drawPager(found) {
    const first = found.matching ? found.offset + 1 : 0, last = found.offset + found.rows.length;
    const end = Math.max(0, Math.floor((found.matching - 1) / LIMIT) * LIMIT);
    const step = (id, label, text, offset, off) => h("button", { type: "button", id, class: "tool", "aria-label": label, disabled: off, onclick: () => ask({ offset }) }, text);
    put(pager, h("span", { class: "hint", id: "partition-count" }, found.matching === found.totals.partitions ? `${count(first)} to ${count(last)} of ${some(found.matching, "partition")}` : `${count(first)} to ${count(last)} of ${count(found.matching)} that match, of ${some(found.totals.partitions, "partition")}`),
      found.matching > LIMIT ? [
        step("page-first", "First page", "«", 0, !found.offset),
        step("page-before", "Page before", "‹", Math.max(0, found.offset - LIMIT), !found.offset),
        step("page-next", "Next page", "›", found.offset + LIMIT, last >= found.matching),
        step("page-last", "Last page", "»", end, last >= found.matching),
      ] : null);
  }

  function drawTtl({ enabled, policies, expired }) {
    const told = policies.map((each) => `${each.spec}: ${each.value} ${each.units.toLowerCase()}${each.level === "RECORD" ? " (rows)" : ""}`).join(", ");
    put(ttl, h("span", { class: "hint" }, policies.length
      ? `TTL is ${enabled ? "on" : "off: the policies are not in force"}. Policies: ${told}. ${expired ? `${some(expired, "partition")} ${expired === 1 ? "has" : "have"} expired.` : "Nothing has expired."}`
      : "No TTL policy: partitions stay for good."));
  }

  async function choose(partition) {
    if (partition === chosen) { chosen = null; put(groups); await element.refresh(); focus(partition); return; }
    chosen = partition;
    await element.refresh();
    focus(partition);
  }

  const focus = (partition) => [...table.querySelectorAll("[data-partition]")].find((each) => each.dataset.partition === partition)?.focus();

  async function drawGroups() {
    if (chosen === null) return;
    try {
      const found = await look(`/${context.number}/groups`, { partition: chosen });
      const largest = Math.max(1, ...found.groups.flatMap((group) => group.slices.map((each) => each.bytes)));
      put(groups, h("h3", { id: "groups-title" }, `File groups of ${found.partition || "the table"}`),
        h("p", { class: "note" }, h("span", { class: "legend" }, h("span", null, h("i", { class: "swatch f-base" }), "base file"), h("span", null, h("i", { class: "swatch f-log" }), "log file")),
          h("span", { class: "hint" }, `${some(found.total, "file group")}${found.groups.length < found.total ? `, the first ${count(found.groups.length)} are shown` : ""}. A row is a slice, the newest first; its length is its size.`)),
        found.groups.map((group) => groupBox(group, largest)));
    } catch (error) {
      put(groups, failure(error));
    }
  }

  function groupBox(group, largest) {
    const file = (kind, each) => h("li", null, h("i", { class: `swatch f-${kind}` }), h("code", null, each.name), h("span", { class: "hint" }, ` ${size(each.bytes)}`));
    return h("details", { class: "group" },
      h("summary", null, h("span", { class: "file-id" }, group.file_id), h("span", { class: "hint" }, ` ${some(group.slices.length, "slice")}, ${size(group.bytes)}`),
        h("span", { class: "slices" }, group.slices.map((slice) => h("span", { class: "slice", title: `${when(slice.base_ms)}: ${slice.base ? `base ${size(slice.base.bytes)}` : "no base file"}, ${some(slice.logs.length, "log")}` },
          slice.base ? h("i", { class: "f-base", style: { width: `${(slice.base.bytes / largest) * 100}%` } }) : null,
          slice.logs.map((log) => h("i", { class: "f-log", style: { width: `${(log.bytes / largest) * 100}%` } })))))),
      group.slices.map((slice) => h("div", { class: "slice-files" }, h("span", { class: "hint" }, `Slice of ${when(slice.base_ms)} (${slice.base_instant})`),
        h("ul", null, slice.base ? file("base", slice.base) : null, slice.logs.map((log) => file("log", log))))));
  }

  element.refresh = async () => {
    turn += 1;
    const mine = turn;
    if (!table.firstChild) put(table, h("p", { class: "waiting" }, "Listing the partitions …"));
    try {
      const found = await look(`/${context.number}/partitions`, asked);
      if (mine !== turn) return;
      context.told("partitions", found);
      if (!found.rows.length && found.offset) { await ask({ offset: 0 }); return; }
      drawTtl(found.ttl);
      drawPager(found);
      const now = context.now(), largest = Math.max(1, ...found.rows.map((row) => row.bytes));
      if (!found.rows.length) put(table, asked.search ? empty("No partition matches", `No path of a partition contains “${asked.search}”.`) : empty("No partitions yet", "They appear with the first write."));
      else put(table, h("table", { class: "partitions" }, h("thead", null, h("tr", null, COLUMNS.map(heading))), h("tbody", null, found.rows.map((row) => line(row, largest, now)))));
      await drawGroups();
    } catch (error) {
      if (mine === turn) put(table, failure(error, element.refresh));
    }
  };
  return element;
}
