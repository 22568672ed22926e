// The questions on a book, with the passages that prove them: to accept, change and drop, and to choose for an exam.
import { BASE, navigation } from "../address.js";
import { Button, Check, Empty, Field, LETTERS, Missing, Problem, attempt, toast } from "../controls.js";
import { html, useFetched, useState } from "../html.js";
import { Rich } from "../markdown.js";
import * as rest from "../rest.js";
import { count, t } from "../texts.js";
import { QuestionFileButton, StudyHead, TakeAway } from "./study.js";

export function Questions({ site, id }) {
  const book = site.documents.find((one) => one.id === id && !one.sample);
  const [ticked, setTicked] = useState([]);
  const [found, problem, again] = useFetched(() => rest.questions(id), [id]);
  const chosen = ticked.filter((one) => found?.some((question) => question.id === one)); // some may be dropped by now
  if (!book || site.session.learner || problem?.status === 404) return html`<${Missing} />`;
  const start = () => attempt(async () => {
    const exam = await rest.startExam({ document_ids: [id], question_ids: chosen });
    navigation.go(`study/exam/${exam.id}`);
  });
  const add = (file) => attempt(async () => {
    toast(count("exam.questions", (await rest.addQuestions(id, file)).questions));
    again();
  });
  const choose = (question) => (on) => setTicked(on ? [...chosen, question.id] : chosen.filter((one) => one !== question.id));
  return html`<${StudyHead} site=${site} current="questions" />
    <section class="card"><h2>${t("questions.title", { title: book.title })}</h2><p class="soft">${t("questions.about")}</p>
      <div class="row"><${QuestionFileButton} onFile=${add} /><${TakeAway} source=${{ document_id: id }} /></div>
      ${problem && html`<${Problem} error=${problem} />`}
    </section>
    ${chosen.length > 0 && html`<div class="row question-actions">
      <${Button} kind="primary" onClick=${start}>${count("questions.start", chosen.length)}<//></div>`}
    ${found && !found.length && html`<${Empty} title=${t("exam.none_made")} text=${t("questions.none_text")}>
      <a class="button" href=${`${BASE}library`}>${t("nav.library")}</a><//>`}
    ${found?.map((question) => html`<${Question} key=${question.id} question=${question}
      chosen=${chosen.includes(question.id)} onChoose=${choose(question)} onChange=${again} />`)}`;
}

function Question({ question, chosen, onChoose, onChange }) {
  const [editing, setEditing] = useState(false);
  const change = (values) => attempt(async () => {
    await rest.changeQuestion(question.id, values);
    setEditing(false);
    onChange();
  });
  const drop = () => attempt(async () => {
    await rest.dropQuestion(question.id);
    onChange();
  });
  const card = () => attempt(async () => {
    await rest.makeCard(question.id);
    toast(t("questions.card_made"));
  });
  const state = question.accepted ? "accepted" : question.checked ? "checked" : "unchecked";
  return html`<article class="card made-question" aria-label=${question.question}>
    <p class="soft">${[t("filters.in_chapter", { n: question.chapter }), t(`type.${question.type}`), t(`questions.${state}`)].join(" · ")}</p>
    ${editing ? html`<${WordingForm} question=${question} onKeep=${change} onCancel=${() => setEditing(false)} />` : html`
      <${Rich} text=${question.question} />
      <${Choices} of=${question} />
      <div><h3 class="small-heading">${t("mark.reference")}</h3><${Rich} text=${question.answer} /></div>
      <details><summary>${t("questions.passage")}</summary><${Rich} text=${question.passage || question.gold[0]?.evidence || ""} /></details>
      ${question.gold[0]?.evidence && html`<blockquote class="card-quote"><${Rich} text=${question.gold[0].evidence} /></blockquote>`}
      <div class="row">
        <${Check} label=${t("questions.choose")} checked=${chosen} onChange=${onChoose} />
        ${!question.accepted && html`<${Button} onClick=${() => change({ accepted: true })}>${t("questions.accept")}<//>`}
        <${Button} kind="quiet" onClick=${() => setEditing(true)}>${t("cards.edit")}<//>
        <${Button} kind="quiet" onClick=${card}>${t("questions.card")}<//>
        <${Button} kind="quiet" onClick=${drop}>${t("questions.drop")}<//></div>`}
  </article>`;
}

export const Choices = ({ of: { choices } }) => choices && html`<ol class="card-choices" type="A">${choices.map((choice) => html`
  <li><${Rich} text=${choice} /></li>`)}</ol>`;

/** The wording of a question or a card. */
export function WordingForm({ question, onKeep, onCancel }) {
  const keep = (event) => {
    event.preventDefault();
    const { question: asked, answer, right, ...boxes } = Object.fromEntries(new FormData(event.target));
    const choices = question.choices?.map((_, at) => boxes[LETTERS[at]]);
    onKeep(choices ? { question: asked, choices, answer_index: Number(right) } : { question: asked, answer });
  };
  return html`<form class="add-form" onSubmit=${keep}>
    <${Field} label=${t("cards.question")}><textarea class="box" name="question" rows="3" dir="auto" defaultValue=${question.question}></textarea><//>
    ${question.choices ? question.choices.map((choice, at) => html`<div class="option-edit">
        <input type="radio" name="right" value=${at} defaultChecked=${at === question.answer_index}
          aria-label=${t("questions.right", { letter: LETTERS[at] })} /><span aria-hidden="true">${LETTERS[at]}</span>
        <input class="box" name=${LETTERS[at]} dir="auto" defaultValue=${choice} aria-label=${LETTERS[at]} /></div>`)
      : html`<${Field} label=${t("mark.reference")}><textarea class="box" name="answer" rows="2" dir="auto" defaultValue=${question.answer}></textarea><//>`}
    <div class="row"><${Button} kind="primary" type="submit">${t("cards.keep")}<//><${Button} kind="quiet" onClick=${onCancel}>${t("cancel")}<//></div></form>`;
}
