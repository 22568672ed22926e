// Where to look, and what answers: books, chapter, pages, arm and adapter. Folded away; a summary says what is chosen.
import { Button, Check, Field, Icon, Select } from "../controls.js";
import { html, useFetched } from "../html.js";
import * as rest from "../rest.js";
import { chapterName, count, t } from "../texts.js";

const MOST_PAGES = 1_000_000;
const ANSWERS = ["both", "free", "quotes"];
const TUNED = new Set(["tuned", "rag+tuned"]);

/** What is chosen at first, by an answer's filters; books that have gone are left out. */
export function filtersFrom(filters, documents = []) {
  const books = (filters?.document_ids || []).filter((id) => documents.some((one) => one.id === id));
  const one = books.length === 1;
  const [first, last] = (one && filters.pages) || ["", ""];
  const chapter = (one && filters.chapters.find((name) => typeof name === "number")) || "";
  return { books, chapter: String(chapter), first: String(first), last: String(last), arm: "rag", adapter: "", answers: "" };
}

/** The same as `POST /v1/ask` takes it. */
export function filtersToSend({ books, chapter, first, last, arm, adapter, answers }) {
  const pages = first || last ? [Number(first || 1), Number(last || MOST_PAGES)].sort((a, b) => a - b) : null;
  const filters = { document_ids: books, chapters: chapter ? [Number(chapter)] : [], pages };
  return { filters, arm, adapter: adapter && TUNED.has(arm) ? adapter : null, answers: answers || null };
}

export function Filters({ site, value, onChange }) {
  const { documents, running } = site;
  const only = value.books.length === 1 ? documents.find((one) => one.id === value.books[0]) : undefined;
  const arms = running.arms || [];
  const adapters = running.adapters || [];
  const [chapters] = useFetched(async () => only && { of: only.id, listed: await rest.chapters(only.id) }, [only?.id]);
  const change = (more) => onChange({ ...value, ...more });
  const choose = (books) => change({ books, chapter: "", first: "", last: "" });
  const tick = (id, on) => choose(on ? [...value.books, id] : value.books.filter((one) => one !== id));
  const page = (name, label, standing) => html`<${Field} label=${label}><input class="box" type="number" min="1" max=${only.pages} inputmode="numeric"
    autocomplete="off" placeholder=${standing} value=${value[name]} onInput=${(event) => change({ [name]: event.target.value })} /><//>`;
  const listed = only && chapters?.of === only.id ? chapters.listed.map((one) => [String(one.ordinal), chapterName(one.ordinal, one.title)]) : [];
  return html`<details class="filters">
    <summary><${Icon} name="filter" /><span>${summary(value, documents)}</span></summary>
    <fieldset class="filter-books"><legend class="field-label">${t("filters.books")}</legend>
      <div class="filter-list">${documents.map((one) => html`
        <${Check} key=${one.id} label=${one.title} checked=${value.books.includes(one.id)} onChange=${(on) => tick(one.id, on)} />`)}</div></fieldset>
    <div class="filter-fields">
      ${only && html`<${Field} label=${t("filters.chapter")}><${Select} value=${value.chapter} onChange=${(chapter) => change({ chapter })}
        options=${[["", t("filters.all_chapters")], ...listed]} /><//>`}
      ${only?.pages && page("first", t("filters.from_page"), "1")}
      ${only?.pages && page("last", t("filters.to_page"), String(only.pages))}
      ${arms.length > 1 && html`<${Field} label=${t("filters.arm")}><${Select} value=${value.arm} onChange=${(arm) => change({ arm, adapter: value.adapter || adapters[0] || "" })}
        options=${arms.map((arm) => [arm, t(`arm.${arm}`)])} /><//>`}
      ${arms.includes("base") && html`<${Field} label=${t("filters.answers")}><${Select} value=${value.answers || running.answers}
        onChange=${(answers) => change({ answers })} options=${ANSWERS.map((one) => [one, t(`filters.answers.${one}`)])} /><//>`}
      ${adapters.length > 1 && html`<${Field} label=${t("filters.adapter")}><${Select} value=${value.adapter || adapters[0]}
        onChange=${(adapter) => change({ adapter })} options=${adapters.map((name) => [name, name])} /><//>`}
      ${value.books.length > 0 && html`<${Button} kind="quiet" onClick=${() => choose([])}>${t("filters.clear")}<//>`}
    </div>
  </details>`;
}

function summary({ books, chapter, first, last }, documents) {
  const title = documents.find((one) => one.id === books[0])?.title;
  return [
    books.length > 1 ? count("library.books_count", books.length) : title,
    chapter && t("filters.in_chapter", { n: chapter }),
    (first || last) && t("page.range", { first: first || "1", last: last || "…" }),
  ].filter(Boolean).join(" · ") || t("filters.none");
}
