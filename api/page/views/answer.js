// One question and its answer: the text as it is written, its sources, and what can be done with it.
import { BASE } from "../address.js";
import { Button, CopyButton, Problem, attempt, toast } from "../controls.js";
import { html, useFetched, useMemo, useState } from "../html.js";
import { draw } from "../markdown.js";
import * as rest from "../rest.js";
import { language, number, placeOf, t } from "../texts.js";

const LONG_CHARS = 500;
const LONG_LINES = 8;
const MARKERS = /\s*\[\d{1,3}\](?!\()/g;
const MOST_ON_A_CARD = 20_000;
/** Between what a model wrote and the books' own sentences. */
const DIVIDER = "\n\n---\n\n";

/** Where a reader who wants to be asked finds an exam: on the one book that was chosen, where there is one. */
export function examPath({ filters: { document_ids: books } }) {
  return `${BASE}study${books.length === 1 ? `?book=${encodeURIComponent(books[0])}` : ""}`;
}

export function Turn({ turn, last, site, ask, edit, openSource }) {
  const { question, answer, running } = turn;
  const passages = answer ? answer.passages : turn.passages;
  const text = answer ? withoutNearest(answer) : soFar(turn);
  const { elements, numbers, open } = useDrawn(text, answer, passages, openSource);
  return html`<article class="turn" aria-busy=${running ? "true" : undefined}>
    <${Asked} question=${question} />
    <${Written} turn=${turn} text=${text} elements=${elements} />
    ${answer?.talk === "exam" && html`<a class="button" href=${examPath(answer)}>${t("library.exam")}</a>`}
    ${answer?.usage.finish === "length" && html`<p class="note" role="note">${t("ask.cut_off")}</p>`}
    ${answer && html`<div class="answer-notes">
      ${answer.refused && passages.length > 0 && html`<${Nearest} answer=${answer} ask=${ask} open=${open} />`}
      <${Sources} answer=${answer} numbers=${numbers} open=${open} />
      <${Tools} answer=${answer} rating=${turn.rating} ask=${ask} edit=${edit} />
      ${last && html`<${Suggestions} kind="next-questions" label=${t("ask.next")} ask=${ask}
        find=${() => (site.documents.length ? rest.suggestions({ answer_id: answer.id }) : [])} />`}
    </div>`}
  </article>`;
}

/** A text as `elements` whose markers `open` their passages, and the `numbers` that these show. */
export function useDrawn(text, answer, passages, openSource) {
  const citations = answer ? answer.citations : [];
  const open = (marker, cited, element) => openSource({
    passage: passages[marker - 1], number: numbers.get(marker) ?? marker, citations: cited.map((index) => citations[index]),
    written: Boolean(answer?.written && element.closest(".answer:not(.quotes)")),
  }, element);
  const { elements, numbers } = useMemo(() => draw(text, { citations, passages, onCite: open }), [text, answer, passages, language()]);
  return { elements, numbers, open };
}

/** What an event changes in an answer that is being written. */
export function heard({ text, quotes }, { name, data }) {
  switch (name) {
    case "begun": return { text: "", quotes: "", state: null };
    case "passages": return { passages: data.passages, note: data.note, state: null };
    case "quotes": return { quotes: data.text, state: ["ask.model_writes"] };
    case "waiting": return { state: data.before ? ["ask.waiting", { n: data.before }] : ["ask.waiting.next"] };
    case "thinking": return { state: ["ask.thinking"] };
    case "lost": return { state: ["ask.lost"] };
    case "delta": return { text: text + data.text, state: quotes ? ["ask.model_writes"] : null };
    case "done": return { answer: data, running: false };
    default: return {};
  }
}

/** The answer that is being written: what came of it, above the quotes that it will end with. */
export function soFar({ text, quotes }) {
  if (!quotes) return text;
  const [written] = text.split(DIVIDER);
  return quotes.startsWith(written) ? quotes : written + DIVIDER + quotes;
}

/** How many cited sentences a model wrote, how many are the books' own, and how many are supported. */
export function citedIn({ answer, written: writes, citations }) {
  const written = writes ? answer.split(DIVIDER)[0].match(MARKERS)?.length || 0 : 0;
  return { written, quoted: citations.length - written, supported: citations.filter((one) => one.verdict === "supported").length };
}

/** An answer as far as it is written, and how it goes on or ended; `stopped` is the key of a text. */
export function Written({ turn: { answer, note, running, state, stopped, error, quotes }, text, elements }) {
  const below = answer ? answer.written && answer.quotes : quotes;
  const rule = below ? elements.findLastIndex((one) => one?.type === "hr") : -1;
  return html`${(answer?.note || note) && html`<p class="note" role="note">${answer?.note || note}</p>`}
    ${(!below || rule >= 0) && html`<div class="answer" dir="auto">${below ? elements.slice(0, rule) : elements}</div>`}
    ${running && html`<p class="thinking"><i></i><i></i><i></i></p>`}
    ${running && state && html`<p class="note" role="status">${t(...state)}</p>`}
    ${below && html`<section class="from-books"><h3 class="small-heading">${t("ask.from_books")}</h3>
      <div class="answer quotes" dir="auto">${elements.slice(rule + 1)}</div></section>`}
    ${stopped && html`<p class="note" role="status">${t(stopped)}</p>`}
    ${error && html`<${Problem} error=${error} />`}`;
}

/** A few lines of a long question, and the button that shows the rest. */
function Asked({ question }) {
  const [whole, setWhole] = useState(false);
  const long = question.length > LONG_CHARS || question.split("\n").length > LONG_LINES;
  const code = /^\s*```|[;{}]\s*$/m.test(question);
  return html`<h2 class=${`asked${code ? " with-code" : ""}${long ? " long" : ""}${whole ? " whole" : ""}`} dir="auto">${question}</h2>
    ${long && html`<${Button} kind="quiet" aria-expanded=${String(whole)} onClick=${() => setWhole(!whole)}>${t(whole ? "ask.less" : "ask.whole")}<//>`}`;
}

/** A refusal names the nearest sections last; they are listed below it. */
function withoutNearest(answer) {
  const nearest = answer.refused && answer.passages[0];
  const named = nearest ? answer.answer.indexOf(nearest.section.slice(-2).join(" › ") || nearest.title) : -1;
  const said = named > 0 ? answer.answer.slice(0, named) : "";
  const end = Math.max(said.lastIndexOf(". ") + 1, said.lastIndexOf("。") + 1);
  return end > 0 ? said.slice(0, end) : answer.answer;
}

const SourceLink = ({ shown, place, verdict, onOpen }) => html`<li>
  <button type="button" class="source-link" onClick=${(event) => onOpen(event.currentTarget)}>
    <span class="number">${shown}</span><span>${place}</span>
    ${verdict && verdict !== "supported" && html`<span class=${`verdict ${verdict}`}>${t(`verdict.${verdict}`)}</span>`}
  </button></li>`;

function Sources({ answer, numbers, open }) {
  const markers = [...new Set(answer.citations.map((one) => one.marker))];
  if (!markers.length) return null;
  const shown = (marker) => numbers.get(marker) ?? marker;
  const every = (marker) => answer.citations.flatMap((one, index) => (one.marker === marker ? [index] : []));
  return html`<ol class="sources" aria-label=${t("ask.sources")}>
    ${markers.sort((a, b) => shown(a) - shown(b)).map((marker) => {
      const first = answer.citations[every(marker)[0]];
      return html`<${SourceLink} shown=${shown(marker)} place=${placeOf(first)} verdict=${first.verdict} onOpen=${(element) => open(marker, every(marker), element)} />`;
    })}</ol>`;
}

/** The places that a refusal names, to open, and the same question again. */
function Nearest({ answer, ask, open }) {
  return html`${answer.evidence === "none" && html`<${Button} onClick=${() => ask(answer.question, { anyway: true })}>${t("ask.anyway")}<//>`}
    <h3 class="small-heading">${t("ask.nearest")}</h3>
    <ol class="sources">${answer.passages.map((passage, index) => html`
      <${SourceLink} shown=${index + 1} place=${placeOf(passage)} onOpen=${(element) => open(index + 1, [], element)} />`)}</ol>`;
}

function Tools({ answer, rating, ask, edit }) {
  const [given, setGiven] = useState(rating);
  const [asks, setAsks] = useState(false);
  const rate = (verdict, comment = "") => attempt(async () => {
    await rest.feedback(answer.id, verdict, comment);
    setGiven(verdict);
    setAsks(verdict === "down" && !comment);
    toast(t("ask.rated"));
  });
  const saveCard = () => attempt(async () => {
    const [first] = answer.citations;
    const said = answer.answer.replace(MARKERS, "").trim();
    await rest.saveCard({
      question: answer.question, answer: said.slice(0, MOST_ON_A_CARD), quote: first.quote, title: first.title,
      document_id: first.document_id, section: first.section.at(-1) || "",
    });
    toast(t("ask.card_saved"));
  });
  const thumb = (verdict, icon, label) => html`<${Button} kind="quiet" icon=${icon} label=${label} aria-pressed=${String(given === verdict)} onClick=${() => rate(verdict)} />`;
  return html`<div class="answer-tools">
    <${CopyButton} label=${t("ask.copy")} text=${() => withSources(answer)} />
    <span class="redo">
      <${Button} kind="quiet" icon="again" label=${t("ask.again")} onClick=${() => ask(answer.question, { old: answer.id })} />
      <${Button} kind="quiet" icon="edit" label=${t("ask.edit")} onClick=${() => edit(answer)} />
    </span>
    ${thumb("up", "up", t("ask.good"))}${thumb("down", "down", t("ask.bad"))}
    ${asks && html`<span class="comment"><input class="box" maxlength="4000" autocomplete="off" placeholder=${t("ask.what_was_wrong")}
      aria-label=${t("ask.what_was_wrong")} onChange=${(event) => rate("down", event.target.value)} /></span>`}
    ${answer.citations.length > 0 && html`<${Button} kind="quiet" icon="new" onClick=${saveCard}>${t("ask.save_card")}<//>`}
    <details class="figures"><summary>${t("more")}</summary><span>${figures(answer)}</span></details>
  </div>`;
}

/** What answered, and how quickly. */
function figures(answer) {
  const quoting = answer.generator === "extractive";
  const { total_s: total, ttft_s: first } = answer.timings;
  return [
    quoting ? t("generator.extractive") : [...new Set([answer.generator, answer.model])].join(" · "),
    answer.arm !== "rag" && t(`arm.${answer.arm}`),
    t("ask.seconds", { total: total.toFixed(2), first: first.toFixed(2) }),
    !quoting && answer.tokens_per_s > 0 && t("ask.speed", { n: number(Math.round(answer.tokens_per_s)) }),
  ].filter(Boolean).join(" · ");
}

/** The answer as Markdown with its sources as footnotes; doubt goes with it. */
function withSources(answer) {
  const firsts = answer.citations.filter((one, index, all) => all.findIndex((other) => other.marker === one.marker) === index);
  const notes = firsts.map((one) => {
    const doubt = one.verdict === "supported" ? "" : ` (${t(`verdict.${one.verdict}`)})`;
    return `[^${one.marker}]: ${placeOf(one)}: “${one.quote.split(/\s+/).join(" ")}”${doubt}`;
  });
  const text = firsts.length ? answer.answer.replace(/\[(\d{1,3})\](?!\()/g, "[^$1]") : answer.answer;
  return [answer.note && `> ${answer.note}`, text, notes.join("\n")].filter(Boolean).join("\n\n");
}

/** Questions from the books' headings, as buttons; they are looked up once the view is drawn. */
export function Suggestions({ find, label, ask, kind = "" }) {
  const [found] = useFetched(async () => find(), []); // it fails where the book has gone meanwhile
  const textOf = ({ question, section, heading = section.at(-1) }) => (/[?？]$/.test(question) ? question : t("ask.section", { section: heading }));
  return found?.length > 0 && html`<ul class=${`examples ${kind}`} aria-label=${label}>${found.map((one) => html`
    <li><${Button} kind="example" onClick=${() => ask(textOf(one))}>${textOf(one)}<//></li>`)}</ul>`;
}
