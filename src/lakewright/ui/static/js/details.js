// What is known of one action, at the side of the page.

import { failure, h, put, say } from "./dom.js";
import { ago, count, exact, kindOf, operationWord, size, some, span, stateWord, when } from "./format.js";
import { look } from "./api.js";

let before = null;

export function closeDetails() {
  const place = document.getElementById("details");
  if (place.hidden) return;
  place.hidden = true;
  before?.focus?.();
}

const pair = (name, value, title) => (value === undefined || value === null || value === "" ? null : [h("dt", null, name), h("dd", { title }, value)]);

const paths = (title, items, total) => items?.length
  ? h("div", { class: "block" }, h("h3", null, `${title} (${count(total ?? items.length)})`),
      h("div", { class: "paths", tabindex: "0", role: "group", "aria-label": title }, h("ul", null, items.map((item) => h("li", null, item || "the whole table")))),
      total ? h("p", { class: "hint" }, `The first ${count(items.length)} are shown.`) : null)
  : null;

export function planBlock(plan) {
  if (!plan.planned) return h("p", { class: "reason" }, plan.reason);
  const operations = plan.operations ?? plan.instants ?? [];
  const total = plan.operations_total ?? plan.instants_total ?? operations.length;
  const table = operations.length ? h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "What the plan holds" }, h("table", null,
    h("thead", null, h("tr", null, columns(operations[0]).map(([, name]) => h("th", { scope: "col" }, name)))),
    h("tbody", null, operations.map((each) => h("tr", null, columns(operations[0]).map(([key]) => h("td", { class: CODES.has(key) ? "code" : null }, cell(each[key])))))))) : null;
  return [
    h("p", null, h("strong", null, some(total, "operation")), plan.threshold ? ` up to event time ${plan.threshold}` : "", plan.retained_from ? `, readable from ${plan.retained_from} on` : "", plan.widened ? ` (${plan.widened})` : ""),
    table,
    operations.length < total ? h("p", { class: "hint" }, `The first ${count(operations.length)} are shown.`) : null,
    plan.records?.length ? h("p", null, `Rows go from ${some(plan.records_total ?? plan.records.length, "partition")}.`) : null,
    plan.deleted_partitions?.length ? h("p", null, `${some(plan.deleted_partitions_total ?? plan.deleted_partitions.length, "partition")} will be gone.`) : null,
    plan.missing?.length ? h("div", { class: "block" }, h("h3", null, `Left for later (${count(plan.missing_total ?? plan.missing.length)})`),
      h("div", { class: "paths", tabindex: "0", role: "group", "aria-label": "Left for later" }, h("ul", null, plan.missing.map((each) => h("li", null, each.partition || "the whole table", each.reason ? h("span", { class: "hint" }, ` ${each.reason}`) : null))))) : null,
  ];
}

const NAMES = { partition: "Partition", file_id: "File group", logs: "Log files", file: "File", policy: "Policy", expires_at: "Expired at", requested_at: "Instant", action: "Action" };
const CODES = new Set(["partition", "file_id", "file", "requested_at"]);
const columns = (first) => Object.entries(NAMES).filter(([key]) => key in first);
const cell = (value) => (Array.isArray(value) ? count(value.length) : value === null || value === "" ? "–" : String(value));

function body(found, now) {
  const commit = found.commit ?? {};
  const rollback = found.rollback;
  return [
    h("dl", null,
      pair("State", stateWord[found.state]),
      pair("Requested", `${when(found.requested_ms)} (${ago(found.requested_ms, now)})`, exact(found.requested_ms)),
      pair("Completed", found.completed_ms === null ? null : when(found.completed_ms), exact(found.completed_ms)),
      pair("Took", found.completed_ms === null ? null : span(found.completed_ms - found.requested_ms)),
      pair("Operation", commit.operation ? operationWord(commit.operation) : null),
      pair("Inserted", commit.inserted === undefined ? null : count(commit.inserted)),
      pair("Updated", commit.updated === undefined ? null : count(commit.updated)),
      pair("Deleted", commit.deleted === undefined ? null : count(commit.deleted)),
      pair("Files", commit.files === undefined ? null : `${count(commit.files)}, ${size(found.written_bytes)}`),
      pair("Files deleted", found.clean ? count(found.clean.files_deleted) : null),
      pair("Takes back", rollback ? `${rollback.target.action} ${rollback.target.requested_at}` : null),
      pair("By", rollback?.caused_by),
      pair("Reason", rollback?.reason),
      pair("Cancellable", found.cancellable === undefined ? null : found.cancellable ? "yes" : "no"),
      pair("Instant", found.requested_at),
      pair("File", found.file)),
    found.plan ? h("div", { class: "block" }, h("h3", null, "Plan"), planBlock(found.plan)) : null,
    paths("Partitions", commit.partitions ?? found.clean?.partitions, commit.partitions_total ?? found.clean?.partitions_total),
    found.extra && Object.keys(found.extra).length ? h("details", { class: "block" }, h("summary", null, "Extra metadata"),
      h("div", { class: "extra", tabindex: "0", role: "group", "aria-label": "Extra metadata" }, h("dl", null, Object.entries(found.extra).map(([key, value]) => pair(key, value))))) : null,
  ];
}

export async function openDetails(number, instant, now) {
  const place = document.getElementById("details");
  if (place.hidden) before = document.activeElement;
  const [kind, name] = kindOf(instant);
  const content = h("div", { class: "drawer-body" }, h("p", { class: "waiting" }, "Reading …"));
  const close = h("button", { type: "button", id: "details-close", class: "quiet", "aria-label": "Close the details", onclick: closeDetails }, "✕");
  put(place, h("div", { class: "drawer-head" }, h("h2", { id: "details-title" }, h("i", { class: `swatch k-${kind}` }), name), close), content);
  place.setAttribute("aria-labelledby", "details-title");
  place.hidden = false;
  close.focus();
  try {
    const found = await look(`/${number}/instants/${encodeURIComponent(instant.action)}/${encodeURIComponent(instant.requested_at)}`);
    put(content, body(found, now));
    say(`${name}, ${stateWord[found.state]}`);
  } catch (error) {
    put(content, failure(error));
  }
}

document.addEventListener("keydown", (event) => { if (event.key === "Escape") closeDetails(); });
