// The books: adding some with their progress, what reading them lost, removing one.
import { BASE, bookPath } from "../address.js";
import { Button, Empty, Field, attempt, confirm, drafts, toast } from "../controls.js";
import { html, useEffect, useFetched, useState } from "../html.js";
import * as rest from "../rest.js";
import { chapterName, count, either, t } from "../texts.js";
import { Rows, useJobs } from "./jobs.js";

const LISTS = /(^|\/)(_toc|_quarto|_bookdown|mkdocs|toc)\.yml$/;
const MOST_LISTED = 60;
const MOST_PASTED = 2_000_000;

/** What is being sent goes on while another view is open; `draw` shows it. */
const uploads = { rows: [], draw: () => {} };

function setUploads(change) {
  uploads.rows = change(uploads.rows);
  uploads.draw();
  window.onbeforeunload = uploads.rows.some(({ job }) => job.state === "running") ? (event) => event.preventDefault() : null;
}

export function Library({ site }) {
  const { documents, refresh } = site;
  const [, draw] = useState(0);
  useEffect(() => {
    uploads.draw = () => draw((n) => n + 1);
    return () => {
      uploads.draw = () => {};
    };
  }, []);
  const mayChange = !site.session.learner;
  const { rows, look } = useJobs({ onEnd: refresh, failures: mayChange });

  /** Sends the parts of one book, with a row of its own until a job has taken it; gives whether it has come. */
  const send = async (title, parts) => {
    const id = Symbol(title);
    const control = new AbortController();
    const stop = () => control.abort(); // until all is sent: then it is the job that can be stopped
    const dismiss = () => setUploads((all) => all.filter((one) => one.job.id !== id));
    const change = (more, row = {}) => setUploads((all) => all.map((one) => (
      one.job.id === id ? { ...one, ...row, job: { ...one.job, ...more } } : one)));
    const job = { id, title, state: "running", message: "sending", done: 0, total: 1, seconds_left: null };
    setUploads((all) => [...all, { job, stop, dismiss }]);
    try {
      const taken = await rest.upload(parts, { onSent: (done) => change({ done }, done === 1 && { stop: null }), signal: control.signal });
      if (taken) dismiss();
      else change({ state: "done", message: "there" });
      return true;
    } catch (error) {
      if (error.name === "AbortError") dismiss();
      else change({ state: "failed", error });
      return false;
    } finally {
      look();
    }
  };
  return html`<h1>${t("nav.library")}</h1>
    ${mayChange && html`<${Add} send=${send} onAdded=${look} />`}
    <${Rows} rows=${[...uploads.rows, ...rows]} mayStop=${mayChange} />
    <section class="books" aria-label=${t("library.books")}>
      ${!documents.length && html`<${Empty} title=${t("ask.empty.title")} text=${t(mayChange ? "library.empty" : "library.empty_for_learner")} />`}
      ${documents.map((one) => html`<${Book} key=${one.id} book=${one} mayChange=${mayChange} refresh=${refresh} look=${look} />`)}
    </section>`;
}

// --- adding

function Add({ send, onAdded }) {
  const [over, setOver] = useState(false);
  const [formats] = useFetched(() => attempt(rest.formats), []);
  const take = (files) => attempt(async () => { // who is quick has chosen before the formats are known
    for (const [title, parts] of booksOf(files, formats || await rest.formats())) send(title, parts);
  });
  const chosen = (event) => {
    take([...event.target.files].map((file) => [file, file.webkitRelativePath || file.name]));
    event.target.value = "";
  };
  const dropped = async (event) => {
    event.preventDefault();
    setOver(false);
    take(await filesOf(event.dataTransfer.items));
  };
  const hover = (on) => (event) => {
    event.preventDefault();
    setOver(on);
  };
  const endings = formats ? [...formats.books, ...formats.chapters] : [];
  return html`<section class=${over ? "drop over" : "drop"} onDragOver=${hover(true)} onDragLeave=${hover(false)} onDrop=${dropped}>
    <p class="drop-title">${t("library.drop")}</p>
    <div class="row">
      <label class="button primary"><span>${t("library.choose")}</span><input class="sr-only" type="file" multiple accept=${endings.join(",")} onChange=${chosen} /></label>
      <label class="button"><span>${t("library.choose_folder")}</span><input class="sr-only" type="file" webkitdirectory onChange=${chosen} /></label>
    </div>
    <p class="soft">${formats && t("library.formats", { formats: endings.toSorted().join(" ") })}</p>
    ${formats && Object.entries(formats.missing).map(([ending, command]) => html`<p class="soft">${t("library.missing", { ending })} <code>${command}</code></p>`)}
    <p class="soft">${t("library.folders")}</p>
    <${AddOther} onAdded=${onAdded} send=${send} />
  </section>`;
}

