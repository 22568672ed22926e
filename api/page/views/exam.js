// An exam being taken, one question at a time or as a list; its marks once it is handed in.
import { BASE } from "../address.js";
import { Button, Empty, LETTERS, Missing, Problem, attempt, confirm } from "../controls.js";
import { html, useEffect, useFetched, useRef, useState } from "../html.js";
import { Passage, Rich } from "../markdown.js";
import * as rest from "../rest.js";
import { count, placeOf, points, questionText, t } from "../texts.js";
import { PLAIN_FORMATS } from "./source.js";
import { StudyHead } from "./study.js";

const LITTLE_TIME_S = 60;
const LAST_S = 5; // the server's time is known to two seconds: its replies say it in whole ones, and it looks once in each
const KEEP_AFTER_MS = 400;
const KEEP_AGAIN_MS = 2000;
const MOST_CHARACTERS = 20_000;

/** `query` may name the learner whose link this is: who takes the exam goes on under that name. */
export function Exam({ site, id, query }) {
  const named = !site.session.learner && new URLSearchParams(query).get("learner");
  const [{ exam, draft, ends } = {}, problem, look] = useFetched(async () => {
    const { learner: before } = rest.reader;
    if (named) rest.reader.learner = named;
    try {
      const found = await rest.exam(id);
      const kept = found.result || found.waits ? {} : await rest.draft(id);
      if (named && !found.result) coalesce.remember("learner", named);
      else if (named) rest.reader.learner = before; // a teacher looks at marks and stays who they are
      return { exam: found, draft: kept, ends: rest.byThisClock(found.deadline) };
    } catch (error) {
      rest.reader.learner = before;
      throw error;
    }
  }, [id]);
  if (problem && exam?.id !== id) return problem.status === 404 ? html`<${Missing} />` : html`<${Problem} error=${problem} />`;
  const begin = () => attempt(async () => {
    await rest.beginExam(id);
    look();
  });
  return html`<${StudyHead} site=${site} current="exam" changes=${exam} />
    ${problem && html`<${Problem} error=${problem} />`}
    ${exam && (exam.waits ? html`<${Invitation} exam=${exam} onBegin=${begin} />`
      : exam.result ? html`<${Marks} exam=${exam} onDecided=${look} />` : html`<${Sitting} key=${exam.id} exam=${exam} ends=${ends} draft=${draft} onEnd=${look} />`)}`;
}

/** An exam whose time begins with a press: a program that looks at the link must not begin it. */
const Invitation = ({ exam, onBegin }) => html`<${Empty} title=${count("exam.invited", exam.count, { name: exam.learner })}
  text=${t("exam.invited_text", { minutes: points(exam.time_limit_s / 60) })}><${Button} kind="primary" onClick=${onBegin}>${t("exam.begin")}<//><//>`;

// --- taking it

