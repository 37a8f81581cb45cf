// The services: what each would do now and why, and, where that is allowed, buttons to run them.

import { failure, h, panel, put, say } from "./dom.js";
import { clock, span } from "./format.js";
import { change, look } from "./api.js";
import { planBlock } from "./details.js";

const RESULTS = { done: "done", skipped: "nothing to do", failed: "failed" };

export function servicesPanel(context) {
  const list = h("div", { class: "services" });
  const jobs = h("div", { class: "jobs", id: "jobs" });
  const gate = h("div", { class: "gate" });
  const element = panel("services", "Services", null, gate, list, jobs);
  let running = false;

  function drawGate() {
    if (!context.allowWrites) return put(gate, h("p", { class: "hint" }, "This page only looks. Start it with --allow-writes to run services and cancel plans from here."));
    return put(gate);
  }

  function row(service) {
    const answer = h("div", { class: "preview", id: `preview-${service.name}` });
    const buttons = h("div", { class: "buttons" });
    const preview = h("button", { type: "button", class: "tool", "data-preview": service.name, onclick: async () => {
      put(answer, h("p", { class: "waiting" }, "Planning …"));
      try {
        const found = await look(`/${context.number}/services/${encodeURIComponent(service.name)}/preview`);
        put(answer, h("p", { class: "hint" }, found.planned ? "It would do this now:" : "It would do nothing now:"), planBlock(found));
        say(found.planned ? "There is something to do" : found.reason);
      } catch (error) {
        put(answer, failure(error));
      }
    } }, "Preview");
    const run = h("button", { type: "button", class: "tool", "data-run": service.name, disabled: running, onclick: () => {
      put(buttons, h("span", null, `Run ${service.name} now?`), h("button", { type: "button", class: "danger", "data-run-yes": service.name, onclick: () => start(service, answer, buttons, usual) }, "Yes, run it"), h("button", { type: "button", class: "tool", onclick: usual }, "No"));
      buttons.querySelector("button").focus();
    } }, "Run …");
    const usual = () => put(buttons, preview, context.allowWrites ? run : null);
    usual();
    return h("article", { class: "service", "data-service": service.name }, h("div", { class: "service-head" }, h("div", null, h("h3", null, service.name), h("p", { class: "hint" }, service.does)), buttons), answer);
  }

  async function start(service, answer, buttons, usual) {
    try {
      await change(`/${context.number}/services/${encodeURIComponent(service.name)}/run`);
      say(`${service.name} runs`);
      put(answer);
      context.beatNow();
    } catch (error) {
      put(answer, failure(error));
    }
    usual();
  }

  function drawJobs(found, now) {
    running = found.some((each) => each.state === "running");
    list.querySelectorAll("[data-run]").forEach((each) => { each.disabled = running; });
    if (!found.length) return put(jobs);
    return put(jobs, h("h3", null, "Run from here"), h("ul", null, found.slice(0, 6).map((job) => h("li", { class: `job ${job.state}`, "data-job": job.job },
      h("div", { class: "job-head" }, h("strong", null, job.service), h("span", { class: `badge ${job.state}` }, job.state === "running" ? `runs for ${span(Math.max(0, now - job.began_ms))}` : job.state), h("span", { class: "hint" }, `${clock(job.began_ms)}${job.ended_ms ? `, took ${span(job.ended_ms - job.began_ms)}` : ""}`),
        job.state === "running" ? h("button", { type: "button", class: "tool", "data-stop": job.job, onclick: async () => { try { await change(`/${context.number}/jobs/${job.job}/stop`); say("asked to stop"); } catch (error) { context.notice(error.message); } } }, "Stop after this step") : null),
      job.steps.map((step) => h("p", null, `${step.service}: ${RESULTS[step.result] ?? step.result}`, h("span", { class: "hint" }, ` ${step.detail ?? ""}`))),
      job.error ? h("pre", { class: "said", tabindex: "0", role: "group", "aria-label": `What ${job.service} said` }, job.error) : null))));
  }

  element.refresh = async () => {
    drawGate();
    try {
      const found = await look(`/${context.number}/services`);
      put(list, found.services.map(row));
      drawJobs(found.jobs, context.now());
    } catch (error) {
      put(list, failure(error, element.refresh));
    }
  };
  element.jobs = drawJobs;
  return element;
}
