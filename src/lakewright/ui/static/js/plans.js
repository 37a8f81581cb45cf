// What is pending, who shows that it lives, and what was taken back.

import { empty, failure, h, panel, put, say } from "./dom.js";
import { ago, exact, kindOf, some, span, stateWord, when } from "./format.js";
import { change, look } from "./api.js";

export function plansPanel(context) {
  const list = h("div", { class: "plans" });
  const gone = h("div", { class: "gone" });
  const element = panel("plans", "Pending plans", null, list, gone);
  let asking = null;

  function heartbeat(plan) {
    const beat = plan.heartbeat;
    if (!beat) return h("span", { class: "beat none" }, h("i", { class: "pulse off" }), "no heartbeat");
    return h("span", { class: `beat ${beat.alive ? "alive" : "expired"}`, title: exact(beat.beat_ms) }, h("i", { class: `pulse ${beat.alive ? "on" : "dead"}` }), beat.alive ? `alive, last beat ${span(beat.age_ms)} ago` : `expired, last beat ${span(beat.age_ms)} ago`);
  }

  function cancelForm(plan) {
    const reason = h("input", { type: "text", id: "cancel-reason", maxlength: "500", placeholder: "Why? It is kept with the rollback" });
    const answer = h("div", null);
    const form = h("form", { class: "cancel", onsubmit: async (event) => {
      event.preventDefault();
      reason.blur();
      form.querySelectorAll("button").forEach((each) => { each.disabled = true; });
      try {
        const done = await change(`/${context.number}/plans/${encodeURIComponent(plan.requested_at)}/cancel`, { reason: reason.value });
        asking = null;
        context.notice(done.result === "removed" ? `The ${plan.action} ${plan.requested_at} is gone.` : `Whoever executes the ${plan.action} ${plan.requested_at} was asked to stop.`);
        await context.refreshAll();
      } catch (error) {
        put(answer, failure(error));
        form.querySelectorAll("button").forEach((each) => { each.disabled = false; });
      }
    } }, h("label", { for: "cancel-reason" }, "Reason"), reason, h("button", { type: "submit", class: "danger" }, "Cancel this plan"), h("button", { type: "button", class: "tool", onclick: () => { asking = null; element.refresh(); } }, "Keep it"), answer);
    return form;
  }

  function card(plan, now) {
    const [kind, name] = kindOf(plan);
    const may = context.allowWrites && plan.is_plan && plan.cancellable && !plan.stopping;
    const place = asking === plan.requested_at && may ? cancelForm(plan) : null;
    return h("article", { class: `plan k-edge-${kind}`, "data-instant": plan.requested_at },
      h("div", { class: "plan-head" }, h("h3", null, h("i", { class: `swatch k-${kind}` }), name), h("span", { class: `badge ${plan.state.toLowerCase()}` }, stateWord[plan.state]),
        plan.is_plan ? h("span", { class: `badge ${plan.cancellable ? "soft" : ""}` }, plan.cancellable ? "cancellable" : "not cancellable") : null),
      h("p", null, h("span", { title: exact(plan.requested_ms) }, `requested ${ago(plan.requested_ms, now)}`), plan.groups === undefined ? "" : ` · ${some(plan.groups, "file group")} in ${some(plan.partitions, "partition")}`),
      h("p", null, heartbeat(plan)),
      plan.stopping ? h("p", { class: "warned" }, `asked to stop by ${plan.stopping}`) : null,
      plan.void ? h("p", { class: "warned" }, `can never be executed: ${plan.void}`) : null,
      h("div", { class: "buttons" },
        h("button", { type: "button", class: "link", onclick: () => context.openInstant(plan) }, plan.requested_at),
        may && !place ? h("button", { type: "button", class: "tool", "data-cancel": plan.requested_at, onclick: async () => { asking = plan.requested_at; await element.refresh(); document.getElementById("cancel-reason")?.focus(); say("Give a reason, then cancel"); } }, "Cancel …") : null),
      place);
  }

  element.refresh = async () => {
    try {
      const found = await look(`/${context.number}/plans`);
      context.told("plans", found);
      // Who is writing a reason goes on writing.
      const typing = document.activeElement?.id === "cancel-reason" && list.querySelector("#cancel-reason");
      if (!typing) put(list, found.pending.length ? found.pending.map((plan) => card(plan, found.now_ms)) : empty("Nothing is pending", "No write is under way and no plan waits to be executed."));
      put(gone, found.rollbacks.length ? [h("h3", null, "Taken back"), h("ul", { class: "rollbacks" }, found.rollbacks.slice(0, 5).map((each) => h("li", null, h("i", { class: "swatch k-rollback" }), h("span", { title: exact(each.at_ms) }, `${each.target.action} ${each.target.requested_at}`), h("span", { class: "hint" }, ` ${each.caused_by ? `${each.caused_by}: ${each.reason}` : "a failed write"} · ${each.instant.state === "COMPLETED" ? when(each.at_ms) : "under way"}`))))] : null);
    } catch (error) {
      put(list, failure(error, element.refresh));
    }
  };
  return element;
}
