// An exam given to a class: a link for every learner, who has handed in, and the marks as they come.
import { BASE } from "../address.js";
import { CopyButton, Missing, Problem, Table } from "../controls.js";
import { html, useEffect, useFetched } from "../html.js";
import * as rest from "../rest.js";
import { count, points, t } from "../texts.js";
import { StudyHead } from "./study.js";

const POLL_MS = 2000;
const OPEN_TO_OTHERS = "COALESCE_API_KEYS=KEY COALESCE_LEARNER_KEYS=NAME=KEY,NAME=KEY coalesce serve --host 0.0.0.0";
const onlyHere = () => /^(localhost|127(\.\d+){3}|\[::1\])$/.test(location.hostname);
const pathOf = (exam) => BASE + exam.link.slice(1);
const addressOf = (exam) => location.origin + pathOf(exam);

export function Class({ site, id }) {
  const [given, problem, again] = useFetched(() => rest.classExam(id), [id]);
  useEffect(() => {
    if (given?.exams.every((exam) => exam.handed_in_at) || [403, 404].includes(problem?.status)) return;
    const timer = setTimeout(again, POLL_MS);
    return () => clearTimeout(timer);
  }, [given, problem]);
  if (problem?.status === 404) return html`<${Missing} />`;
  return html`<${StudyHead} site=${site} current="exam" />
    ${problem && html`<${Problem} error=${problem} />`}
    ${given && html`<section class="card class-exam"><h2>${count("class.title", given.questions)}</h2>
      <p class="soft">${t("class.how")}</p>
      ${onlyHere() && html`<div class="note" role="note"><p>${t("class.only_here")}</p><pre class="command" tabindex="0"><code>${OPEN_TO_OTHERS}</code></pre></div>`}
      <div class="row"><${CopyButton} kind="primary" label=${t("class.copy_all")}
          text=${() => given.exams.map((exam) => `${exam.learner}: ${addressOf(exam)}`).join("\n")}>${t("class.copy_all")}<//>
        <a class="button" href=${rest.exportMarksPath(id)} download>${t("class.marks")}</a></div>
      <${Table} label=${t("class.learners")} heads=${["learner", "state", "link"].map((name) => t(`class.${name}`))}>
        ${given.exams.map((exam) => html`<${Learner} key=${exam.id} exam=${exam} />`)}<//>
    </section>`}`;
}

function Learner({ exam }) {
  const score = exam.handed_in_at && t("exam.score", { score: points(exam.score), most: points(exam.max_score) });
  return html`<tr><th scope="row" dir="auto">${exam.learner}</th>
    <td>${score ? html`<a href=${pathOf(exam)}>${score}</a>` : html`<span class="soft">${t(exam.waits ? "class.waiting" : "class.open")}</span>`}</td>
    <td><${CopyButton} label=${t("class.copy_of", { name: exam.learner })} text=${() => addressOf(exam)}>${t("class.copy")}<//></td></tr>`;
}
