// The page: which view an address shows, the head, the wait for the server, the theme and the language.
import { BASE, navigation } from "./address.js";
import { Button, Dialog, Field, Icon, Missing, Problem, Progress, Select, toast } from "./controls.js";
import { html, render, useEffect, useRef, useState } from "./html.js";
import * as rest from "./rest.js";
import { either, load, said, t } from "./texts.js";
import { Ask } from "./views/ask.js";

const READY_POLL_MS = 200;
const GONE_POLL_MS = 1000;
const SETTLED_MS = 3000;
const THEMES = ["auto", "light", "dark"];
const LANGUAGES = { en: ["en-US", "English"], zh: ["zh-CN", "中文"] };

/** Views by address; the others come when they are first opened. */
const ROUTES = [
  [/^(?:c\/(?<id>\w+))?$/, "ask", async () => Ask],
  [/^library$/, "library", async () => (await import("./views/library.js")).Library],
  [/^study$/, "study", async () => (await import("./views/study.js")).Study],
  [/^study\/exam\/(?<id>[^/]+)$/, "study", async () => (await import("./views/exam.js")).Exam],
  [/^study\/cards$/, "study", async () => (await import("./views/cards.js")).Cards],
  [/^study\/progress$/, "study", async () => (await import("./views/progress.js")).Progress],
  [/^study\/questions\/(?<id>[^/]+)$/, "study", async () => (await import("./views/questions.js")).Questions],
  [/^study\/guide\/(?<id>[^/]+)$/, "study", async () => (await import("./views/guide.js")).Guide],
  [/^compare$/, "compare", async () => (await import("./views/compare.js")).Compare],
  [/^reports$/, "compare", async () => (await import("./views/reports.js")).Reports],
  [/^reports\/(?<id>[^/]+)$/, "compare", async () => (await import("./views/reports.js")).Report],
  [/^study\/class\/(?<id>[^/]+)$/, "study", async () => (await import("./views/class.js")).Class],
  [/^login$/, "ask", async () => SignedIn],
  [/^settings$/, "settings", async () => (await import("./views/settings.js")).Settings],
  [/^book\/(?<id>[^/]+)$/, "library", async () => (await import("./views/book.js")).Book],
];
const NAVIGATION = ["ask", "library", "study"];
/** Not in the navigation of a learner's key. */
const NOT_FOR_LEARNERS = ["compare", "settings"];

/** What every view needs to know; asked for before the page itself is there. */
const facts = () => Promise.all([rest.session(), rest.documents(), rest.readiness()]);
let first = null;

function App() {
  const [place, setPlace] = useState(here);
  const [site, setSite] = useState(null);
  const [waiting, setWaiting] = useState(null);
  const [locked, setLocked] = useState(false);
  const [, setLook] = useState("");
  const known = useRef(null); // the site
  const again = useRef(0);

  /** Books, who asks and what answers: what every view needs to know. A view that is open stays, with what was typed. */
  async function open() {
    clearTimeout(again.current);
    try {
      const [session, documents, running] = await (first || facts());
      const learner = session.learner ? "" : coalesce.cookie("learner");
      if (learner) rest.reader.learner = learner;
      else delete rest.reader.learner;
      setSite(known.current = { session, documents, running, refresh: open });
      setWaiting(null);
      first = null;
      if (running.waiting_for !== undefined) again.current = setTimeout(open, GONE_POLL_MS); // it answers, and loads on
    } catch (error) {
      first = null;
      if (error.status === 401) return setLocked(true); // it may have come before anyone listened
      const readiness = error.type === "not_ready" ? await rest.readiness().catch(() => null) : null;
      const becameReady = readiness && readiness.waiting_for === undefined;
      if (!known.current && !becameReady) setWaiting(readiness || { error });
      if (readiness?.status !== "failed") again.current = setTimeout(open, readiness ? READY_POLL_MS : GONE_POLL_MS);
    }
  }

  useEffect(() => {
    rest.signedOut.tell = () => setLocked(true);
    const show = () => {
      setPlace(here());
      open(); // another tab or a command may have changed the books
    };
    window.addEventListener("popstate", () => {
      show();
      scrollBack();
    });
    navigation.go = (path, { replace = false } = {}) => {
      if (!replace) history.replaceState({ y: window.scrollY }, "");
      history[replace ? "replaceState" : "pushState"](null, "", BASE + path);
      if (replace) return setPlace(here());
      show();
      window.scrollTo(0, 0);
      document.getElementById("main").focus({ preventScroll: true }); // what had the focus may be gone
    };
    open();
  }, []);

  const speak = async (language) => {
    coalesce.remember("lang", language);
    document.documentElement.lang = LANGUAGES[language][0];
    await load();
    setLook(language);
  };
  const paint = (theme) => {
    coalesce.remember("theme", theme);
    document.documentElement.dataset.theme = theme;
    setLook(theme);
  };
  const signedIn = () => {
    setLocked(false);
    open();
  };
  const { view, View, values } = place;
  const book = site?.documents.find((one) => one.id === values.id);
  document.title = `${book ? book.title : t(view ? `nav.${view}` : "missing.title")} · Coalesce`;
  return html`<a class="skip" href=${view === "ask" ? "#desk" : "#main"}>${t("skip")}</a>
    <${Head} view=${view} site=${site} speak=${speak} paint=${paint} />
    <main class=${`view ${view}`} id="main" tabindex="-1">
      ${waiting ? html`<${Waiting} on=${waiting} />` : site && (view ? html`<${View} site=${site} ...${values} />` : html`<${Missing} />`)}
    </main>
    ${locked && html`<${Login} onDone=${signedIn} />`}`;
}

