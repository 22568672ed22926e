// Put an exam together, or go on with an earlier one.
import { BASE, navigation } from "../address.js";
import { Button, Check, Field, Problem, Select, attempt } from "../controls.js";
import { html, useFetched, useRef, useState } from "../html.js";
import * as rest from "../rest.js";
import { chapterName, count, dateTime, number, points, t } from "../texts.js";
import { Rows, useJobs } from "./jobs.js";

const BOOK = "book:"; // begins a source that is a book, before its id
const EARLIER_SHOWN = 12;
const NARROW = 800; // there the chapters are folded away
const USUAL_COUNT = "10";
const DEFAULT_LEARNER = "default";
const FILE_ENDINGS = ["jsonl", "csv"];
const FILE_EXAMPLE = `question,option_a,option_b,option_c,option_d,right,answer,key_facts
How many threads are in a warp?,,,,,,32.,32
What do the threads of a block share?,Registers,Shared memory,Local memory,A program counter,B,Shared memory,`;

/** Heading, learner and the parts of the study view; `due` cards are counted here where the view does not, again as `changes` does. */
export function StudyHead({ site, current, due, changes = null }) {
  const [cards] = useFetched(async () => (current === "cards" ? { due } : rest.dueCards(1)), [due, changes]);
  const { learner: owner } = site.session;
  const learner = owner || (rest.reader.learner === DEFAULT_LEARNER ? "" : rest.reader.learner);
  const rename = (event) => {
    coalesce.remember("learner", event.target.value.trim());
    location.assign(`${BASE}study`);
  };
  const parts = [["exam", "study"], ["cards", "study/cards"], ["progress", "study/progress"]];
  return html`<div class="study-head"><h1>${t("nav.study")}</h1>
      <details class="learner"><summary>${t("study.learner", { name: learner || t("study.default_learner") })}</summary>
        ${owner ? html`<p class="soft">${t("study.own_key_note")}</p>` : html`
          <${Field} label=${t("study.learner_name")}><input class="box" maxlength="100" autocomplete="off" defaultValue=${learner}
            placeholder=${t("study.default_learner")} onChange=${rename} /><//>
          <p class="soft">${t("study.learner_note")}</p>`}
      </details></div>
    <nav class="subnav" aria-label=${t("nav.study")}>${parts.map(([name, path]) => html`
      <a href=${BASE + path} aria-current=${name === current ? "page" : undefined}>${t(`study.${name}`)}${name === "cards" && cards?.due ? ` (${number(cards.due)})` : ""}</a>`)}</nav>`;
}

/** `query` may name a book, a question file or a chapter. */
export function Study({ site, query }) {
  const asked = new URLSearchParams(query);
  const books = site.documents.filter((one) => !one.sample);
  const book = books.find((one) => one.id === asked.get("book"));
  const [files, , lookAgain] = useFetched(() => attempt(rest.questionFiles), []);
  const [source, setSource] = useState(book ? BOOK + book.id : asked.get("file") || "");
  const named = source.startsWith(BOOK) ? { document_id: source.slice(BOOK.length) } : source ? { question_file: source } : {};
  const options = [["", t("exam.bank")], ...books.map((one) => [BOOK + one.id, one.title]), ...(files || []).map((name) => [name, name])];
  const added = (name) => {
    lookAgain();
    setSource(name);
  };
  return html`<${StudyHead} site=${site} current="exam" />
    <section class="card exam-plan"><h2>${t("exam.new")}</h2>
      <div class="row question-files"><${Field} label=${t("exam.questions_from")}><${Select} options=${options} value=${source} onChange=${setSource} /><//></div>
      <${Plan} key=${source} site=${site} source=${named} chapter=${Number(asked.get("chapter"))} onFile=${added} />
    </section>
    <${Earlier} />
    ${!site.session.learner && html`<${Given} />`}`;
}

