// The conversations by day: search, rename, export, delete.
import { BASE, navigation } from "../address.js";
import { Button, Icon, Problem, askForText, confirm } from "../controls.js";
import { html, useFetched, useRef, useState } from "../html.js";
import * as rest from "../rest.js";
import { count, dateTime, t } from "../texts.js";

const SHOWN = 200;
const SEARCH_AFTER_MS = 150;
const MOST_IN_A_NAME = 200;

/** `current` is the one that is open; the list is fetched again whenever `asked` changes. */
export function Conversations({ site, current, asked }) {
  const [search, setSearch] = useState("");
  const [shown, setShown] = useState(false); // on a phone it is folded away until it is asked for
  const [kept, problem, refresh] = useFetched(() => rest.conversations(search), [search, asked, current]);
  const timer = useRef(0);
  const typed = ({ target }) => {
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setSearch(target.value), SEARCH_AFTER_MS);
  };
  const own = (kept || []).filter((one) => one.owner === null || one.owner === site.session.learner);
  const removeAll = () => confirm({
    question: count("conversations.delete_all_question", own.length), detail: t("conversations.delete_all_detail"), yes: t("delete"),
    onYes: async () => {
      await rest.deleteConversations();
      navigation.go("");
      refresh();
    },
  });
  const days = Map.groupBy((kept || []).slice(0, SHOWN), (one) => dayOf(one.updated_at));
  return html`<aside class=${`conversations${shown ? " shown" : ""}`} aria-label=${t("conversations.title")} id="conversations">
    <div class="conversations-head"><h2>${t("conversations.title")}</h2>
      <${Button} kind="quiet phone-only" icon="list" label=${t("conversations.show")} aria-expanded=${String(shown)}
        aria-controls="conversations-items" onClick=${() => setShown(!shown)} />
      <a class="button quiet" href=${BASE} aria-label=${t("conversations.new")} title=${t("conversations.new")}><span class="plus" aria-hidden="true">+</span></a>
    </div>
    <div class="conversations-items" id="conversations-items">
      <input class="box" type="search" maxlength="200" autocomplete="off" placeholder=${t("conversations.search")}
        aria-label=${t("conversations.search")} onInput=${typed} />
      ${problem && html`<${Problem} error=${problem} />`}
      ${kept && !kept.length && html`<p class="soft">${t(search ? "conversations.not_found" : "conversations.none")}</p>`}
      ${[...days].map(([day, listed]) => html`<h3 class="day">${day}</h3>
        <ul>${listed.map((one) => html`<${Row} key=${one.id} conversation=${one} mine=${one.id === current} refresh=${refresh} />`)}</ul>`)}
      ${own.length > 0 && !search && html`<${Button} kind="quiet" onClick=${removeAll}>${t("conversations.delete_all")}<//>`}
    </div>
  </aside>`;
}

function Row({ conversation, mine, refresh }) {
  const title = conversation.title || t("conversations.untitled");
  const rename = () => askForText({
    label: t("conversations.rename"), field: t("conversations.name"), value: conversation.title, most: MOST_IN_A_NAME,
    onSave: async (name) => {
      await rest.renameConversation(conversation.id, name);
      refresh();
    },
  });
  const remove = () => confirm({
    question: t("conversations.delete_question", { title }), detail: count("conversations.delete_detail", conversation.num_answers), yes: t("delete"),
    onYes: async () => {
      await rest.deleteConversation(conversation.id);
      navigation.go("");
      refresh();
    },
  });
  return html`<li class=${mine ? "conversation current" : "conversation"}>
    <a href=${`${BASE}c/${conversation.id}`} aria-current=${mine ? "page" : undefined}>
      <span class="name" dir="auto">${title}</span>${conversation.owner && html`<span class="soft" dir="auto">${conversation.owner}</span>`}<span class="when">${dateTime(conversation.updated_at).slice(11)}</span></a>
    ${mine && html`<span class="conversation-tools">
      <${Button} kind="quiet" icon="edit" label=${t("conversations.rename")} onClick=${rename} />
      <a class="button quiet" href=${rest.exportPath(conversation.id)} download title=${t("conversations.export")} aria-label=${t("conversations.export")}><${Icon} name="download" /></a>
      <${Button} kind="quiet" icon="trash" label=${t("conversations.delete")} onClick=${remove} />
    </span>`}
  </li>`;
}

/** The day of a moment, by the reader's clock. */
function dayOf(moment) {
  const midnight = (date) => new Date(date.getFullYear(), date.getMonth(), date.getDate());
  const then = midnight(new Date(moment));
  const days = Math.round((midnight(new Date()) - then) / 86_400_000);
  if (days <= 1) return t(days === 1 ? "conversations.yesterday" : "conversations.today");
  return dateTime(moment).slice(0, 10);
}