/** The text files of a folder are one book; every other book that lies in it is one of its own. */
function booksOf(files, { chapters, books }) {
  const ends = (path, endings) => endings.some((ending) => path.toLowerCase().endsWith(ending));
  const found = [];
  const folders = new Map();
  for (const [file, path] of files) {
    const top = path.includes("/") ? path.split("/")[0] : "";
    if (!top) found.push([file.name, [[file, path]]]);
    else if (/(^|\/)\./.test(path)) continue;
    else if (ends(path, chapters) || LISTS.test(path)) folders.set(top, [...(folders.get(top) || []), [file, path]]);
    else if (ends(path, books)) found.push([file.name, [[file, file.name]]]);
  }
  return [...found, ...[...folders].filter(([, parts]) => parts.some(([, path]) => ends(path, chapters)))];
}

/** The files of what was dropped, those in its folders too, each with its path. */
async function filesOf(items) {
  const files = [];
  const walk = async (entry) => {
    if (entry.isFile) {
      files.push([await new Promise((done, failed) => entry.file(done, failed)), entry.fullPath.replace(/^\//, "")]);
      return;
    }
    const reader = entry.createReader();
    for (;;) { // it gives a hundred at a time
      const some = await new Promise((done, failed) => reader.readEntries(done, failed));
      if (!some.length) return;
      for (const one of some) await walk(one);
    }
  };
  for (const entry of [...items].map((item) => item.webkitGetAsEntry()).filter(Boolean)) await walk(entry);
  return files;
}

/** A web page by its address, or pasted text; folded away. */
function AddOther({ onAdded, send }) {
  const [fetching, setFetching] = useState(false);
  const addUrl = async (event) => {
    event.preventDefault();
    const { url } = event.target.elements;
    if (!url.value.trim() || fetching) return;
    setFetching(true);
    await attempt(async () => {
      const taken = await rest.addUrl(url.value.trim());
      if (taken.job_id) url.value = "";
      else toast(t("stage.there"));
      onAdded();
    });
    setFetching(false);
  };
  const addText = async (event) => {
    event.preventDefault();
    const { title, text } = event.target.elements;
    if (!text.value.trim()) return;
    const name = `${title.value.replace(/[^\p{L}\p{N} _-]/gu, " ").trim() || "text"}.md`;
    if (!await send(name, [[new File([text.value], name), name]])) return;
    for (const box of [title, text]) drafts.keep(box.name, box.value = "");
  };
  const keep = ({ target }) => drafts.keep(target.name, target.value);
  return html`<details class="add-other" open=${Boolean(drafts.get("text"))}><summary>${t("library.other")}</summary>
    <form class="add-form" novalidate onSubmit=${addUrl}>
      <${Field} label=${t("library.url")}><input class="box" type="url" name="url" autocomplete="off" maxlength="2000" placeholder="https://" /><//>
      <${Button} type="submit">${t("library.fetch")}<//>
      <p class="soft" role="status">${fetching && t("library.fetching")}</p>
    </form>
    <form class="add-form" onSubmit=${addText}>
      <${Field} label=${t("library.paste_title")}><input class="box" name="title" autocomplete="off" maxlength="60" defaultValue=${drafts.get("title")} onInput=${keep} /><//>
      <${Field} label=${t("library.paste")}><textarea class="box" name="text" rows="4" autocomplete="off" dir="auto" maxlength=${MOST_PASTED} defaultValue=${drafts.get("text")} onInput=${keep}></textarea><//>
      <${Button} type="submit">${t("library.add_text")}<//>
    </form>
  </details>`;
}

// --- books

function Book({ book, mayChange, refresh, look }) {
  const remove = () => confirm({
    question: t("library.remove_question", { title: book.title }), detail: t("library.remove_detail"), yes: t("library.remove"),
    onYes: async () => {
      await rest.removeDocument(book.id);
      await refresh();
    },
  });
  const make = () => attempt(async () => {
    await rest.makeQuestions(book.id);
    look();
  });
  const extent = book.pages ? count("library.pages", book.pages) : count("library.sections", book.sections);
  const facts = [
    either(`format.${book.format}`, book.format), extent, count("library.nodes", book.nodes), book.questions > 0 && count("exam.questions", book.questions),
    t("library.added", { day: book.added_at.slice(0, 10) }),
  ];
  const again = t(book.questions ? "library.make_again" : "library.make");
  return html`<article class="card book">
    <div class="book-head"><div>
      <h2><a href=${bookPath(book.id)} dir="auto">${book.title}</a></h2>
      <p class="soft">${facts.filter(Boolean).join(" · ")}</p>
      <p class="soft source-name">${book.sample ? t("library.sample") : book.source}</p></div>
      ${mayChange && html`<${Button} kind="quiet" icon="trash" label=${t("library.remove_book", { title: book.title })} onClick=${remove} />`}
    </div>
    <${Health} health=${book.health} />
    <${Chapters} book=${book} />
    <div class="row">
      <a class="button" href=${`${BASE}study/guide/${encodeURIComponent(book.id)}`}>${t("guide.title")}</a>
      ${!book.sample && book.questions > 0 && mayChange && html`<a class="button" href=${`${BASE}study/questions/${encodeURIComponent(book.id)}`}>${t("questions.look")}</a>`}
      ${(book.sample || book.questions > 0) && html`<a class="button" href=${`${BASE}study?book=${encodeURIComponent(book.id)}`}>${t("library.exam")}</a>`}
      ${!book.sample && mayChange && html`<${Button} kind=${book.questions ? "quiet" : ""} label=${`${again}: ${book.title}`} onClick=${make}>${again}<//>`}
    </div>
  </article>`;
}

function Health({ health }) {
  const found = Object.entries(health).filter(([, items]) => items.length);
  if (!found.length) return html`<p class="health good">✓ ${t("health.good")}</p>`;
  const all = found.reduce((sum, [, items]) => sum + items.length, 0);
  return html`<details class="health doubtful"><summary>${count("health.doubts", all)}</summary>
    <ul>${found.map(([name, items]) => html`<li>${t(`health.${name}`)}: ${listed(items)}</li>`)}</ul></details>`;
}

/** Items on one line; neighbouring numbers become ranges, and a long list is cut short. */
function listed(items) {
  const parts = [];
  for (const item of items.every(Number.isInteger) ? items.toSorted((a, b) => a - b) : items) {
    const last = parts.at(-1);
    if (Number.isInteger(item) && last?.end === item - 1) last.end = item;
    else parts.push({ start: item, end: item });
  }
  const said = parts.map(({ start, end }) => (start === end ? start : `${start}–${end}`));
  return said.slice(0, MOST_LISTED).join(", ") + (said.length > MOST_LISTED ? " …" : "");
}

/** Fetched when they are first looked at. */
function Chapters({ book }) {
  const [open, setOpen] = useState(false);
  const [chapters] = useFetched(async () => (open ? attempt(() => rest.chapters(book.id)) : []), [open]);
  return html`<details class="chapters-of" onToggle=${(event) => setOpen(event.target.open)}><summary>${t("library.chapters")}</summary>
    <ol class="chapter-tree">${chapters?.map((one) => html`<li>
      <a href=${bookPath(book.id, { chapter: one.ordinal })}>${chapterName(one.ordinal, one.title)}</a>
      <span class="soft">${count("library.nodes", one.nodes)}</span></li>`)}</ol>
  </details>`;
}
