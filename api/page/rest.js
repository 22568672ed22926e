// Every call to the server. What goes wrong is a RestError, said in words by `said` of texts.js.
import { language } from "./texts.js";

const FOLLOW_TRIES = 20;
const KEEP_WRITING_S = 30;

/** `type` is the server's, or one of: unreachable (no answer came), lost (an answer that cannot be found again). */
export class RestError extends Error {
  constructor({ type, message = "", hint = "", ...parts }, status = 0) {
    super(message);
    Object.assign(this, parts, { type, hint, status });
  }
}

/** What to do when the server asks for a key; set by app.js. */
export const signedOut = { tell: () => {} };

let ahead_ms = 0; // how far the server's clock is ahead of this machine's, by its last reply

/** A moment of the server's in this machine's time. */
export const byThisClock = (moment) => Date.parse(moment) - ahead_ms;

async function send(method, path, { body, query, form, signal } = {}) {
  const given = Object.entries(query || {}).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const asked = new URLSearchParams(given.flatMap(([name, value]) => [value].flat().map((one) => [name, one])));
  const headers = { Accept: "application/json, text/event-stream" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const address = path + (given.length ? `?${asked}` : "");
  const begun = method === "GET" && coalesce.begun.get(address);
  coalesce.begun.delete(address);
  let reply;
  try {
    reply = await (begun || fetch(address, { method, headers, signal, body: body === undefined ? form : JSON.stringify(body) }));
  } catch (error) {
    throw error.name === "AbortError" ? error : new RestError({ type: "unreachable" });
  }
  ahead_ms = Date.parse(reply.headers.get("Date")) - Date.now() || 0;
  if (reply.ok) return reply;
  const said = await reply.json().catch(() => ({}));
  if (reply.status === 401 && path !== SESSION) signedOut.tell();
  throw Object.assign(new RestError(said.error || { type: "unreachable" }, reply.status), { said });
}

async function call(method, path, options) {
  const reply = await send(method, path, options);
  return reply.status === 204 ? null : reply.json();
}

/** All of a list that comes in pages; `name` is its field. */
async function every(path, name, query) {
  const items = [];
  let page = {};
  do {
    page = await call("GET", path, { query: { ...query, cursor: page.next_cursor } });
    items.push(...page[name]);
  } while (page.next_cursor);
  return items;
}

function formOf(parts) {
  const form = new FormData();
  for (const [file, path] of parts) form.append("file", file, path);
  return form;
}

/** An address with what stands in it encoded: at`/v1/jobs/${id}`. */
const at = (words, ...values) => String.raw({ raw: words }, ...values.map(encodeURIComponent));
const SESSION = "/v1/session";

// --- the server, and who asks
export const session = () => call("GET", SESSION);
export const signIn = (key) => call("POST", SESSION, { body: { key } });
export const signOut = () => call("DELETE", SESSION);
/** What runs, or how far the preparation is. */
export const readiness = () => call("GET", "/readyz").catch((error) => {
  if (error.said?.waiting_for === undefined) throw error;
  return error.said;
});

/** What answers, and what could: the engines, models and adapters found. */
export const generator = () => call("GET", "/v1/generator");
export const switchGenerator = (choice) => call("PUT", "/v1/generator", { body: choice });

/** Whose exams, cards and progress the calls are about: `{learner}`, or nothing where the key says it; set by app.js. */
export const reader = {};

// --- asking
export const conversations = (search) => call("GET", "/v1/conversations", { query: { search, begun_in: "page" } }).then((found) => found.conversations);
export const startConversation = (title) => call("POST", "/v1/conversations", { body: { title, begun_in: "page" } });
export const conversation = (id) => call("GET", at`/v1/conversations/${id}`);
export const renameConversation = (id, title) => call("PATCH", at`/v1/conversations/${id}`, { body: { title } });
export const deleteConversation = (id) => call("DELETE", at`/v1/conversations/${id}`);
export const deleteConversations = () => call("DELETE", "/v1/conversations", { query: { begun_in: "page" } });
export const exportPath = (id) => at`/v1/conversations/${id}/export.md`;
export const feedback = (answer_id, rating, comment) => call("POST", "/v1/feedback", { body: { answer_id, rating, comment } });
export const suggestions = (query) => call("GET", "/v1/suggestions", { query }).then((found) => found.suggestions);
export const stopAnswer = (id) => call("DELETE", at`/v1/answers/${id}`);
export const saveCard = (card) => call("POST", "/v1/cards", { body: { ...card, ...reader } });

/** The events of an answer as `{name, data}`; the first is `begun` with the answer's id. */
export async function* ask(body, signal) {
  const reply = await send("POST", "/v1/ask", { body: { ...body, stream: true, grace_s: KEEP_WRITING_S }, signal });
  yield* upToTheEnd(reply, { ...ofAnswer, id: reply.headers.get("X-Answer-Id") }, signal);
}

const ofAnswer = { path: (id) => at`/v1/answers/${id}/events`, last: "done" };
const ofComparison = { path: (id) => at`/v1/compare/${id}/events`, last: "compared" };

/** The same for an answer that is being written already. */
export async function* follow(id, signal) {
  yield* upToTheEnd(null, { ...ofAnswer, id }, signal);
}

/** A lost connection is taken up again: `lost` says so, and after the next `begun` the events come from the start. */
async function* upToTheEnd(reply, { path, last, id }, signal) {
  for (let tries = 0; tries < FOLLOW_TRIES; tries += 1) {
    try {
      reply ||= await send("GET", path(id), { signal });
      tries = 0;
      yield { name: "begun", data: { id } };
      for await (const event of eventsOf(reply)) {
        if (event.name === "error" && event.data.error.type === "cancelled") break; // stopped, here or elsewhere
        if (event.name === "error") throw new RestError(event.data.error, 200);
        yield event;
        if (event.name === last) return;
      }
      return yield { name: "stopped" };
    } catch (error) {
      if (error.name === "AbortError") throw error;
      if (error.status === 404) throw new RestError({ type: "lost" });
      if (error instanceof RestError && error.status) throw error;
      reply = null;
      yield { name: "lost" };
      await new Promise((done) => setTimeout(done, 1000));
    }
  }
  throw new RestError({ type: "unreachable" });
}

/** Server-sent events as they come. */
async function* eventsOf(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let held = ""; ;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (held + value).split("\n\n");
    held = blocks.pop();
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split("\n").map((line) => line.split(/: ?(.*)/s)));
      if (fields.data !== undefined) yield { name: fields.event, data: JSON.parse(fields.data) };
    }
  }
}

