// Jobs in work: what each does, how far it is, a button that stops it, and in the end what came of it or went wrong.
import { Button, Progress, attempt } from "../controls.js";
import { html, useEffect, useRef, useState } from "../html.js";
import * as rest from "../rest.js";
import { either, message, number, said, t } from "../texts.js";

const BUSY_POLL_MS = 400;
const IDLE_POLL_MS = 3000;
const FINAL = new Set(["done", "failed", "cancelled"]);
const BYTES = 100_000; // a total beyond this counts bytes

/**
 * The jobs to show: those in work, those that failed until that is dismissed, and of those that were done while the view is
 * open the ones that have something to say. `onEnd(job)` hears of each end, `kinds` narrows them; `failures`: also of jobs
 * that failed before the view was opened. `look()` asks at once.
 */
export function useJobs({ onEnd = () => {}, kinds = null, failures = true } = {}) {
  const [jobs, setJobs] = useState([]);
  const state = useRef({ seen: new Map(), dismissed: new Set(), stopping: new Set(), timer: 0, gone: false }).current;

  const look = async () => {
    clearTimeout(state.timer);
    try {
      const found = (await rest.jobs()).filter((job) => !kinds || kinds.includes(job.kind));
      for (const job of found) {
        if (state.first === undefined && FINAL.has(job.state) && !(failures && job.state === "failed")) state.dismissed.add(job.id);
        if (FINAL.has(job.state) && state.first === false && !FINAL.has(state.seen.get(job.id))) onEnd(job);
        state.seen.set(job.id, job.state);
      }
      state.first = false;
      if (!state.gone) setJobs(found);
    } catch (error) {
      if (!error.type) throw error; // the server may be back at the next look
    }
    if (state.gone) return;
    const busy = [...state.seen.values()].some((one) => !FINAL.has(one));
    state.timer = setTimeout(look, busy ? BUSY_POLL_MS : IDLE_POLL_MS);
  };
  useEffect(() => {
    look();
    return () => {
      state.gone = true;
      clearTimeout(state.timer);
    };
  }, []);

  const shown = jobs.filter((job) => !FINAL.has(job.state) || (!state.dismissed.has(job.id) && (job.state === "failed" || tells(job))));
  const rows = shown.map((job) => ({
    job,
    stopping: state.stopping.has(job.id),
    stop: () => attempt(async () => {
      await rest.cancelJob(job.id);
      state.stopping.add(job.id);
      look();
    }),
    dismiss: () => {
      state.dismissed.add(job.id);
      setJobs([...jobs]);
      if (job.state === "failed") attempt(() => rest.cancelJob(job.id).catch((error) => {
        if (error.status !== 404) throw error; // another tab did
      }));
    },
  }));
  return { rows, look };
}

/** Whether what a job says when it is done is worth reading: how many questions were made, what was learnt. */
const tells = (job) => job.state === "done" && (job.kind === "questions" || job.kind === "adapter");

const jobName = ({ kind, title }) => [either(`library.job.${kind}`, kind), title].filter(Boolean).join(": ");

function stateOf({ job, stopping }) {
  if (job.error) return said(job.error);
  if (stopping) return t("library.stopping");
  const stage = either(`stage.${job.message}`, message(job, "message"));
  const left = job.seconds_left !== null && !FINAL.has(job.state) ? ` (≈ ${clock(job.seconds_left)})` : "";
  if (job.total > BYTES) return `${stage}: ${Math.floor((100 * job.done) / job.total)} %${left}`;
  return job.total > 1 && !FINAL.has(job.state) ? `${stage} ${number(job.done)} / ${number(job.total)}${left}` : stage;
}

/** Seconds as minutes and seconds. */
const clock = (seconds) => `${Math.floor(seconds / 60)}:${String(Math.round(seconds) % 60).padStart(2, "0")}`;

export const Rows = ({ rows, mayStop = true }) => html`<div class="uploads" aria-live="polite">
  ${rows.map((row) => html`<${Row} key=${row.job.id} row=${row} mayStop=${mayStop} />`)}</div>`;

function Row({ row, mayStop }) {
  const { job, stop, dismiss } = row;
  const ended = FINAL.has(job.state);
  return html`<div class=${job.state === "failed" ? "upload failed" : "upload"} role="status">
    <span class="upload-name">${jobName(job)}</span><span class="upload-state">${stateOf(row)}</span>
    ${!ended && html`<${Progress} label=${jobName(job)} done=${job.done} most=${job.total} />`}
    ${ended ? html`<${Button} kind="quiet" onClick=${dismiss}>${t("upload.dismiss")}<//>`
      : mayStop && stop && html`<${Button} kind="quiet" onClick=${stop}>${t("cancel")}<//>`}
  </div>`;
}