/** Back to where the reader left a view, as it is drawn again; until they do something. */
function scrollBack() {
  const { y } = history.state || {};
  if (y === undefined) return;
  const drawn = new ResizeObserver(() => window.scrollTo(0, y));
  drawn.observe(document.getElementById("main"));
  for (const act of ["wheel", "pointerdown", "keydown"]) window.addEventListener(act, () => drawn.disconnect(), { once: true });
  setTimeout(() => drawn.disconnect(), SETTLED_MS);
}

function here() {
  const path = location.pathname.slice(BASE.length);
  for (const [pattern, view, fetchView] of ROUTES) {
    const found = pattern.exec(path);
    if (found) return { view, View: lazily(pattern, fetchView), values: { id: decoded(found.groups?.id), query: location.search } };
  }
  return { view: "", values: {} };
}

/** A part of an address; one that no address of ours can have stays as it is, and nothing is found by it. */
function decoded(part) {
  try {
    return part && decodeURIComponent(part);
  } catch {
    return part;
  }
}

const lazy = new Map();

/** A view whose module is fetched when its address is first seen. */
function lazily(pattern, fetchView) {
  if (!lazy.has(pattern)) {
    const coming = fetchView();
    coming.catch(() => lazy.delete(pattern)); // the next time it is tried again
    lazy.set(pattern, (values) => {
      const [View, setView] = useState(null);
      const [problem, setProblem] = useState(null);
      useEffect(() => {
        coming.then((found) => setView(() => found), () => setProblem({ type: "old_page" }));
      }, []);
      if (problem) return html`<${Problem} error=${problem} />`;
      return View && html`<${View} ...${values} />`;
    });
  }
  return lazy.get(pattern);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href]");
  const plain = !(event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || event.button);
  if (!link || !plain || link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
  if (link.hash) return;
  event.preventDefault();
  navigation.go(link.pathname.slice(BASE.length) + link.search);
});

function Head({ view, site, speak, paint }) {
  const theme = document.documentElement.dataset.theme;
  const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  const listed = [...NAVIGATION, ...(site && !site.session.learner ? NOT_FOR_LEARNERS : [])];
  const signOut = async () => {
    await rest.signOut();
    location.assign(BASE);
  };
  return html`<header class="head">
    <a class="brand" href=${BASE} aria-label="Coalesce"><${Icon} name="logo" size="26" /><span>Coalesce</span></a>
    <nav class="views" aria-label=${t("nav.label")}>${listed.map((name) => html`
      <a href=${BASE + (name === "ask" ? "" : name)} aria-current=${name === view ? "page" : undefined}>${t(`nav.${name}`)}</a>`)}</nav>
    <div class="head-tools">
      ${site?.session.asks_for_keys && html`<${Button} kind="quiet" onClick=${signOut}>${t("sign_out")}<//>`}
      <${Select} id="language" aria-label=${t("language")} value=${document.documentElement.lang.slice(0, 2)} onChange=${speak}
        options=${Object.entries(LANGUAGES).map(([key, [, name]]) => [key, name])} />
      <${Button} id="theme" kind="quiet" icon="sun" label=${t(`theme.${theme}`)} onClick=${() => paint(next)} />
    </div>
  </header>`;
}

function Waiting({ on }) {
  if (on.status === "failed") return html`<${Problem} error=${{ ...on.error, type: "" }} />`;
  if (!on.waiting_for && on.error.type !== "unreachable") return html`<${Problem} error=${on.error} />`;
  const title = on.waiting_for ? t("waiting.title") : t("waiting.gone");
  const counted = on.total ? ` (${on.done} / ${on.total})` : "";
  return html`<section class="empty" role="status"><h1>${title}</h1>
    <p>${on.waiting_for ? either(`waiting.${on.waiting_for}`, on.waiting_for) + counted : said(on.error)}</p>
    <${Progress} label=${title} done=${on.done} most=${on.total} /></section>`;
}

/** Who came to sign in goes on to what they asked for, on this server. */
function SignedIn({ query }) {
  const wanted = URL.parse(new URLSearchParams(query).get("next") || BASE, location.origin);
  useEffect(() => location.replace(wanted?.origin === location.origin ? wanted : BASE), []);
}

/** Over the view, so that what was typed in it is there afterwards. */
function Login({ onDone }) {
  const [problem, setProblem] = useState(null);
  const signIn = async (event) => {
    event.preventDefault();
    try {
      await rest.signIn(event.target.elements.key.value);
      onDone();
    } catch (error) {
      setProblem(error);
    }
  };
  return html`<${Dialog} label=${t("login.title")}><form onSubmit=${signIn}>
    <h1>${t("login.title")}</h1><p class="soft">${t("login.lead")}</p>
    <${Field} label=${t("settings.keys")}><input class="box" name="key" type="password" autocomplete="current-password" required autofocus /><//>
    <${Button} kind="primary" type="submit">${t("login.open")}<//>
    ${problem && html`<${Problem} error=${problem} />`}
  </form><//>`;
}

// An error of the page itself: said, and nothing that was typed is lost.
window.addEventListener("unhandledrejection", (event) => {
  if (event.reason?.name !== "AbortError") toast(event.reason?.type ? said(event.reason) : t("failed.page"), { bad: true });
});

first = facts();
first.catch(() => {}); // `open` hears of it
here(); // its view is on the way
await load();
render(html`<${App} />`, document.getElementById("app"));
