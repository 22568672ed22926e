// One question answered in several ways side by side, and a vote that does not know which is which.
import { BASE, navigation } from "../address.js";
import { Button, Check, Field, LETTERS, Select, attempt, sendOnEnter, toast } from "../controls.js";
import { html, useEffect, useFetched, useRef, useState } from "../html.js";
import { Rich } from "../markdown.js";
import * as rest from "../rest.js";
import { either, number, questionText, t } from "../texts.js";
import { Written, citedIn, heard, soFar, useDrawn } from "./answer.js";
import { Filters, filtersFrom, filtersToSend } from "./filters.js";
import { Source, useSource } from "./source.js";
import { Tune } from "./tune.js";

const ARMS = ["base", "tuned", "rag", "rag+tuned"];
/** What is compared besides arms, books and a choice question. */
const KINDS = {
  search: ["hybrid", "dense", "lexical"].map((retrieval) => ({ name: `rag retrieval=${retrieval}`, retrieval })),
  passages: [3, 10].map((top_k) => ({ name: `rag top_k=${top_k}`, top_k })),
  answers: ["quotes", "both", "free"].map((answers) => ({ name: `rag answers=${answers}`, answers })),
};
const MEBIBYTE = 2 ** 20;

/** Heading and the two parts of the view. */
export const CompareHead = ({ current }) => html`<h1>${t("nav.compare")}</h1>
  <nav class="subnav" aria-label=${t("nav.compare")}>${[["compare", t("compare.one_question")], ["reports", t("nav.reports")]].map(([path, text]) => html`
    <a href=${BASE + path} aria-current=${path === current ? "page" : undefined}>${text}</a>`)}</nav>`;

/** An arm or a variant in the reader's words. */
function nameOf(site, name) {
  const [arm, ...varied] = name.split(" ");
  if (!varied.length) return either(`arm.${arm}`, arm);
  return varied.map((part) => {
    const [what, value] = part.split(/=(.*)/s);
    if (what === "book") return site.documents.find((one) => one.id === value)?.title || value;
    if (what === "retrieval") return either(`compare.retrieval.${value}`, value);
    if (what === "answers") return either(`filters.answers.${value}`, value);
    return what === "top_k" ? t("compare.passages", { n: value }) : part;
  }).join(" · ");
}