function Plan({ site, source, chapter, onFile }) {
  const [offered, problem, look] = useFetched(() => rest.questionChapters(source), []);
  const [chapters, setChapters] = useState(new Set(chapter ? [chapter] : []));
  const [types, setTypes] = useState(new Set());
  const [weights, setWeights] = useState(null); // by chapter, where chapters are weighed
  const [questions, setQuestions] = useState(USUAL_COUNT);
  const [minutes, setMinutes] = useState("");
  const form = useRef();
  if (problem) return html`<${Problem} error=${problem} />`;
  if (!offered) return null;
  const mayChange = !site.session.learner;
  if (source.document_id && !offered.chapters.length) return html`<${Making} id=${source.document_id} mayMake=${mayChange} onMade=${look} />`;

  const flip = (set, all) => (item) => (on) => set(new Set(on ? [...all, item] : [...all].filter((one) => one !== item)));
  const nameOf = (one) => chapterName(one.chapter, one.title);
  const plan = () => {
    const weighed = offered.chapters.filter((one) => !chapters.size || chapters.has(one.chapter));
    if (!form.current.reportValidity()) return null;
    return {
      document_ids: source.document_id && [source.document_id], question_file: source.question_file,
      chapters: [...chapters], types: [...types], count: questions === USUAL_COUNT ? null : Number(questions),
      time_limit_s: minutes ? 60 * minutes : null,
      weights: weights && Object.fromEntries(weighed.map((one) => [one.chapter, Number(weights[one.chapter] ?? 1)])),
    };
  };
  const start = (event) => {
    event.preventDefault();
    attempt(async () => navigation.go(`study/exam/${(await rest.startExam(plan())).id}`));
  };
  return html`<form class="exam-form" ref=${form} onSubmit=${start}>
    ${offered.chapters.length > 1 && html`<details class="file-form" open=${innerWidth > NARROW || Boolean(chapter || weights)}>
      <summary>${t("exam.chapters")}</summary><div class=${weights ? "chapters weighed" : "chapters"}>${offered.chapters.map((one) => html`<div class="chapter-row">
        <${Check} label=${`${nameOf(one)} (${one.questions})`} checked=${chapters.has(one.chapter)} onChange=${flip(setChapters, chapters)(one.chapter)} />
        ${weights && html`<input class="box" type="number" min="0.1" step="any" required value=${weights[one.chapter] ?? 1}
          aria-label=${t("exam.weight_of", { name: nameOf(one) })} onInput=${(event) => setWeights({ ...weights, [one.chapter]: event.target.value })} />`}
      </div>`)}</div></details>`}
    <div class="grid">
      ${offered.types.length > 1 && html`<fieldset><legend>${t("exam.types")}</legend>${offered.types.map((kind) => html`
        <${Check} label=${t(`type.${kind}`)} checked=${types.has(kind)} onChange=${flip(setTypes, types)(kind)} />`)}</fieldset>`}
      <${Field} label=${t("exam.count")}><input class="box" type="number" min="1" max="500" required value=${questions} onInput=${(event) => setQuestions(event.target.value)} /><//>
      <${Field} label=${t("exam.minutes")}><input class="box" type="number" min="1" placeholder=${t("exam.no_limit")} value=${minutes} onInput=${(event) => setMinutes(event.target.value)} /><//>
    </div>
    <div class="row"><${Button} kind="primary" type="submit">${t("exam.start")}<//><span class="soft">${t("exam.note")}</span></div>
    ${mayChange && html`<${ClassForm} site=${site} plan=${plan} />`}
    <details class="file-form"><summary>${t("more")}</summary>
      ${source.document_id && mayChange && html`<p><a href=${`${BASE}study/questions/${encodeURIComponent(source.document_id)}`}>${t("questions.look")}</a></p>`}
      ${source.document_id && html`<p><a href=${`${BASE}study/guide/${encodeURIComponent(source.document_id)}`}>${t("guide.title")}</a></p>`}
      ${offered.chapters.length > 1 && html`<${Check} label=${t("exam.weigh")} checked=${Boolean(weights)} onChange=${(on) => setWeights(on ? {} : null)} />
        <p class="soft">${t("exam.weigh_note")}</p>`}
      <${QuestionFile} onFile=${onFile} />
      ${mayChange && html`<div class="row soft"><span>${t("exam.take_away")}</span><${TakeAway} source=${source} /></div>`}
    </details>
  </form>`;
}

