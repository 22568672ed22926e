// Questions, answers as they are written, the conversations, and the passage behind a marker.
import { BASE, navigation } from "../address.js";
import { Button, Empty, Missing, Problem, attempt, drafts, sendOnEnter, useKeys } from "../controls.js";
import { html, useEffect, useRef, useState } from "../html.js";
import * as rest from "../rest.js";
import { count, t } from "../texts.js";
import { Suggestions, Turn, examPath, heard } from "./answer.js";
import { Conversations } from "./conversations.js";
import { Filters, filtersFrom, filtersToSend } from "./filters.js";
import { Source, useSource } from "./source.js";

const EXAMPLES = 3;
const DRAFT = "question";
const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

export function Ask({ site, id }) {
  const [turns, setTurns] = useState([]);
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const [replaces, setReplaces] = useState(null);
  const [filters, setFilters] = useState(filtersFrom());
  const { source, open: openSource, close: closeSource } = useSource();
  const [status, setStatus] = useState("");
  const [asked, setAsked] = useState(0);
  const shown = useRef(undefined); // the conversation whose turns these are
  const reading = useRef(null); // {control, id, stopped} of the answer that is being written
  const box = useRef();
  const thread = useRef();

  useEffect(() => {
    if (id === shown.current) return;
    open();
    toBox();
  }, [id]);
  useEffect(() => {
    put(drafts.get(DRAFT));
    toBox();
    return () => reading.current?.control.abort();
  }, []);
  useKeys({ "/": () => box.current?.focus() });

  /** Shows the conversation of the address. */
  async function open() {
    reading.current?.control.abort();
    reading.current = null;
    shown.current = id;
    for (const [set, empty] of [[setTurns, []], [setProblem, null], [setBusy, false], [setReplaces, null], [setStatus, ""]]) set(empty);
    closeSource({ back: false });
    if (!id) return;
    try {
      const kept = await rest.conversation(id);
      if (shown.current !== id) return;
      const last = kept.answers.at(-1);
      setTurns(kept.answers.map((answer) => ({ key: answer.id, question: answer.question, answer, rating: kept.ratings[answer.id] })));
      setFilters(filtersFrom(last?.filters, site.documents));
      if (kept.answers.length > 1 && history.state?.y === undefined) showTurn("auto"); // who comes back is led to their place
      if (kept.unfinished) {
        const { question, replaces: old, id: answer } = kept.unfinished;
        write(question, old, (signal) => rest.follow(answer, signal)).catch((error) => setProblem(error));
      }
    } catch (error) {
      if (shown.current === id) setProblem(error);
    }
  }

  function showTurn(behavior) {
    setTimeout(() => thread.current?.querySelector(".turn:last-child")?.scrollIntoView({ block: "start", behavior }));
  }

  /** Asks; what cannot be asked stays in the box. */
  async function ask(text, { anyway = false, old = null } = {}) {
    if (!text.trim()) return;
    if (reading.current) {
      restore(text);
      return;
    }
    const begun = { made: null };
    const control = new AbortController();
    reading.current = { control };
    setBusy(true);
    await attempt(async () => {
      try {
        const chosen = filtersToSend(filters);
        if (!shown.current) begun.made = (await rest.startConversation(titleOf(text))).id;
        control.signal.throwIfAborted(); // another conversation is shown by now
        const conversation_id = shown.current || begun.made;
        const body = { question: text.trim(), conversation_id, answer_anyway: anyway, replaces: old, ...chosen };
        await write(text.trim(), old, (signal) => rest.ask(body, signal), () => {
          if (begun.made) {
            shown.current = begun.made;
            navigation.go(`c/${begun.made}`, { replace: true });
          }
          setAsked((n) => n + 1);
          begun.made = null;
        });
      } catch (error) {
        restore(text);
        if (reading.current?.control === control) {
          reading.current = null;
          setBusy(false);
        }
        if (begun.made) await rest.deleteConversation(begun.made).catch(() => {});
        if (error.name !== "AbortError") throw error;
      }
    });
  }

  /** Draws an answer as it is written. What goes wrong before it has begun is thrown. */
  async function write(question, old, events, onBegun = () => {}) {
    const control = new AbortController();
    const run = { control, id: null, stopped: reading.current?.stopped };
    reading.current = run;
    const key = crypto.randomUUID?.() || String(Math.random());
    const change = (more) => setTurns((all) => all.map((turn) => (turn.key === key ? { ...turn, ...more(turn) } : turn)));
    const isOld = (turn) => turn.answer?.id === old;
    setBusy(true);
    setReplaces(null);
    setStatus(t("ask.writing"));
    setTurns((all) => [...all.map((turn) => ({ ...turn, hidden: isOld(turn) })), { key, question, text: "", passages: [], running: true }]);
    showTurn(calm() ? "auto" : "smooth");
    const failed = (more) => {
      setTurns((all) => all.map((turn) => ({ ...turn, hidden: false })));
      change(() => ({ running: false, ...more }));
      setStatus("");
      restore(question);
    };
    try {
      for await (const event of events(control.signal)) {
        const { name, data } = event;
        change((turn) => heard(turn, event));
        if (name === "begun") {
          if (run.id === null) onBegun();
          run.id = data.id;
          if (run.stopped) stop();
        } else if (name === "stopped") failed({ stopped: "ask.stopped" });
        else if (name === "done") {
          setTurns((all) => all.filter((turn) => !isOld(turn)));
          setStatus(count("ask.finished", new Set(data.citations.map((one) => one.marker)).size));
          setAsked((n) => n + 1);
          if (data.talk === "exam") navigation.go(examPath(data).slice(BASE.length));
        }
      }
    } catch (error) {
      if (error.name === "AbortError") return;
      if (run.id === null) {
        setTurns((all) => all.filter((turn) => turn.key !== key).map((turn) => ({ ...turn, hidden: false })));
        throw error;
      }
      if (!error.type) console.error(error);
      failed({ error: error.type ? error : { type: "page" } });
    } finally {
      if (reading.current === run) {
        reading.current = null;
        setBusy(false);
      }
    }
  }

  /** Stops the answer, at once or as soon as it has begun. */
  function stop() {
    const run = reading.current;
    if (!run) return;
    run.stopped = true;
    if (run.id) attempt(() => rest.stopAnswer(run.id));
  }

  /** A phone would show its keyboard over what there is to read. */
  const toBox = () => matchMedia("(pointer: coarse)").matches || box.current?.focus({ preventScroll: true });

  /** Puts a text into the box; there it stays, also while another view is open, until it is sent. */
  function put(text) {
    if (box.current) box.current.value = text;
    drafts.keep(DRAFT, text);
  }

  /** Puts a question that was not answered back into the box, unless something new stands there. */
  function restore(text) {
    if (!(box.current?.value || drafts.get(DRAFT))) put(text);
  }

  function edit(answer) {
    setReplaces(answer.id);
    put(answer.question);
    box.current.focus();
  }

  /** What stands in the box; emptied at once, so that a second Enter has nothing to send. */
  function send() {
    const text = box.current.value;
    if (!text.trim()) return;
    put("");
    ask(text, { old: replaces });
  }

  if (problem?.status === 404) return html`<${Missing} />`;
  const newest = turns.at(-1);
  return html`<div class="ask-layout">
    <${Conversations} site=${site} current=${shown.current} asked=${asked} />
    <section class="desk" id="desk" tabindex="-1">
      <div class="thread" ref=${thread}>
        <h1 class="sr-only">${t("nav.ask")}</h1>
        ${problem && html`<${Problem} error=${problem} />`}
        ${!turns.length && !id && !busy && html`<${Welcome} site=${site} chosen=${filters.books} ask=${ask} />`}
        ${turns.filter((turn) => !turn.hidden).map((turn) => html`<${Turn} key=${turn.key} turn=${turn} last=${turn === newest}
          site=${site} ask=${ask} edit=${edit} openSource=${openSource} />`)}
      </div>
      <p class="sr-only" role="status">${status}</p>
      <form class="composer" aria-label=${t("ask.form")} onSubmit=${(event) => event.preventDefault()}>
        ${replaces && html`<div class="row editing"><span class="soft">${t("ask.editing")}</span>
          <${Button} kind="quiet" onClick=${() => setReplaces(null)}>${t("cancel")}<//></div>`}
        <${Filters} site=${site} value=${filters} onChange=${setFilters} />
        <div class="composer-row">
          <label class="sr-only" for="question">${t("ask.placeholder")}</label>
          <textarea class="question-box" id="question" rows="1" dir="auto" maxlength="100000" enterkeyhint="send" ref=${box}
            placeholder=${t("ask.placeholder")} onInput=${(event) => drafts.keep(DRAFT, event.target.value)} onKeyDown=${(event) => sendOnEnter(event, send)}></textarea>
          ${busy
            ? html`<${Button} kind="round" icon="stop" label=${t("ask.stop")} onClick=${stop} />`
            : html`<${Button} kind="primary round" icon="send" label=${t("ask.send")} id="send" onClick=${send} />`}
        </div>
      </form>
    </section>
    ${source && html`<${Source} ...${source} site=${site} onClose=${closeSource} />`}
  </div>`;
}

const titleOf = (text) => [...text.replace(/[\p{Cc}\s]+/gu, " ").trim()].slice(0, 200).join("");

/** Questions to begin with: on the books that are chosen, else on the reader's own. */
function Welcome({ site, chosen, ask }) {
  const { documents } = site;
  if (!documents.length) {
    return html`<div class="welcome"><${Empty} title=${t("ask.empty.title")} text=${t("ask.empty.text")}>
      <a class="button primary" href=${`${BASE}library`}>${t("library.add")}</a><//></div>`;
  }
  const books = chosen.length ? chosen : documents.filter((one) => !one.sample).map((one) => one.id);
  const examples = Array.from({ length: EXAMPLES }, (_, index) => t(`ask.example.${index + 1}`));
  return html`<section class="welcome"><h2>${t("ask.welcome")}</h2>
    <p>${count("ask.books", documents.length, { title: documents[0].title })}</p>
    ${books.length
      ? html`<${Suggestions} key=${books.join(" ")} find=${() => rest.suggestions({ document_id: books })} label=${t("ask.examples")} ask=${ask} />`
      : html`<ul class="examples" aria-label=${t("ask.examples")}>${examples.map((text) => html`
          <li><${Button} kind="example" onClick=${() => ask(text)}>${text}<//></li>`)}</ul>`}
  </section>`;
}
