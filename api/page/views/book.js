// A book to read on in: at a quote, a chapter or its beginning, with its contents and a search inside it.
import { BASE, bookPath } from "../address.js";
import { Button, Missing, Problem, attempt } from "../controls.js";
import { html, useEffect, useFetched, useRef, useState } from "../html.js";
import { Passage } from "../markdown.js";
import * as rest from "../rest.js";
import { pageOf, t } from "../texts.js";
import { PLAIN_FORMATS } from "./source.js";

const FOUND = 8;
const SNIPPET_CHARS = 160;
const NARROW = 800;
const MEDIUM = 1100;

/** `query` names a part or a chapter, or a node with the quote to show. */
export function Book({ site, id, query }) {
  const [page, setPage] = useState(1);
  const text = useRef();
  const book = site.documents.find((one) => one.id === id);
  const asked = Object.fromEntries(new URLSearchParams(query));

  const [found, failed] = useFetched(open, [id, query]);
  const { parts, part, place } = found || {};
  const problem = failed || found?.problem;
  useEffect(() => {
    setPage(Number(asked.page) || part?.sections[place?.section || 0]?.page_start || 1);
    const mark = place && text.current?.querySelector("mark");
    if (mark) mark.scrollIntoView({ block: "center" });
    else if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
  }, [part, place]);

  /** The part that is asked for; where the book has changed since it was cited, its beginning and what to say. */
  async function open() {
    const parts = await rest.contents(id);
    const found = { parts, place: null, part: null, problem: null };
    if (asked.node) {
      found.place = await rest.place(id, asked.node, asked.quote).catch((error) => {
        if (error.status !== 404) throw error;
        found.problem = { ...error, message: error.message, status: 0 };
        return null;
      });
    }
    const number = found.place?.part || Number(asked.part) || parts.find((one) => one.chapter === Number(asked.chapter))?.number || 1;
    if (parts.length) found.part = await rest.part(id, number);
    return found;
  }

  if (!book || problem?.status === 404) return html`<${Missing} />`;
  const printed = book.format === "pdf";
  return html`<div class="row"><a href=${`${BASE}library`}>${t("book.all")}</a></div>
    <h1 dir="auto">${book.title}</h1>
    <${Search} book=${book} />
    ${problem && html`<${Problem} error=${problem} />`}
    ${parts && !parts.length && html`<p class="soft">${t("book.empty")}</p>`}
    ${part && html`<div class=${printed ? "book-layout printed" : "book-layout"}>
      <${Contents} book=${book} parts=${parts} part=${part} />
      <article class="book-text" dir="auto" ref=${text}>
        <h2>${part.title}</h2>
        ${part.sections.map((section, index) => html`<${Section} key=${`${part.number} ${index}`} section=${section} index=${index}
          plain=${PLAIN_FORMATS.has(book.format)} place=${place?.section === index ? place : null} showPage=${printed && setPage} />`)}
        <${Neighbours} book=${book} parts=${parts} number=${part.number} />
      </article>
      ${printed && html`<${PrintedPage} book=${book} page=${page} setPage=${setPage} quote=${asked.quote || ""} />`}
    </div>`}`;
}

function Contents({ book, parts, part: current }) {
  return html`<nav class="book-contents" aria-label=${t("book.contents")}><details open=${innerWidth > NARROW}>
    <summary class="small-heading">${t("book.contents")}</summary>
    <ol>${parts.map((part) => html`<li><a href=${bookPath(book.id, { part: part.number })} aria-current=${part.number === current.number ? "page" : undefined}>${part.title}</a>
      ${part.number === current.number && html`<ul>${current.sections.map((one, index) => one.begins && one.section.length > 1 && html`
        <li><a href=${`#s${index}`} class=${`level-${Math.min(one.section.length, 4)}`}>${one.section.at(-1)}</a></li>`)}</ul>`}</li>`)}</ol>
  </details></nav>`;
}

function Section({ section, index, plain, place, showPage }) {
  const heading = section.begins && section.section.length > 1;
  const page = section.page_start && pageOf({ ...section, page_end: section.page_start });
  const spans = place ? [[place.char_start, place.char_end]] : [];
  return html`${heading && html`<div class="book-heading">
      <${section.section.length === 2 ? "h3" : "h4"} id=${`s${index}`}>${section.section.at(-1)}<//>
      ${page && (showPage ? html`<${Button} kind="quiet" onClick=${() => showPage(section.page_start)}>${page}<//>` : html`<span class="soft">${page}</span>`)}
    </div>`}
    <${Passage} text=${section.text} spans=${spans} plain=${plain} />`;
}

function Neighbours({ book, parts, number }) {
  const link = (part, rel) => part && html`<a class=${`turn-${rel}`} rel=${rel} href=${bookPath(book.id, { part: part.number })}>
    <span class="soft">${t(`book.${rel}`)}</span><span>${part.title}</span></a>`;
  return html`<nav class="book-turn" aria-label=${t("book.turn")}>${link(parts[number - 2], "prev")}${link(parts[number], "next")}</nav>`;
}

function PrintedPage({ book, page, setPage, quote }) {
  const [there, setThere] = useState(true);
  const turn = (step) => setPage(Math.min(Math.max(page + step, 1), book.pages || 1));
  return there && html`<details class="book-page page-image" open=${innerWidth > MEDIUM}><summary>${t("source.page_image")}</summary>
    <div class="row"><${Button} kind="quiet" icon="back" label=${t("book.page_back")} onClick=${() => turn(-1)} />
      <span class="soft">${t("page.one", { page })}</span>
      <${Button} kind="quiet" icon="send" label=${t("book.page_on")} onClick=${() => turn(1)} /></div>
    <img loading="lazy" src=${rest.pageImage(book.id, page, quote)} alt=${t("source.page_alt", { page })} onError=${() => setThere(false)} />
  </details>`;
}

function Search({ book }) {
  const [found, setFound] = useState(null);
  const search = async (event) => {
    event.preventDefault();
    const query = event.target.elements.text.value;
    if (query.trim()) setFound((await attempt(() => rest.search(query, FOUND, [book.id]))) || null);
  };
  const snippet = (text) => {
    const plain = text.replace(/^ {0,3}```.*$/gm, "").split(/\s+/).join(" ").trim();
    return plain.length > SNIPPET_CHARS ? `${plain.slice(0, plain.lastIndexOf(" ", SNIPPET_CHARS))} …` : plain;
  };
  return html`<form class="row book-search" role="search" onSubmit=${search}>
      <input class="box" type="search" name="text" id="book-search" maxlength="1000" autocomplete="off" placeholder=${t("book.search")} aria-label=${t("book.search")} />
      <${Button} type="submit" icon="search">${t("book.find")}<//></form>
    <div class="book-found" aria-live="polite">
      ${found && !found.length && html`<p class="soft">${t("book.nothing")}</p>`}
      ${found?.length > 0 && html`<ol class="sources">${found.map((passage) => html`<li><a class="source-link found-link" href=${bookPath(book.id, { node: passage.node_id })}>
        <span>${passage.section.join(" › ") || passage.title}</span><span class="soft">${snippet(passage.text)}</span></a></li>`)}</ol>`}
    </div>`;
}
