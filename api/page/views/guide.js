// What each chapter of a book defines, counts and names, to read and to export.
import { BASE, bookPath } from "../address.js";
import { Missing, Problem } from "../controls.js";
import { html, useFetched, useState } from "../html.js";
import { Rich } from "../markdown.js";
import * as rest from "../rest.js";
import { chapterName, t } from "../texts.js";
import { StudyHead } from "./study.js";

const GROUPS = ["definitions", "numbers", "names", "sentences"];
const MOST_QUOTED = 300;

export function Guide({ site, id, query }) {
  const book = site.documents.find((one) => one.id === id);
  const wanted = Number(new URLSearchParams(query).get("chapter"));
  const [chapters, problem] = useFetched(() => rest.guide(id), [id]);
  if (!book || problem?.status === 404) return html`<${Missing} />`;
  const opened = wanted || chapters?.[0]?.chapter;
  return html`<${StudyHead} site=${site} current="guide" />
    <section class="card guide"><h2>${book.title}: ${t("guide.title")}</h2><p class="soft">${t("guide.about")}</p>
      <div class="row"><a class="button" href=${`${BASE}study?book=${encodeURIComponent(id)}`}>${t("library.exam")}</a>
        <a class="button" href=${rest.exportGuidePath(id)} download>${t("guide.export")}</a></div>
      <div aria-live="polite">
        ${problem && html`<${Problem} error=${problem} />`}
        ${!chapters && !problem && html`<p class="soft">${t("guide.reading")}</p>`}
        ${chapters && !chapters.length && html`<p>${t("guide.empty")} <a href=${bookPath(id)}>${t("cards.read")}</a></p>`}
        ${chapters?.map((chapter) => html`<${Chapter} key=${chapter.chapter} book=${book} chapter=${chapter} open=${chapter.chapter === opened} />`)}
      </div></section>`;
}

/** Drawn when it is first opened: a book may hold thousands of entries. */
function Chapter({ book, chapter, open }) {
  const [shown, setShown] = useState(open);
  const groups = GROUPS.filter((name) => chapter[name].length);
  const total = groups.reduce((all, name) => all + chapter[name].length, 0);
  return html`<details class="guide-chapter" open=${open} onToggle=${(event) => event.target.open && setShown(true)}>
    <summary>${chapterName(chapter.chapter, chapter.title)} (${total})</summary>
    ${shown && groups.map((name) => html`<h3>${t(`guide.${name}`)}</h3><dl class="guide-list">${chapter[name].map((entry) => html`
      <dt><${Rich} kind="rich inline" text=${entry.term} /></dt>
      <dd><${Rich} text=${entry.text} /><a class="soft" href=${bookPath(book.id, { node: entry.node_id, quote: entry.quote.slice(0, MOST_QUOTED) })}>${entry.section.at(-1) || book.title}</a></dd>`)}</dl>`)}
  </details>`;
}