/** `query` names a comparison that is being made, to go on with it after a reload. */
export function Compare({ site, query }) {
  const { arms = [], adapters = [] } = site.running;
  const owner = site.session.learner;
  const [wanted, setKind] = useState(null);
  const [left, setLeft] = useState(new Set()); // arms that are not asked
  const [books, setBooks] = useState(site.documents.slice(0, 2).map((one) => one.id));
  const [blind, setBlind] = useState(true);
  const [filters, setFilters] = useState(filtersFrom());
  const [columns, setColumns] = useState([]);
  const [ballot, setBallot] = useState(null); // {answers} to vote on, {winner} of the vote that was given, {picked} by arms
  const [busy, setBusy] = useState(false);
  const [votes, setVotes] = useState(0);
  const { source, open: openSource, close: closeSource } = useSource();
  const [choice, setChoice] = useState(null); // the choice question, "" where there is none
  const control = useRef(null);
  const running = useRef(null); // the id of what is being compared
  const box = useRef();
  const kind = wanted || (arms.length > 1 ? "arms" : "search");
  useEffect(() => () => control.current?.abort(), []);

  const adapter = filters.adapter || (adapters.length > 1 ? adapters[0] : null);
  /** What is compared, each with the name that the server gives it. */
  const ways = () => {
    if (kind === "books") return [...new Set(books)].map((id) => ({ name: `rag book=${id}`, filters: { document_ids: [id] } }));
    return [...(KINDS[kind] || ARMS.filter((arm) => arms.includes(arm) && !left.has(arm)).map((name) => ({ name })))];
  };
  const clear = () => {
    setColumns([]);
    setBallot(null);
    closeSource({ back: false });
  };

  const run = () => !busy && attempt(async () => {
    const asked = ways();
    if (!asked.length) return toast(t("compare.choose"), { bad: true });
    const hidden = blind && asked.length > 1;
    if (hidden) shuffle(asked);
    const named = kind === "arms" ? { arms: asked.map((one) => one.name) } : { variants: asked.map(({ name, ...way }) => way) };
    const body = { question: box.current.value, adapter, filters: filtersToSend(filters).filters, ...named };
    await write((signal) => rest.compare(body, signal), hidden);
  });
  useEffect(() => {
    const asked = new URLSearchParams(query);
    const going = asked.get("run");
    if (going) write((signal) => rest.followComparison(going, signal), asked.has("blind")).catch(() => navigation.go("compare", { replace: true }));
  }, []);

  /** Draws each answer as it is written. What goes wrong before the first has begun is thrown. */
  async function write(events, hidden) {
    let at = -1;
    let drawn = [];
    control.current = new AbortController();
    setBusy(true);
    const show = (next) => setColumns(drawn = next);
    const change = (more) => show(drawn.map((one, place) => (place === at ? { ...one, ...more } : one)));
    const end = (more) => show(drawn.map((one, place) => (place < at ? one : { ...one, running: false, ...(place === at ? more : { skipped: true }) })));
    try {
      for await (const event of events(control.current.signal)) {
        const { name, data } = event;
        if (name === "begun") {
          running.current = data.id;
          navigation.go(`compare?run=${data.id}${hidden ? "&blind" : ""}`, { replace: true });
        } else if (name === "comparing") {
          at = -1;
          clear();
          box.current.value ||= data.question;
          show(data.names.map((one, place) => ({ name: one, letter: hidden ? LETTERS[place] : "", text: "", passages: [] })));
        } else if (name === "stopped") end({ stopped: "compare.stopped" });
        else if (name === "answer") {
          at = data.index;
          change({ running: true });
        } else if (name === "compared") {
          show(drawn.map((one, place) => ({ ...one, answer: data.answers[place], open: data.answers.length < 2 })));
          if (data.answers.length > 1) setBallot({ answers: data.answers });
        } else if (at >= 0) change(heard(drawn[at], event));
      }
    } catch (error) {
      if (error.name === "AbortError") return;
      if (at < 0) throw error;
      end({ error });
    } finally {
      setBusy(false);
    }
  }

  const vote = (best) => attempt(async () => {
    const { winner } = await rest.vote({ answer_ids: columns.map((one) => one.answer.id), preferred: best && best.id, blind: Boolean(columns[0].letter) });
    setBallot({ winner });
    setColumns(columns.map((one) => ({ ...one, letter: "", open: true })));
    setVotes(votes + 1);
  });

  const another = () => rest.choiceQuestion().then((found) => { setChoice(found); clear(); }, (error) => {
    if (error.status !== 404) throw error;
    setChoice("");
  });
  const choose = () => attempt(async () => {
    setBusy(true);
    try {
      const found = await rest.choose({ question: choice.question, choices: choice.choices, adapter });
      clear();
      setBallot({ picked: found.picks, model: found.model });
    } finally {
      setBusy(false);
    }
  });
  const ofKind = (value) => {
    setKind(value);
    clear();
    navigation.go("compare", { replace: true });
    if (value === "choice" && choice === null) attempt(another);
  };

  const kinds = ["arms", arms.includes("base") && "answers", "search", "passages", site.documents.length > 1 && "books", !owner && "choice"].filter(Boolean);
  const chosen = kind === "choice";
  return html`<${CompareHead} current="compare" />
    <p class="lead">${t("compare.lead")}</p>
    ${arms.length < 2 && html`<section class="card"><p>${t("compare.one_arm")}
      ${!owner && html` <a href=${`${BASE}settings`}>${t("compare.other_model")}</a>`}</p></section>`}
    <section class="card">
      <${Field} label=${t("compare.what")}><${Select} id="compare-kind" value=${kind} onChange=${ofKind} disabled=${busy}
        options=${kinds.map((one) => [one, t(`compare.kind.${one}`)])} /><//>
      <div hidden=${chosen}><${Field} label=${t("compare.question")}><textarea class="box" id="question" rows="2" dir="auto" maxlength="100000" ref=${box}
        onKeyDown=${(event) => sendOnEnter(event, run)}></textarea><//></div>
      ${kind === "arms" && html`<${Arms} arms=${arms} left=${left} onChange=${setLeft} />`}
      ${kind === "books" && html`<div class="grid">${books.map((id, place) => html`<${Field} label=${t("compare.book", { letter: LETTERS[place] })}>
        <${Select} value=${id} onChange=${(to) => setBooks(books.map((one, index) => (index === place ? to : one)))}
          options=${site.documents.map((one) => [one.id, one.title])} /><//>`)}</div>`}
      ${(kind in KINDS || chosen) && html`<p class="soft">${t(`compare.about.${kind}`)}</p>`}
      ${chosen ? choice !== null && html`<${Choice} question=${choice} another=${() => attempt(another)} />` : html`
        <${Filters} site=${{ ...site, running: { ...site.running, arms: [] } }} value=${filters} onChange=${setFilters} />
        <${Check} label=${t("compare.blind")} checked=${blind} onChange=${setBlind} />`}
      <div class="row">
        <${Button} kind="primary" id="compare" disabled=${busy || (chosen && !choice)} onClick=${chosen ? choose : run}>${t("compare.run")}<//>
        ${busy && !chosen && html`<${Button} icon="stop" onClick=${() => attempt(() => rest.stopComparison(running.current))}>${t("ask.stop")}<//>`}
      </div>
    </section>
    <section class="ballot" aria-live="polite">${ballot && html`<${Ballot} site=${site} ballot=${ballot} columns=${columns} question=${choice} onVote=${vote} />`}</section>
    <section class="arm-columns" aria-label=${t("compare.answers")}>
      ${columns.map((column, place) => html`<${Column} key=${place} site=${site} column=${column} openSource=${openSource} />`)}
      ${ballot?.picked?.map((pick) => html`<${Picked} site=${site} pick=${pick} question=${choice} />`)}
    </section>
    <${Tally} site=${site} votes=${votes} mayTake=${!owner} />
    ${!owner && html`<${Tune} site=${site} onReady=${() => setKind("arms")} />`}
    ${source && html`<${Source} ...${source} site=${site} onClose=${closeSource} />`}`;
}

function shuffle(items) {
  for (let last = items.length - 1; last > 0; last -= 1) {
    const other = Math.floor(Math.random() * (last + 1));
    [items[last], items[other]] = [items[other], items[last]];
  }
}

function Arms({ arms, left, onChange }) {
  const flip = (arm, on) => onChange(new Set(on ? [...left].filter((one) => one !== arm) : [...left, arm]));
  return html`<fieldset class="arms"><legend>${t("compare.arms")}</legend>${ARMS.map((arm) => {
    const there = arms.includes(arm);
    return html`<div class=${there ? "arm" : "arm unavailable"}>
      <${Check} label=${t(`arm.${arm}`)} checked=${there && !left.has(arm)} disabled=${!there} onChange=${(on) => flip(arm, on)} />
      ${!there && html`<${Rich} text=${t(`compare.needs.${arm}`)} kind="soft rich" />`}</div>`;
  })}</fieldset>`;
}

function Choice({ question, another }) {
  if (!question) return html`<p class="soft">${t("compare.no_choice")}</p>`;
  return html`<${Rich} text=${questionText(question)} kind="choice-question rich" />
    <ol class="choice-options">${question.choices.map((_, place) => html`<li><${Option} question=${question} place=${place} /></li>`)}</ol>
    <div class="row"><${Button} kind="quiet" icon="again" onClick=${another}>${t("compare.another")}<//></div>`;
}

