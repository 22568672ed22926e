// Cards that are due, one after the other, by keyboard too.
import { BASE, bookPath } from "../address.js";
import { Button, Empty, LETTERS, Problem, attempt, confirm, useKeys } from "../controls.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { Rich } from "../markdown.js";
import * as rest from "../rest.js";
import { count, questionText, t, until } from "../texts.js";
import { Choices, WordingForm } from "./questions.js";
import { StudyHead } from "./study.js";

const RATINGS = [["1", "again"], ["2", "hard"], ["3", "good"], ["4", "easy"]];

export function Cards({ site }) {
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState(null);
  const [detail, setDetail] = useState(null); // of the card once its answer is shown
  const [editing, setEditing] = useState(false);
  const [rated, setRated] = useState(null);
  const [done, setDone] = useState(0);
  const back = useRef();
  const busy = useRef(false);
  const card = found?.cards[0];

  const next = async () => {
    setDetail(null);
    setEditing(false);
    setFound(await rest.dueCards(1));
  };
  useEffect(() => {
    next().catch(setProblem);
  }, []);
  /** Changes a card and shows the one that is due now; a second press while it works does nothing. */
  const act = (change) => attempt(async () => {
    if (busy.current) return;
    busy.current = true;
    try {
      await change();
      await next();
    } finally {
      busy.current = false;
    }
  });
  const turn = () => attempt(async () => {
    setDetail(await rest.card(card.id));
    setTimeout(() => back.current?.focus({ preventScroll: true }));
  });
  const rate = (rating) => act(async () => {
    await rest.reviewCard(card.id, Number(rating));
    setDone((n) => n + 1);
    setRated(card.id);
  });
  const undo = () => act(async () => {
    await rest.undoReview(rated);
    setRated(null);
    setDone((n) => n - 1);
  });
  const keys = detail && !editing ? Object.fromEntries(RATINGS.map(([key]) => [key, () => rate(key)])) : card && !detail ? { " ": turn } : {};
  useKeys(rated ? { ...keys, u: undo } : keys);

  const remove = () => confirm({ question: t("cards.delete_question"), yes: t("delete"), onYes: () => act(() => rest.deleteCard(card.id)) });
  const keep = (wording) => act(() => rest.changeCard(card.id, wording));
  return html`<${StudyHead} site=${site} current="cards" due=${found?.due} />
    <section class="review" aria-live="polite">
      ${problem && html`<${Problem} error=${problem} />`}
      ${rated && html`<${Button} kind="quiet" onClick=${undo}>${t("cards.undo")}<//>`}
      ${found && !card && html`<${NothingDue} found=${found} done=${done} />`}
      ${card && html`<article class="card flashcard" key=${card.id}>
        <p class="soft">${count("cards.left", found.due)}</p>
        <${Rich} kind="rich card-question" text=${questionText(card)} />
        <${Choices} of=${card} />
        <div class="card-back" tabindex="-1" ref=${back}>
          ${detail && (editing ? html`<${WordingForm} question=${{ ...card, choices: null }} onKeep=${keep} onCancel=${() => setEditing(false)} />`
            : html`<${Answer} detail=${detail} />
              <div class="row">
                <${Button} kind="quiet" onClick=${() => setEditing(true)}>${t("cards.edit")}<//>
                <${Button} kind="quiet" onClick=${() => act(() => rest.changeCard(card.id, { suspended: true }))}>${t("cards.suspend")}<//>
                <${Button} kind="quiet" onClick=${remove}>${t("delete")}<//></div>`)}
        </div>
        ${!editing && html`<div class="row card-buttons">
          ${detail ? RATINGS.map(([rating, name]) => html`<button type="button" class=${`button rate ${name}`} onClick=${() => rate(rating)}>
              <span>${rating}  ${t(`rating.${name}`)}</span><small>${until(detail.next_due[rating])}</small></button>`)
            : html`<${Button} kind="primary" onClick=${turn}>${t("cards.show")}<//><span class="soft">${t("cards.show_key")}</span>`}
        </div>`}
      </article>`}
    </section>
    <div class="row soft"><span>${t("cards.export")}</span>
      <a href=${rest.exportCardsPath("apkg")} download>Anki (.apkg)</a><a href=${rest.exportCardsPath("csv")} download>CSV</a></div>`;
}

function Answer({ detail }) {
  const { card, place, title } = detail;
  const right = card.choices?.[card.answer_index];
  const letter = right === undefined ? "" : `**${LETTERS[card.answer_index]}.** ${right === card.answer ? "" : `${right}\n\n`}`;
  const source = [title, card.chapter && t("filters.in_chapter", { n: card.chapter }), card.section].filter(Boolean).join(" · ");
  return html`<h3 class="small-heading">${t("mark.reference")}</h3><${Rich} text=${letter + card.answer} />
    ${card.quotes.filter((quote) => quote !== card.answer).map((quote) => html`<blockquote class="card-quote"><${Rich} text=${quote} /></blockquote>`)}
    <p class="soft">${source}${place && html` · <a href=${bookPath(place.document_id, { node: place.node_id, quote: place.quote })}>${t("cards.read")}</a>`}</p>`;
}

function NothingDue({ found, done }) {
  if (!found.kept) {
    return html`<${Empty} title=${t("cards.none")} text=${t("cards.none_text")}><a class="button primary" href=${`${BASE}study`}>${t("exam.new")}</a><//>`;
  }
  return html`<${Empty} title=${done ? count("cards.done", done) : t("cards.nothing_due")} text=${t("cards.next_due", { time: until(found.next_due) })}>
    <a class="button" href=${`${BASE}study/progress`}>${t("study.progress")}</a><//>`;
}
