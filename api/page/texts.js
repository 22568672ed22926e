// What the page says, in the reader's language: `t("ask.send")`, with values for `{name}` in it.
let table = {};
let messages = new Map(); // of the program, by their English templates

/** "en" or "zh". */
export const language = () => document.documentElement.lang.slice(0, 2);

/** Speaks the language of the document from now on. */
export async function load() {
  const [texts, own = {}] = await (coalesce.first || coalesce.texts(language()));
  table = texts;
  messages = new Map(Object.entries(own).map(([english, text]) => [keyOf(english), text]));
  coalesce.first = null;
}

export const has = (key) => key in table;

export function t(key, values = {}) {
  return table[key].replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

/** The text for a number: `key.one` for 1 where the language distinguishes them. */
export function count(key, n, values = {}) {
  return t(n === 1 && has(`${key}.one`) ? `${key}.one` : key, { n: number(n), ...values });
}

/** A text for a name that comes from the server; the name itself where there is none. */
export const either = (key, otherwise) => (has(key) ? t(key) : otherwise);

export const number = (n) => n.toLocaleString("en-US");

/** What went wrong and what helps, as sentences. */
export function said(error) {
  return sentences(either(`error.${error.type}`, ""), message(error, "message"), message(error, "hint"));
}

/** A text of the server that may have parts beside it: `message(job, "message")`. */
export const message = (from, name) => translated(from[`${name}_parts`] || from[name] || "");

/** A template in the reader's language with its arguments, themselves translated; as it is where the table lacks it. */
function translated(parts) {
  const { key, arguments: given } = typeof parts === "string" ? { key: parts, arguments: [] } : parts;
  const own = messages.get(keyOf(key));
  const values = given.map(translated);
  let at = 0;
  if (own === undefined || (!given.length && own.includes("{"))) return given.length ? key.replace(/\{\}/g, () => values[at++]) : key;
  return own.replace(/\{(\d)\}/g, (_, place) => values[place]);
}

/** First letter and full stop depend on where a text stands. */
const keyOf = (template) => template.trim().replace(/\.$/, "").toLowerCase();

export function sentences(...parts) {
  const ended = (text) => (/[.?!…。]$/.test(text) ? text : text + (/[\u3400-\u9fff]/.test(text) ? "。" : "."));
  const begun = (text) => (/^(?!coalesce )[a-z]+ /.test(text) ? text[0].toUpperCase() + text.slice(1) : text);
  return parts.filter(Boolean).map((part) => ended(begun(part))).join(" ").replaceAll("。 ", "。");
}

// --- places in books
/** The printed page where there is one, with the file's page where the two differ. */
export function pageOf({ page_label: label, page_start: first, page_end: last }) {
  if (first === null || first === undefined) return "";
  if (label && label !== String(first)) return t("page.printed", { label, page: first });
  return last && last !== first ? t("page.range", { first, last }) : t("page.one", { page: first });
}

/** Book, heading path and page of a citation or a passage, as far as they are known. */
export function placeOf(source, { title = true } = {}) {
  const path = source.section.filter((part) => part && !(title && part === source.title));
  const text = (title && source.title ? [source.title, ...path] : path).join(" › ");
  return [text, pageOf(source)].filter(Boolean).join(t("page.join"));
}

/** A chapter as books and readers call it; what stands before the first has no number. */
export function chapterName(ordinal, title) {
  if (!ordinal) return title || t("chapter.before");
  if (!title) return t("filters.in_chapter", { n: ordinal });
  return /^\d+[.:]?\s/.test(title) ? title : `${ordinal}. ${title}`; // many books number their chapters themselves
}

// --- times
export const dateTime = (moment) => {
  const then = new Date(moment);
  const two = (n) => String(n).padStart(2, "0");
  return `${then.getFullYear()}-${two(then.getMonth() + 1)}-${two(then.getDate())} ${two(then.getHours())}:${two(then.getMinutes())}`;
};

/** How long until a moment, in the largest unit that fits. */
export function until(moment) {
  const minutes = Math.max((new Date(moment) - Date.now()) / 60_000, 0);
  if (minutes < 60) return t("span.minutes", { n: Math.max(1, Math.round(minutes)) });
  if (minutes < 60 * 24) return t("span.hours", { n: Math.round(minutes / 60) });
  return t("span.days", { n: Math.round(minutes / 60 / 24) });
}

/** A score without needless zeros. */
export const points = (score) => String(Number(score.toFixed(2)));

/** The question in the reader's language where there is one in it. */
export const questionText = (question) => (language() === "zh" && question.question_zh) || question.question;