// --- books
export const documents = () => every("/v1/documents", "documents");
export const chapters = (id) => call("GET", at`/v1/documents/${id}/chapters`).then((found) => found.chapters);
export const pageImage = (id, page, quote) => `${at`/page-image/${id}/${page}.png`}?quote=${encodeURIComponent(quote.slice(0, 600))}`;
export const contents = (id) => call("GET", at`/v1/documents/${id}/contents`).then((found) => found.parts);
export const part = (id, number) => call("GET", at`/v1/documents/${id}/parts/${number}`);
export const place = (id, node_id, quote) => call("GET", at`/v1/documents/${id}/place`, { query: { node_id, quote } });
export const search = (query, top_k, document_ids) => call("POST", "/v1/search", { body: { query, top_k, filters: { document_ids } } }).then((found) => found.passages);
export const removeDocument = (id) => call("DELETE", at`/v1/documents/${id}`);
export const formats = () => call("GET", "/v1/formats");
export const addUrl = (url) => call("POST", "/v1/documents", { body: { url } });
export const makeQuestions = (id) => call("POST", at`/v1/documents/${id}/questions`);

/** Sends a book's files, each `[file, path]`; `onSent` hears which share has gone. Gives null where it is there already. */
export function upload(parts, { onSent = () => {}, signal } = {}) {
  const request = new XMLHttpRequest(); // fetch does not say how far it is
  signal?.addEventListener("abort", () => request.abort());
  return new Promise((done, failed) => {
    request.upload.onprogress = (event) => event.lengthComputable && onSent(event.loaded / event.total);
    request.onerror = () => failed(new RestError({ type: "unreachable" }));
    request.onabort = () => failed(new DOMException("", "AbortError"));
    request.onload = () => {
      if (request.status === 202 || request.status === 200) return done(request.status === 202 ? request.response : null);
      if (request.status === 401) signedOut.tell();
      return failed(new RestError(request.response?.error || { type: "unreachable" }, request.status));
    };
    request.open("POST", "/v1/documents");
    request.responseType = "json";
    request.send(formOf(parts));
  });
}

// --- jobs
export const jobs = () => call("GET", "/v1/jobs").then((found) => found.jobs);
export const cancelJob = (id) => call("DELETE", at`/v1/jobs/${id}`);

