// Comparisons over many questions: the list, one report, and the button that runs the quick one.
import { BASE, navigation } from "../address.js";
import { Button, Empty, Field, Missing, Problem, Select, Table, attempt } from "../controls.js";
import { html, useFetched, useState } from "../html.js";
import * as rest from "../rest.js";
import { count, dateTime, either, language, t } from "../texts.js";
import { CompareHead } from "./compare.js";
import { Rows, useJobs } from "./jobs.js";

/** The steps that the list shows, as [control, treatment]; a report holds more. */
const MAIN_STEPS = [["base", "rag"], ["base", "tuned"], ["tuned", "rag"], ["rag", "rag+tuned"]];
const BOOK = "book:"; // begins where questions came from, before the book's id
const FRAME_MORE = 40;

const pathOf = (id) => `reports/${encodeURIComponent(id)}`;

export function Reports({ site }) {
  const [found, problem] = useFetched(rest.reports, [language()]);
  return html`<${CompareHead} current="reports" /><p class="lead">${t("reports.lead")}</p>
    ${!site.session.learner && html`<${QuickComparison} site=${site} />`}
    ${problem && html`<${Problem} error=${problem} />`}
    ${found?.length === 0 && html`<${Empty} title=${t("reports.none")} text=${t("reports.none_text")}><code class="command">coalesce eval --quick</code><//>`}
    ${found?.map((report) => html`<${Summary} key=${report.id} site=${site} report=${report} />`)}
    <${Thumbs} />`;
}

function QuickComparison({ site }) {
  const books = site.documents.filter((one) => !one.sample && one.questions > 0);
  const [book, setBook] = useState("");
  const { rows, look } = useJobs({ kinds: ["report"], onEnd: (job) => job.state === "done" && navigation.go(pathOf(job.message)) });
  const begin = () => attempt(async () => {
    await rest.runComparison(book || null);
    look();
  });
  return html`<section class="card">
    ${books.length > 0 && html`<${Field} label=${t("exam.questions_from")}><${Select} value=${book} onChange=${setBook}
      options=${[["", t("exam.bank")], ...books.map((one) => [one.id, one.title])]} /><//>`}
    <div class="row"><${Button} kind="primary" onClick=${begin}>${t("reports.run")}<//><span class="soft">${t("reports.run_note")}</span></div>
    <${Rows} rows=${rows} /></section>`;
}

/** When and with what, and what each step gained. */
function Summary({ site, report }) {
  const steps = MAIN_STEPS.flatMap(([control, treatment]) => report.comparisons.filter((one) => one.control === control && one.treatment === treatment));
  const about = [
    sourceOf(site, report.questions), count("reports.questions", report.choice_questions),
    either(`generator.${report.generator}`, report.generator), report.model,
  ];
  return html`<article class="card"><h2><a href=${BASE + pathOf(report.id)}>${t(report.arms.length > 1 ? "reports.of" : "reports.of_one", { when: dateTime(report.created_at) })}</a></h2>
    <p class="soft">${about.filter(Boolean).join(" · ")}</p>
    ${steps.length ? html`<${Table} label=${t("reports.steps")} heads=${["step", "difference", "verdict"].map((name) => t(`reports.${name}`))}>
        ${steps.map((step) => html`<${Step} step=${step} />`)}<//>`
      : html`<p>${report.verdict}</p>`}</article>`;
}

/** The book that a report's questions are about, "" for one that is gone; or the file. */
function sourceOf(site, questions) {
  if (questions.startsWith("bank:")) return t("exam.bank");
  if (!questions.startsWith(BOOK)) return questions;
  return site.documents.find((one) => one.id === questions.slice(BOOK.length))?.title || "";
}

function Step({ step }) {
  const armOf = (name) => either(`arm.${name}`, name);
  const points = (share) => (share === null ? "–" : `${share < 0 ? "−" : "+"}${Math.abs(100 * share).toFixed(1)}`);
  return html`<tr><th scope="row">${t("reports.over", { treatment: armOf(step.treatment), control: armOf(step.control) })}</th>
    <td>${points(step.difference)} [${points(step.low)}, ${points(step.high)}]</td>
    <td class=${`step-verdict ${step.verdict.replaceAll(" ", "-")}`}>${either(`reports.is.${step.verdict}`, step.verdict)}</td></tr>`;
}

function Thumbs() {
  const [given] = useFetched(rest.feedbackCount, []);
  return given && html`<section class="card"><h2>${t("reports.feedback")}</h2>
    ${given.up + given.down ? html`<p>${t("reports.thumbs", given)}</p><p><a href=${rest.feedbackCasesPath} download>${t("reports.cases")}</a></p>
      <p class="soft">${t("reports.cases_note")}</p>` : html`<p class="soft">${t("reports.no_feedback")}</p>`}</section>`;
}

/** A report is a page of its own: no script of it runs, none is in it. */
export function Report({ id }) {
  const [there, problem] = useFetched(() => rest.report(id), [id]);
  if (problem?.status === 404) return html`<${Missing} />`;
  const page = rest.reportPagePath(id, language());
  /** As tall as it is, in the colours that the reader chose. */
  const fit = ({ target }) => {
    const inside = target.contentDocument;
    inside.documentElement.style.colorScheme = getComputedStyle(document.documentElement).colorScheme;
    target.style.height = `${inside.body.scrollHeight + FRAME_MORE}px`;
  };
  return html`<${CompareHead} current="reports" />
    ${problem && html`<${Problem} error=${problem} />`}
    <div class="row"><a href=${`${BASE}reports`}>${t("reports.back")}</a><a href=${page} target="_blank">${t("reports.alone")}</a>
      <a href=${rest.reportPath(id)} target="_blank">JSON</a></div>
    ${there && html`<iframe class="report-frame" src=${page} title=${t("reports.one")} sandbox="allow-same-origin" onLoad=${fit} />`}`;
}