/** `ends`: when its time is over, by this machine's clock. */
function Sitting({ exam, ends, draft, onEnd }) {
  const { questions } = exam;
  const [answers, setAnswers] = useState(draft);
  const [place, setPlace] = useState(0);
  const [asList, setAsList] = useState(false);
  const sheet = useRef();
  const unsaved = useRef({}); // by question
  const saving = useRef(Promise.resolve()); // answers are kept in the order in which they were given
  const timer = useRef(0);

  /** Keeps what is not kept yet; while no server takes it, or nobody is signed in, again and again. */
  const save = () => {
    clearTimeout(timer.current);
    saving.current = saving.current.then(() => attempt(async () => {
      const given = unsaved.current;
      if (!Object.keys(given).length) return;
      unsaved.current = {};
      try {
        await rest.keepAnswers(exam.id, given);
      } catch (error) {
        unsaved.current = { ...given, ...unsaved.current };
        if (error.type === "unreachable" || error.status === 401) timer.current = setTimeout(save, KEEP_AGAIN_MS);
        throw error;
      }
    }));
    return saving.current;
  };
  const keep = (question, answer, { soon = true } = {}) => {
    unsaved.current[question] = answer;
    setAnswers((all) => ({ ...all, [question]: answer ?? undefined }));
    clearTimeout(timer.current);
    timer.current = setTimeout(save, soon ? 0 : KEEP_AFTER_MS);
  };
  useEffect(() => () => void save(), []);

  const answered = questions.filter((question) => answers[question.id] !== undefined).length;
  const last = questions.length - 1;
  const go = (to) => {
    save();
    setPlace(Math.max(0, Math.min(to, last)));
    setTimeout(() => {
      document.querySelector(".step[aria-current]")?.scrollIntoView({ block: "nearest" });
      sheet.current?.querySelector(".question")?.focus({ preventScroll: true });
    });
  };
  const handIn = () => confirm({
    question: t("exam.hand_in_question"), yes: t("exam.hand_in"), no: t("cancel"),
    detail: answered < questions.length ? count("exam.missing", questions.length - answered) : "",
    onYes: async () => {
      await save();
      const given = { ...await rest.draft(exam.id), ...unsaved.current }; // some may have been given in another tab
      await rest.handIn(exam.id, Object.fromEntries(Object.entries(given).filter(([, answer]) => answer !== null))).finally(onEnd);
    },
  });
  const timeOver = async () => {
    await save();
    onEnd();
  };
  const shown = asList ? questions.map((_, index) => index) : [place];
  return html`<section class="sitting">
    <div class="sitting-head">
      ${exam.deadline && html`<${Clock} ends=${ends} onOver=${timeOver} onLittle=${save} />`}
      <span class="soft">${t("exam.answered", { n: answered, most: questions.length })}</span>
      <${Button} kind="quiet" onClick=${() => setAsList(!asList)}>${t(asList ? "exam.one" : "exam.list")}<//>
    </div>
    ${!asList && html`<nav class="steps" aria-label=${t("exam.steps")}>${questions.map((question, index) => {
      const done = answers[question.id] !== undefined;
      return html`<${Button} kind=${done ? "step done" : "step"} aria-current=${index === place ? "step" : undefined}
        label=${t(done ? "exam.step_done" : "exam.step_open", { n: index + 1 })} onClick=${() => go(index)}>${index + 1}<//>`;
    })}</nav>`}
    <div class="sheet" ref=${sheet}>
      ${shown.map((index) => html`<${Question} key=${questions[index].id} question=${questions[index]} place=${index} most=${questions.length}
        answer=${answers[questions[index].id]} keep=${keep} save=${save} />`)}
      <div class="row">
        ${!asList && html`<${Button} disabled=${place === 0} onClick=${() => go(place - 1)}>${t("exam.back")}<//>`}
        ${!asList && place < last && html`<${Button} kind="primary" onClick=${() => go(place + 1)}>${t("exam.next")}<//>`}
        <${Button} kind=${asList || place === last ? "primary" : "quiet"} onClick=${handIn}>${t("exam.hand_in")}<//>
      </div>
    </div>
  </section>`;
}

function Clock({ ends, onOver, onLittle }) {
  const left = () => Math.floor((ends - Date.now()) / 1000);
  const [seconds, setSeconds] = useState(left());
  const over = useRef(false);
  useEffect(() => {
    const timer = setInterval(() => {
      const now = left();
      setSeconds(now);
      if (now >= 0 && now <= LAST_S) onLittle();
      if (now < 0 && !over.current) {
        over.current = true;
        onOver();
      }
    }, 1000);
    return () => clearInterval(timer);
  }, [ends]);
  const shown = Math.max(seconds, 0);
  const time = `${Math.floor(shown / 60)}:${String(shown % 60).padStart(2, "0")}`;
  return html`<span class=${seconds < LITTLE_TIME_S ? "clock little" : "clock"} role="timer">${t("exam.left", { time })}</span>
    <span class="sr-only" role="status">${seconds < LITTLE_TIME_S && t("exam.minute_left")}</span>`;
}

function Question({ question, place, most, answer, keep, save }) {
  const number = `${t("exam.number", { n: place + 1, most })} · ${t(`type.${question.type}`)}`;
  if (question.type === "choice") {
    return html`<article class="card question" tabindex="-1"><p class="soft">${number}</p>
      <fieldset class="choices"><legend><${Rich} text=${questionText(question)} /></legend>
        ${question.choices.map((choice, index) => html`<label class="check choice"><input type="radio" name=${`q${place}`} checked=${answer === index}
          onChange=${() => keep(question.id, index)} /><${Rich} text=${choice} /></label>`)}</fieldset></article>`;
  }
  return html`<article class="card question" tabindex="-1"><p class="soft">${number}</p>
    <label for=${`answer-${place}`}><${Rich} text=${questionText(question)} /></label>
    <textarea class="box" id=${`answer-${place}`} rows="5" dir="auto" autocomplete="off" maxlength=${MOST_CHARACTERS} placeholder=${t("mark.yours")}
      defaultValue=${answer || ""} onInput=${(event) => keep(question.id, event.target.value.trim() ? event.target.value : null, { soon: false })} onBlur=${save}></textarea></article>`;
}

// --- its marks

function Marks({ exam, onDecided }) {
  const { result } = exam;
  const asked = new Map(exam.questions.map((question) => [question.id, question]));
  const missed = result.marks.filter((mark) => !mark.passed).length;
  const unsure = result.marks.filter((mark) => mark.needs_check).length;
  return html`<section class="card result"><h2>${t("exam.result")}</h2>
      <p class="big">${t("exam.score", { score: points(result.score), most: points(result.max_score) })}</p>
      <progress class="bar" max="1" value=${result.max_score ? result.score / result.max_score : 0} aria-label=${t("exam.result")} />
      ${exam.closed_by_deadline && html`<p class="note">${t("exam.handed_in_late")}</p>`}
      ${unsure > 0 && html`<p class="note">${count("exam.to_check", unsure)}</p>`}
      <p class="soft">${missed ? count("exam.became_cards", missed) : t("exam.all_right")}</p>
      <div class="row">
        ${missed > 0 && html`<a class="button primary" href=${`${BASE}study/cards`}>${t("exam.review")}</a>`}
        <a class="button" href=${`${BASE}study`}>${t("exam.another")}</a><a class="button" href=${`${BASE}study/progress`}>${t("study.progress")}</a></div>
    </section>
    ${result.marks.map((mark, index) => html`<${Mark} key=${mark.question_id} exam=${exam} mark=${mark} number=${index + 1}
      question=${asked.get(mark.question_id)} onDecided=${onDecided} />`)}`;
}

function Mark({ exam, mark, number, question, onDecided }) {
  const state = mark.passed ? "right" : mark.score <= 0 ? "wrong" : "part";
  const decide = (share) => attempt(async () => {
    await rest.decide(exam.id, mark.question_id, share);
    onDecided();
  });
  const option = (index) => html`<${Rich} text=${`${LETTERS[index]}. ${question.choices[index]}`} />`;
  const right = mark.answer_index !== null && question.choices ? option(mark.answer_index) : html`<${Rich} text=${mark.reference_answer} />`;
  const yours = mark.answer === null ? t("mark.nothing") : Number.isInteger(mark.answer) ? option(mark.answer) : html`<p class="typed" dir="auto">${mark.answer}</p>`;
  const share = mark.score / mark.max_score;
  return html`<article class=${`card mark ${state}`}>
    <div class="mark-head"><span class=${`badge ${state}`}>${t(`mark.${state}`)}</span>
      <span class="soft">${t("exam.score", { score: points(mark.score), most: points(mark.max_score) })}</span>
      ${["similarity", "judge", "self", "teacher"].includes(mark.by) && html`<span class="soft">${t(`mark.by_${mark.by}`)}</span>`}</div>
    <h3 class="mark-question"><span>${number}. </span><${Rich} kind="rich inline" text=${questionText(question)} /></h3>
    <dl><dt>${t("mark.yours")}</dt><dd>${yours}</dd>
      ${(state !== "right" || question.type !== "choice") && html`<dt>${t("mark.reference")}</dt><dd>${right}</dd>`}</dl>
    ${mark.by === "key_facts" && html`<${Facts} name="met" sign="✓" facts=${mark.facts_met} /><${Facts} name="missed" sign="✗" facts=${mark.facts_missed} />`}
    ${question.type !== "choice" && mark.answer !== null && html`
      ${mark.requested !== null && html`<p class="note">${t("mark.requested", { score: points(mark.requested * mark.max_score) })}</p>`}
      ${mark.needs_check && html`<p class="note">${t("mark.check")}</p>`}
      <div class="row verdict" role="group" aria-label=${t("mark.verdict")}>${[["right", 1], ["part", 0.5], ["wrong", 0]].map(([name, given]) => html`
        <${Button} kind="quiet" aria-pressed=${String(mark.requested === given || (["self", "teacher"].includes(mark.by) && share === given))} onClick=${() => decide(given)}>${t(`mark.was_${name}`)}<//>`)}</div>`}
    ${mark.passage && html`<details class="proof" open=${state !== "right"}><summary>${t("mark.proof", { place: placeOf(mark.passage) })}</summary>
      <${Passage} text=${mark.passage.text} spans=${mark.evidence ? [mark.evidence] : []} plain=${PLAIN_FORMATS.has(mark.passage.format)} /></details>`}
  </article>`;
}

const Facts = ({ name, sign, facts }) => facts.length > 0 && html`<ul class=${`facts ${name}`} aria-label=${t(`mark.${name}`)}>
  ${facts.map((fact) => html`<li>${sign} ${fact}</li>`)}</ul>`;
