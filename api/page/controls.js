// Small pieces that every view is made of.
import { BASE } from "./address.js";
import { h, html, render, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { said, t } from "./texts.js";

const SHAPES = {
  send: "M5 12h14M13 6l6 6-6 6",
  stop: "M7 7h10v10h-10z",
  new: "M12 5v14M5 12h14",
  edit: "M4 20l4-1L19 8l-3-3L5 16z",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10.5 11v5M13.5 11v5",
  copy: "M9 11a2 2 0 0 1 2-2h7a2 2 0 0 1 2 2v7a2 2 0 0 1-2 2h-7a2 2 0 0 1-2-2zM5 15V5a1 1 0 0 1 1-1h9",
  again: "M5 12a7 7 0 1 1 2.2 5.1M5 12V7m0 5h5",
  up: "M7 11v9H4v-9zM7 11l4-7c1.5 0 2.5 1 2 3l-.7 3H19c1 0 1.7 1 1.4 2l-1.6 6.5c-.2.9-.8 1.5-1.8 1.5H7",
  down: "M17 13V4h3v9zM17 13l-4 7c-1.5 0-2.5-1-2-3l.7-3H5c-1 0-1.7-1-1.4-2l1.6-6.5C5.4 4.6 6 4 7 4h10",
  close: "M6 6l12 12M18 6L6 18",
  filter: "M4 6h16M7 12h10M10 18h4",
  list: "M4 6h16M4 12h16M4 18h10",
  sun: "M8 12a4 4 0 1 0 8 0 4 4 0 1 0-8 0M12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.6L7 7M17 17l1.4 1.4",
  download: "M12 5v11M7.5 11.5L12 16l4.5-4.5M5 19h14",
  back: "M19 12H5M11 6l-6 6 6 6",
  search: "M5 11a6 6 0 1 0 12 0 6 6 0 1 0-12 0M16 16l4 4",
  logo: "M4 6c3.3-1.3 5.8-.9 8 1.1 2.2-2 4.7-2.4 8-1.1v12c-3.3-1.3-5.8-.9-8 1.1-2.2-2-4.7-2.4-8-1.1zM12 7.1v12",
};

/** Of the options of a question, and of answers side by side. */
export const LETTERS = "ABCDEFGHIJ";

/** For the eye only. */
export function Icon({ name, size = 18 }) {
  return html`<span class="icon" aria-hidden="true"><svg viewBox="0 0 24 24" width=${size} height=${size} focusable="false"
    class=${name === "stop" ? "line filled" : "line"}><path d=${SHAPES[name]} /></svg></span>`;
}

/** Kinds: primary, quiet, danger, round. `label` names a button that shows only its icon. */
export function Button({ kind = "", icon, label, children, ...more }) {
  return html`<button type="button" class=${`button ${kind}`} aria-label=${label} title=${label} ...${more}>
    ${icon && html`<${Icon} name=${icon} />`}${children && html`<span>${children}</span>`}</button>`;
}

/** A label around its control. */
export function Field({ label, children }) {
  return html`<label class="field"><span class="field-label">${label}</span>${children}</label>`;
}

/** What there is to do where there is nothing yet. */
export function Empty({ title, text, heading = "h2", children }) {
  return html`<section class="empty"><${heading}>${title}<//><p>${text}</p>${children}</section>`;
}

/** An address that the page, or the server, has nothing for. */
export const Missing = () => html`<${Empty} heading="h1" title=${t("missing.title")} text=${t("missing.text")}>
  <a class="button primary" href=${BASE}>${t("missing.back")}</a><//>`;

/** What went wrong and what helps. */
export const Problem = ({ error }) => html`<p class="problem" role="alert">${said(error)}</p>`;

/** A job, an upload or the preparation: how far it is. Without `most` it only moves. */
export const Progress = ({ label, done, most }) => html`<progress class="bar" aria-label=${label} max=${most || undefined} value=${most ? done : undefined} />`;

/** Opens over the page, with the focus inside; `onClose` comes with Escape too. Without it nothing but an act closes it. */
export function Dialog({ label, onClose, children }) {
  const dialog = useRef();
  useEffect(() => {
    if (!dialog.current.open) dialog.current.showModal();
    dialog.current.querySelector("[autofocus]")?.focus();
  }, []);
  return html`<dialog ref=${dialog} class="dialog" aria-label=${label} onClose=${onClose || (() => dialog.current?.showModal())}
    onCancel=${onClose ? undefined : (event) => event.preventDefault()}>${children}</dialog>`;
}

function over(drawn) {
  const place = document.body.appendChild(document.createElement("div"));
  const close = () => {
    render(null, place);
    place.remove();
  };
  render(drawn(close), place);
}

/** Asks before something is done that cannot be undone; the harmless answer has the focus. */
export function confirm({ question, detail, yes, no = t("keep"), onYes }) {
  over((close) => html`<${Dialog} label=${question} onClose=${close}>
    <h2>${question}</h2>${detail && html`<p>${detail}</p>`}
    <div class="row end">
      <${Button} autofocus onClick=${close}>${no}<//>
      <${Button} kind="danger" onClick=${() => { close(); attempt(onYes); }}>${yes}<//>
    </div><//>`);
}

/** Asks for a line of text; Enter saves it. */
export function askForText({ label, field, value, most, onSave }) {
  over((close) => {
    const save = (event) => {
      event.preventDefault();
      close();
      attempt(() => onSave(event.target.elements.text.value));
    };
    return html`<${Dialog} label=${label} onClose=${close}><form onSubmit=${save}>
      <${Field} label=${field}><input class="box" name="text" defaultValue=${value} maxlength=${most} autocomplete="off" autofocus /><//>
      <div class="row end"><${Button} onClick=${close}>${t("cancel")}<//><${Button} kind="primary" type="submit">${t("save")}<//></div>
    </form><//>`;
  });
}

/** Says something in passing, once at a time. */
export function toast(text, { bad = false } = {}) {
  const place = document.getElementById("toasts");
  if ([...place.children].some((one) => one.textContent === text)) return;
  const note = Object.assign(document.createElement("p"), { className: bad ? "toast bad" : "toast", textContent: text });
  note.setAttribute("role", bad ? "alert" : "status");
  place.append(note);
  note.addEventListener("click", () => note.remove());
  setTimeout(() => note.remove(), bad ? 10_000 : 3500);
}

/** Does something and says what went wrong with it; gives undefined then. */
export async function attempt(act) {
  try {
    return await act();
  } catch (error) {
    if (!error.type) throw error;
    if (error.status !== 401) toast(said(error), { bad: true }); // a dialog asks for the key
    return undefined;
  }
}

/** Copies at a press, and says so for a moment. */
export function CopyButton({ text, label, kind = "quiet", children }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await copyText(text());
    setDone(true);
    setTimeout(() => setDone(false), 1600);
  };
  return html`<${Button} kind=${done ? `${kind} done` : kind} icon="copy" label=${done ? t("copied") : label} onClick=${copy}>${children}<//>`;
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // The clipboard needs a secure context: another machine's plain http has none.
    const box = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  }
}