/** Names of learners, and the button that gives each of them this exam. */
function ClassForm({ site, plan }) {
  const [names, setNames] = useState(site.session.learners.join("\n"));
  const [assistant, setAssistant] = useState(false);
  const prefill = (event) => event.target.open && !names && attempt(async () => {
    const [last] = await rest.classExams(1);
    if (last) setNames((typed) => typed || last.exams.map((exam) => exam.learner).join("\n"));
  });
  const give = () => attempt(async () => {
    const planned = plan();
    const learners = names.split("\n").map((name) => name.trim()).filter(Boolean);
    if (planned) navigation.go(`study/class/${(await rest.giveExam(planned, learners, assistant)).id}`);
  });
  return html`<details class="file-form" onToggle=${prefill}><summary>${t("class.give")}</summary>
    <${Field} label=${t("class.names")}><textarea class="box" rows="6" dir="auto" value=${names} onInput=${(event) => setNames(event.target.value)}></textarea><//>
    <p class="soft">${t("class.note")}</p>
    <${Check} label=${t("class.assistant")} checked=${assistant} onChange=${setAssistant} />
    <div class="row"><${Button} kind="primary" onClick=${give}>${t("class.make")}<//></div></details>`;
}

/** A button that takes a file of questions. */
export function QuestionFileButton({ onFile }) {
  const chosen = ({ target }) => {
    const [file] = target.files;
    target.value = "";
    if (file) onFile(file);
  };
  return html`<label class="button"><span>${t("exam.add_file")}</span>
    <input class="sr-only" type="file" accept=${FILE_ENDINGS.map((one) => `.${one}`).join(",")} onChange=${chosen} /></label>`;
}

/** Links to the questions of a source as files. */
export const TakeAway = ({ source }) => FILE_ENDINGS.map((ending) => html`
  <a href=${rest.exportQuestionsPath(ending, source)} download>${ending.toUpperCase()}</a>`);

function QuestionFile({ onFile }) {
  const [problem, setProblem] = useState(null);
  const add = (file) => {
    setProblem(null);
    rest.addQuestionFile(file).then((kept) => onFile(kept.name), setProblem);
  };
  return html`<div class="row"><${QuestionFileButton} onFile=${add} /></div>
    ${problem && html`<${Problem} error=${problem} />`}
    <p class="soft">${t("exam.file_form_text")}</p>
    <pre class="command" tabindex="0"><code>${FILE_EXAMPLE}</code></pre>`;
}

/** A book without questions yet, with the button that makes them. */
function Making({ id, mayMake, onMade }) {
  const { rows, look } = useJobs({ kinds: ["questions"], onEnd: (job) => job.state === "done" && onMade() });
  const mine = rows.filter((row) => row.job.document_id === id);
  const make = () => attempt(async () => {
    await rest.makeQuestions(id);
    look();
  });
  return html`<p class="soft">${t("exam.none_made")}</p>
    <${Rows} rows=${mine} mayStop=${mayMake} />
    ${mayMake && !mine.length && html`<div class="row"><${Button} kind="primary" onClick=${make}>${t("library.make")}<//></div>`}`;
}

function Earlier() {
  const [exams] = useFetched(() => attempt(() => rest.exams(EARLIER_SHOWN)), []);
  const stateOf = ({ result, waits }) => {
    if (result) return t("exam.score", { score: points(result.score), most: points(result.max_score) });
    return t(waits ? "class.waiting" : "exam.open");
  };
  return html`<${ExamList} title=${t("exam.earlier")} rows=${exams?.map((one) => [`study/exam/${one.id}`, one, one.count, stateOf(one)])} />`;
}

/** The exams given to classes. */
function Given() {
  const [classes] = useFetched(() => attempt(() => rest.classExams(EARLIER_SHOWN)), []);
  const stateOf = ({ exams }) => t("class.handed_in", { n: exams.filter((exam) => exam.handed_in_at).length, most: exams.length });
  return html`<${ExamList} title=${t("class.given")} rows=${classes?.map((one) => [`study/class/${one.id}`, one, one.questions, stateOf(one)])} />`;
}

const ExamList = ({ title, rows }) => rows?.length > 0 && html`<section class="card"><h2>${title}</h2>
  <ul class="exam-list">${rows.map(([path, { created_at: at }, questions, state]) => html`<li><a href=${BASE + path}>
    <span>${dateTime(at)}</span><span class="soft">${count("exam.questions", questions)}</span><span class="exam-state">${state}</span></a></li>`)}</ul></section>`;