const Option = ({ question, place }) => html`<span class="option"><b>${LETTERS[place]}</b><${Rich} text=${question.choices[place]} /></span>`;

function Picked({ site, pick, question }) {
  const right = pick.picked === question.answer_index;
  return html`<article class="card arm-answer"><h2>${nameOf(site, pick.arm)}</h2>
    <${Option} question=${question} place=${pick.picked} />
    <p><span class=${right ? "badge right" : "badge"}>${t(right ? "mark.right" : "mark.wrong")}</span></p></article>`;
}

function Ballot({ site, ballot, columns, question, onVote }) {
  if (ballot.picked) {
    return html`<h2>${t("compare.right")}</h2><${Option} question=${question} place=${question.answer_index} />
      <p class="soft">${t("compare.chosen_by", { model: ballot.model })}</p>`;
  }
  if (!ballot.answers) return html`<p>${ballot.winner ? t("compare.voted", { arm: nameOf(site, ballot.winner) }) : t("compare.voted_none")}</p>`;
  return html`<h2>${t("compare.vote")}</h2><div class="row">
    ${columns.map((column, place) => html`<${Button} onClick=${() => onVote(ballot.answers[place])}>${titleOf(site, column)}<//>`)}
    <${Button} kind="quiet" onClick=${() => onVote(null)}>${t("compare.none_better")}<//></div>`;
}

