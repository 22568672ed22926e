// The passage behind a marker: beside the answer, its quote marked, with heading path, printed page and page image.
import { bookPath } from "../address.js";
import { Button, askForText, toast } from "../controls.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { Passage } from "../markdown.js";
import { pageImage, saveCard } from "../rest.js";
import { placeOf, t } from "../texts.js";

const VERDICTS = ["supported", "partial", "unsupported"];
/** Books without markup: stars, hashes and dollars in them are meant as such. */
export const PLAIN_FORMATS = new Set(["pdf", "text", "code", "pptx"]);
const QUOTE_IN_ADDRESS = 600;
const MOST_ON_A_CARD = 4000;

/** The passage that is open; closing it leads back to the element that opened it, unless `back` is false. */
export function useSource() {
  const [source, setSource] = useState(null);
  const opener = useRef(null);
  const close = ({ back = true } = {}) => {
    document.querySelector(".cite.open")?.classList.remove("open");
    setSource(null);
    if (back) opener.current?.focus();
  };
  const open = (wanted, element) => {
    close({ back: false });
    opener.current = element;
    if (element.classList.contains("cite")) element.classList.add("open");
    setSource(wanted);
  };
  return { source, open, close };
}

/** `number` is what the reader sees; the place is that of the first of `citations`, the verdict the weakest. */
export function Source({ passage, number, citations, written, site, onClose }) {
  const panel = useRef();
  const first = citations[0] || passage;
  const book = site.documents.find((one) => one.id === passage.document_id);
  const verdict = VERDICTS.findLast((name) => citations.some((one) => one.verdict === name));
  const { page_start: page } = first;
  const quote = (citations[0]?.quote || "").slice(0, QUOTE_IN_ADDRESS);
  const makeCard = () => askForText({
    label: t("ask.save_card"), field: t("cards.question"), value: "", most: MOST_ON_A_CARD,
    onSave: async (question) => {
      const proof = (citations[0]?.quote || passage.text).slice(0, MOST_ON_A_CARD);
      await saveCard({ question, answer: proof, quote: proof, title: passage.title, document_id: passage.document_id, section: first.section?.at(-1) || "" });
      toast(t("ask.card_saved"));
    },
  });
  useEffect(() => {
    panel.current.focus({ preventScroll: true });
    panel.current.scrollTop = 0;
    const mark = panel.current.querySelector("mark");
    if (mark && mark.offsetTop > panel.current.clientHeight * 0.6) panel.current.scrollTop = mark.offsetTop - panel.current.clientHeight / 3;
  }, [passage, citations]);
  return html`<aside class="source" id="source" aria-label=${t("source.title")} tabindex="-1" ref=${panel}
      onKeyDown=${(event) => event.key === "Escape" && onClose()}>
    <div class="source-head"><span class="number">${number}</span><h2>${passage.title}</h2>
      <${Button} kind="quiet" icon="close" label=${t("close")} onClick=${() => onClose()} /></div>
    <p class="place">${placeOf(first, { title: false })}</p>
    ${verdict && verdict !== "supported" && html`<p class=${`verdict ${verdict}`}>${t(`source.${verdict}`)}</p>`}
    ${written && verdict === "supported" && html`<p class="verdict supported">${t("source.written")}</p>`}
    <div class="row">
      ${book && html`<a href=${bookPath(book.id, { node: first.node_id, quote, page })}>${t("source.read_on")}</a>`}
      <${Button} kind="quiet" icon="new" onClick=${makeCard}>${t("ask.save_card")}<//></div>
    ${book?.format === "pdf" && page && html`<${PageImage} key=${`${book.id} ${page} ${quote}`} book=${book} page=${page} quote=${quote} />`}
    <${Passage} text=${passage.text} plain=${PLAIN_FORMATS.has(passage.format)} spans=${citations.map((one) => [one.char_start, one.char_end])} />
  </aside>`;
}

/** The printed page, drawn when it is asked for; gone where the book's file is not there. */
function PageImage({ book, page, quote }) {
  const [there, setThere] = useState(true);
  return there && html`<div class="page-image"><details><summary>${t("source.page_image")}</summary>
    <img loading="lazy" src=${pageImage(book.id, page, quote)} alt=${t("source.page_alt", { page })} onError=${() => setThere(false)} />
  </details></div>`;
}