/** What was typed and not sent yet, kept until the page comes again; nothing where the browser keeps nothing. */
export const drafts = {
  get(name) {
    try {
      return sessionStorage.getItem(`coalesce draft ${name}`) || "";
    } catch {
      return "";
    }
  },
  keep(name, text) {
    try {
      sessionStorage.setItem(`coalesce draft ${name}`, text);
    } catch { /* longer than it keeps, or it keeps nothing */ }
  },
};

export const Check = ({ label, checked, onChange, ...more }) => html`<label class="check">
  <input type="checkbox" checked=${checked} onChange=${(event) => onChange(event.target.checked)} ...${more} /><span>${label}</span></label>`;

/** A table that a phone stacks; `label` names it. */
export const Table = ({ label, heads, children }) => html`<div class="table-box stacked" tabindex="0" role="region" aria-label=${label}><table>
  <thead><tr>${heads.map((text) => html`<th scope="col">${text}</th>`)}</tr></thead><tbody>${children}</tbody></table></div>`;

export const Select = ({ options, value, onChange, ...more }) => html`<select class="box" onChange=${(event) => onChange(event.target.value)} ...${more}>
  ${options.map(([key, text]) => h("option", { value: key, selected: key === value }, text))}</select>`;

/** An input method's own Enter chooses characters; Shift+Enter is a new line. */
export function sendOnEnter(event, send) {
  if (event.key !== "Enter" || event.isComposing || event.keyCode === 229 || event.shiftKey) return;
  event.preventDefault();
  send();
}

/** Presses a key's act while nothing is typed and no dialog is open, as soon as the view is drawn: `useKeys({ u: undo })`. */
export function useKeys(acts) {
  useLayoutEffect(() => {
    const press = (event) => {
      const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName);
      const act = !typing && !event.ctrlKey && !event.metaKey && !event.altKey && acts[event.key];
      if (!act || document.querySelector("dialog[open]")) return;
      event.preventDefault();
      act();
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  });
}
