// By chapter what was seen and right, what comes due, and what is weak.
import { BASE } from "../address.js";
import { Empty, Field, Problem, Select, Table } from "../controls.js";
import { html, useFetched, useState } from "../html.js";
import * as rest from "../rest.js";
import { chapterName, count, number, t } from "../texts.js";
import { StudyHead } from "./study.js";

const sum = (items, name) => items.reduce((all, one) => all + one[name], 0);

export function Progress({ site }) {
  const [source, setSource] = useState("");
  const books = site.documents.filter((one) => one.sample || one.questions > 0);
  const [found, problem] = useFetched(() => rest.progress(source), [source]);
  return html`<${StudyHead} site=${site} current="progress" />
    ${problem && html`<${Problem} error=${problem} />`}
    ${books.length > 1 && html`<${Field} label=${t("exam.questions_from")}><${Select} value=${source} onChange=${setSource}
      options=${[["", t("progress.all")], ...books.map((one) => [one.id, one.title])]} /><//>`}
    ${found && (sum(found.chapters, "seen") ? html`<${Shown} site=${site} progress=${found} source=${source} />`
      : html`<${Empty} title=${t("progress.none")} text=${t("progress.none_text")}><a class="button primary" href=${`${BASE}study`}>${t("exam.new")}</a><//>`)}`;
}

function Shown({ site, progress, source }) {
  const { chapters } = progress;
  const seen = sum(chapters, "seen");
  const tiles = [
    ["seen", t("progress.of", { n: number(seen), most: number(sum(chapters, "questions")) })],
    ["right", `${Math.round((100 * sum(chapters, "right")) / seen)}%`],
    ["due", number(sum(chapters, "due"))],
  ];
  return html`<dl class="tiles">${tiles.map(([name, value]) => html`<div class="card tile"><dt>${t(`progress.${name}`)}</dt><dd class="big">${value}</dd></div>`)}</dl>
    <${Chapters} site=${site} chapters=${chapters} source=${source} />
    <div class="grid"><${Forecast} chapters=${chapters} /><${Weak} sections=${progress.weak_sections} /></div>`;
}

function Chapters({ site, chapters, source }) {
  let of = null;
  const rows = chapters.flatMap((one) => {
    const first = one.document_id !== of && one.document_id;
    of = one.document_id;
    const title = first && site.documents.find((book) => book.id === first)?.title;
    const row = html`<${Chapter} chapter=${one} book=${one.document_id || source} />`;
    return title ? [html`<tr><th colspan="4" scope="colgroup">${title}</th></tr>`, row] : [row];
  });
  return html`<section class="card"><h2>${t("progress.chapters")}</h2>
    <${Table} label=${t("progress.chapters")} heads=${["chapter", "right_of_seen", "due", "practise"].map((name) => t(`progress.${name}`))}>${rows}<//></section>`;
}

function Chapter({ chapter, book }) {
  const most = Math.max(chapter.questions, chapter.seen, 1);
  const share = (n) => ({ width: `${((100 * n) / most).toFixed(1)}%` });
  const asked = new URLSearchParams({ chapter: chapter.chapter, ...(book && { book }) });
  const name = chapter.questions ? chapterName(chapter.chapter, chapter.title) : chapter.title || t("progress.own");
  return html`<tr><th scope="row">${name}</th>
    <td><div class="stack" aria-hidden="true"><i class="right" style=${share(chapter.right)}></i><i class="wrong" style=${share(chapter.seen - chapter.right)}></i></div>
      <span class="soft">${chapter.seen ? t("progress.counts", { right: chapter.right, seen: chapter.seen, most: chapter.questions })
        : count("exam.questions", chapter.questions)}</span></td>
    <td data-label=${chapter.due ? t("progress.due") : undefined}>${chapter.due || ""}</td>
    <td>${chapter.questions > 0 && html`<a href=${`${BASE}study?${asked}`} aria-label=${`${t("study.exam")}: ${name}`}>${t("study.exam")}</a>`}</td></tr>`;
}

function Forecast({ chapters }) {
  const days = chapters[0].forecast.map((_, day) => chapters.reduce((all, one) => all + one.forecast[day], 0));
  const highest = Math.max(...days, 1);
  const nameOf = (day) => {
    const date = new Date(Date.now() + day * 86_400_000);
    return day ? `${String(date.getMonth() + 1).padStart(2, "0")}-${String(date.getDate()).padStart(2, "0")}` : t("progress.today");
  };
  return html`<section class="card"><h2>${t("progress.forecast")}</h2>
    ${days.some(Boolean) ? html`<ol class="columns">${days.map((n, day) => html`<li><span>${n}</span>
        <i class="day-bar" aria-hidden="true" style=${{ height: `${((5 * n) / highest).toFixed(2)}rem` }}></i><span class="soft">${nameOf(day)}</span></li>`)}</ol>`
      : html`<p class="soft">${t("progress.nothing_coming")}</p>`}</section>`;
}

function Weak({ sections }) {
  return html`<section class="card"><h2>${t("progress.weak")}</h2>
    ${sections.length ? html`<ul class="weak">${sections.map(({ section, missed, seen }) => html`<li><span>${section.split("#").at(-1)}</span>
        <span class="soft">${t("progress.missed", { n: missed, most: seen })}</span></li>`)}</ul>`
      : html`<p class="soft">${t("progress.no_weak")}</p>`}</section>`;
}