// --- studying
export const questionChapters = (source) => call("GET", "/v1/questions/chapters", { query: source });
export const questionFiles = () => call("GET", "/v1/questions/files").then((found) => found.files);
export const addQuestionFile = (file) => call("POST", "/v1/questions/files", { form: formOf([[file, file.name]]) });
export const questions = (document_id) => every("/v1/questions", "questions", { document_id, limit: 500, with_answers: true });
export const changeQuestion = (id, change) => call("PATCH", at`/v1/questions/${id}`, { body: change });
export const makeCard = (id) => call("POST", at`/v1/questions/${id}/card`, { query: reader });
export const dropQuestion = (id) => call("DELETE", at`/v1/questions/${id}`);
export const addQuestions = (id, file) => call("POST", at`/v1/documents/${id}/questions/file`, { form: formOf([[file, file.name]]) });
export const exportQuestionsPath = (ending, source) => `/v1/questions/export.${ending}?${new URLSearchParams(source)}`;
export const startExam = (plan) => call("POST", "/v1/exams", { body: { ...plan, ...reader } });
export const exams = (limit) => call("GET", "/v1/exams", { query: { limit, ...reader } }).then((found) => found.exams);
export const exam = (id) => call("GET", at`/v1/exams/${id}`, { query: reader });
export const beginExam = (id) => call("POST", at`/v1/exams/${id}/begin`, { query: reader });
export const giveExam = (plan, learners, assistant) => call("POST", "/v1/class-exams", { body: { ...plan, learners, assistant } });
export const classExams = (limit) => call("GET", "/v1/class-exams", { query: { limit } }).then((found) => found.classes);
export const classExam = (id) => call("GET", at`/v1/class-exams/${id}`);
export const exportMarksPath = (id) => at`/v1/class-exams/${id}/marks.csv`;
export const draft = (id) => call("GET", at`/v1/exams/${id}/draft`, { query: reader }).then((found) => found.answers);
export const keepAnswers = (id, answers) => call("PATCH", at`/v1/exams/${id}/draft`, { body: { answers, ...reader } });
export const handIn = (id, answers) => call("POST", at`/v1/exams/${id}/answers`, { body: { answers, ...reader } });
export const decide = (id, question_id, share) => call("POST", at`/v1/exams/${id}/marks`, { body: { question_id, share, ...reader } });
export const dueCards = (limit) => call("GET", "/v1/cards/due", { query: { limit, ...reader } });
export const card = (id) => call("GET", at`/v1/cards/${id}`, { query: reader });
export const reviewCard = (id, rating) => call("POST", at`/v1/cards/${id}/review`, { body: { rating, ...reader } });
export const undoReview = (id) => call("POST", at`/v1/cards/${id}/undo`, { query: reader });
export const changeCard = (id, change) => call("PATCH", at`/v1/cards/${id}`, { body: { ...change, ...reader } });
export const deleteCard = (id) => call("DELETE", at`/v1/cards/${id}`, { query: reader });
export const exportCardsPath = (ending) => `/v1/cards/export.${ending}?${new URLSearchParams(reader)}`;
export const progress = (document_id) => call("GET", "/v1/progress", { query: { document_id, ...reader } });
export const guide = (id) => call("GET", at`/v1/documents/${id}/guide`).then((found) => found.chapters);
export const exportGuidePath = (id) => `${at`/v1/documents/${id}/guide.md`}?language=${language()}`;

// --- comparing
/** The events of a comparison as `{name, data}`: `answer` begins each, `compared` ends them all. */
export async function* compare(body, signal) {
  const reply = await send("POST", "/v1/compare", { body: { ...body, stream: true, grace_s: KEEP_WRITING_S }, signal });
  yield* upToTheEnd(reply, { ...ofComparison, id: reply.headers.get("X-Comparison-Id") }, signal);
}

/** The same for a comparison that is being made already. */
export const followComparison = (id, signal) => upToTheEnd(null, { ...ofComparison, id }, signal);
export const stopComparison = (id) => call("DELETE", at`/v1/compare/${id}`);
export const choiceQuestion = () => call("GET", "/v1/questions/choice");
export const choose = (body) => call("POST", "/v1/choose", { body });
export const vote = (body) => call("POST", "/v1/votes", { body });
export const votes = () => call("GET", "/v1/votes");
export const votesPath = "/v1/compare/votes.jsonl";
export const reports = () => every("/v1/reports", "reports", { language: language() });
export const report = (id) => call("GET", reportPath(id));
export const reportPath = (id) => at`/v1/reports/${id}`;
export const reportPagePath = (id, spoken) => `${reportPath(id)}/page?language=${spoken}`;
export const runComparison = (document_id) => call("POST", "/v1/reports", { body: { document_id } });
export const feedbackCount = () => call("GET", "/v1/feedback");
export const feedbackCasesPath = "/v1/feedback/cases.jsonl";

// --- adapters of what answers
export const adapters = () => call("GET", "/v1/adapters");
export const adapterLoss = (name) => call("GET", at`/v1/adapters/${name}/loss`).then((found) => found.points);
export const tuneAdapter = (body) => call("POST", "/v1/adapters", { body });
