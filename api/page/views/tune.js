// Tuning an adapter on the questions about a book: its job, its curve, and the way to compare it.
import { BASE } from "../address.js";
import { Button, Field, Select, attempt, toast } from "../controls.js";
import { html, useEffect, useFetched, useState } from "../html.js";
import * as rest from "../rest.js";
import { message, t } from "../texts.js";
import { Rows, useJobs } from "./jobs.js";

const USUAL_EPOCHS = "3";
const MOST_EPOCHS = 100;
const PLOT = { width: 400, height: 190, left: 40, right: 8, top: 10, bottom: 28 };

/** Closed at first, open while a job runs; `onReady` hears that an adapter answers. */
export function Tune({ site, onReady }) {
  const sources = [["", t("exam.bank")], ...site.documents.filter((one) => !one.sample && one.questions > 0).map((one) => [one.id, one.title])];
  const [source, setSource] = useState(sources.at(-1)[0]);
  const [name, setName] = useState("");
  const [epochs, setEpochs] = useState(USUAL_EPOCHS);
  const [followed, setFollowed] = useState(""); // the adapter whose curve is shown
  const [open, setOpen] = useState(false);
  const { rows, look } = useJobs({ kinds: ["adapter", "generator"], onEnd: ended });
  const tuning = rows.find(({ job }) => job.kind === "adapter")?.job;
  const [offered, , again] = useFetched(rest.adapters, [site.running.model]);
  useEffect(() => {
    if (!tuning) return;
    setFollowed(tuning.title);
    setOpen(true);
  }, [tuning?.id]);
  const [points, lost] = useFetched(async () => (followed ? rest.adapterLoss(followed) : []), [followed, tuning?.done, tuning?.state]);

  function ended(job) {
    if (job.kind === "generator" && job.state === "done") {
      toast(message(job, "message"));
      site.refresh();
      onReady();
      window.scrollTo(0, 0);
    }
    if (job.kind === "adapter" && job.state === "cancelled") setFollowed("");
    again();
  }
  const start = (event) => {
    event.preventDefault();
    attempt(async () => {
      await rest.tuneAdapter({ name: name.trim(), epochs: Number(epochs), document_ids: source ? [source] : null });
      look();
    });
  };
  const use = (adapter) => attempt(async () => {
    await rest.switchGenerator({ generator: "local", model: offered.model, quantization: offered.quantization, adapter });
    look();
  });
  return html`<details class="card tuning" open=${open} onToggle=${(event) => setOpen(event.currentTarget.open)}><summary>${t("tune.title")}</summary>
    ${offered && !offered.model && html`<p class="soft">${t("tune.needs")}</p><a href=${`${BASE}settings`}>${t("compare.other_model")}</a>`}
    ${offered?.model && html`<p class="soft">${t("tune.about")}</p><form class="tune-form" onSubmit=${start}><div class="grid">
        <${Field} label=${t("exam.questions_from")}><${Select} options=${sources} value=${source} onChange=${setSource} /><//>
        <${Field} label=${t("tune.name")}><input class="box" maxlength="64" autocomplete="off" value=${name} onInput=${(event) => setName(event.target.value)} /><//>
        <${Field} label=${t("tune.epochs")}><input class="box" type="number" min="1" max=${MOST_EPOCHS} required value=${epochs} onInput=${(event) => setEpochs(event.target.value)} /><//>
      </div>
      <div class="row"><${Button} kind="primary" type="submit">${t("tune.start")}<//></div></form>`}
    <${Rows} rows=${rows} />
    ${points?.length > 0 && !lost && html`<${LossCurve} points=${points} />`}
    ${offered?.adapters.length > 0 && html`<div class="row" aria-live="polite">${offered.adapters.map((one) => html`
      <${Button} key=${one} onClick=${() => use(one)}>${t("tune.compare", { name: one })}<//>`)}</div>`}
  </details>`;
}

/** Training and validation loss by step. */
function LossCurve({ points }) {
  const series = ["loss", "eval_loss"].map((name) => [name, points.filter((one) => one[name] !== null).map((one) => [one.step, one[name]])]);
  const every = series.flatMap(([, found]) => found);
  if (!every.length) return null;
  const [steps, losses] = [0, 1].map((axis) => every.map((point) => point[axis]));
  const most = Math.max(...steps, 1);
  const [low, high] = [Math.min(...losses), Math.max(...losses)];
  const span = high - low || 1;
  const { width, height, left, right, top, bottom } = PLOT;
  const x = (step) => left + ((width - left - right) * step) / most;
  const y = (loss) => top + ((height - top - bottom) * (low + span - loss)) / span;
  const line = (found) => found.map(([step, loss]) => `${x(step).toFixed(1)},${y(loss).toFixed(1)}`).join(" ");
  return html`<figure class="loss-curve"><svg viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${t("tune.curve")}>
      ${[0, 0.5, 1].map((share) => html`<line class="grid-line" x1=${left} x2=${width - right} y1=${y(low + span * share)} y2=${y(low + span * share)} />
        <text class="tick end" x=${left - 6} y=${y(low + span * share) + 4}>${(low + span * share).toFixed(2)}</text>`)}
      <text class="tick" x=${left} y=${height - 8}>0</text><text class="tick end" x=${width - right} y=${height - 8}>${t("tune.steps", { n: most })}</text>
      ${series.map(([name, found]) => html`<polyline class=${`curve ${name}`} points=${line(found)} />
        ${found.length < 20 && found.map(([step, loss]) => html`<circle class=${`curve ${name}`} cx=${x(step)} cy=${y(loss)} r="3" />`)}`)}
    </svg><figcaption>${t("tune.curve")}: ${series.filter(([, found]) => found.length).map(([name]) => html`<span class=${`key ${name}`}>${t(`tune.of.${name}`)}</span>`)}</figcaption></figure>`;
}