const titleOf = (site, { name, letter }) => (letter ? t("compare.answer", { letter }) : nameOf(site, name));

function Column({ site, column, openSource }) {
  const { answer, running } = column;
  const text = answer ? answer.answer : soFar(column);
  const { elements } = useDrawn(text, answer, column.passages, openSource);
  const waits = !running && !answer && !column.stopped && !column.error;
  return html`<article class="card arm-answer" aria-busy=${running ? "true" : undefined}>
    <h2>${titleOf(site, column)}</h2>
    <${Written} turn=${column} text=${text} elements=${elements} />
    ${waits && html`<p class="soft">${t(column.skipped ? "compare.not_asked" : "compare.waits")}</p>`}
    ${column.open && answer && html`<${Figures} answer=${answer} />`}
  </article>`;
}

function Figures({ answer }) {
  const time = (seconds) => t("compare.seconds", { n: seconds.toFixed(2) });
  const rows = [
    ["first", time(answer.timings.ttft_s)],
    ["total", time(answer.timings.total_s)],
    ["speed", answer.tokens_per_s && answer.generator !== "extractive" ? answer.tokens_per_s.toFixed(1) : "–"],
    ["memory", answer.peak_memory_bytes ? `${number(Math.round(answer.peak_memory_bytes / MEBIBYTE))} MiB` : "–"],
    ["citations", t("compare.cited", citedIn(answer))],
    ["model", [answer.model, answer.adapter].filter(Boolean).join(" + ")],
  ];
  return html`<dl class="arm-figures">${rows.map(([name, value]) => html`<dt>${t(`compare.figure.${name}`)}</dt><dd>${value}</dd>`)}</dl>`;
}

/** Everyone's votes: how often each arm or variant was preferred. */
function Tally({ site, votes, mayTake }) {
  const [table] = useFetched(rest.votes, [votes]);
  if (!table?.votes) return null;
  const rows = table.wins.map(({ name, won, shown }) => [nameOf(site, name), won, shown]);
  if (table.undecided) rows.push([t("compare.none_better"), table.undecided, table.votes]);
  return html`<section class="card tally"><h2>${t("compare.tally")}</h2>
    <ul class="tally-list">${rows.map(([name, won, shown]) => html`<li><span>${name}</span>
      <progress class="bar" aria-hidden="true" max=${shown} value=${won} /><span class="soft">${t("compare.won", { won, shown })}</span></li>`)}</ul>
    ${mayTake && html`<p><a href=${rest.votesPath} download>${t("compare.download")}</a></p>`}</section>`;
}
