// What the page does without asking the server. No request leaves this machine.
"use strict";
window.coalesce = (() => {
  let opener = null;

  const question = () => document.getElementById("question");

  function prefer(name, value) {
    document.cookie = `coalesce_${name}=${encodeURIComponent(value)};path=/;max-age=31536000;samesite=lax`;
    location.reload();
  }

  function sendOnEnter(event, emit) {
    // An input method's own Enter chooses characters; Shift+Enter is a new line.
    if (event.isComposing || event.keyCode === 229 || event.shiftKey) return;
    event.preventDefault();
    if (event.target.value.trim()) emit(event.target.value);
  }

  // The box is emptied at once, so that a second Enter has nothing to send.
  function send(emit) {
    const text = question().value;
    if (!text.trim()) return;
    question().value = "";
    emit(text);
  }

  function restoreQuestion(text) {
    if (question() && !question().value) question().value = text;
  }

  function editQuestion(text) {
    question().value = text;
    question().focus();
  }

  function remember(element) {
    opener = element;
    document.querySelectorAll(".cite.open").forEach((other) => other.classList.remove("open"));
    if (element.classList.contains("cite")) element.classList.add("open");
  }

  function returnFocus() {
    document.querySelectorAll(".cite.open").forEach((other) => other.classList.remove("open"));
    if (opener && opener.isConnected) opener.focus();
  }

  // Vue draws in its own next step, which comes late on a busy machine: looks for the element for ten seconds.
  function whenDrawn(find, act, tries = 400) {
    setTimeout(() => {
      const element = find();
      if (element) act(element);
      else if (tries) whenDrawn(find, act, tries - 1);
    }, 25);
  }

  function showSource(textId) {
    whenDrawn(() => document.getElementById(textId), (text) => {
      const panel = document.getElementById("source");
      panel.focus({ preventScroll: true });
      const mark = text.querySelector("mark");
      panel.scrollTop = 0;
      if (mark && mark.offsetTop > panel.clientHeight * 0.6) panel.scrollTop = mark.offsetTop - panel.clientHeight / 3;
    });
  }

  function showMark() {
    whenDrawn(() => document.querySelector(".book-text mark"), (mark) => mark.scrollIntoView({ block: "center" }));
  }

  const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

  function reveal(id) {
    whenDrawn(() => document.getElementById(id), (element) => {
      element.scrollIntoView({ block: "start", behavior: calm() ? "auto" : "smooth" });
    });
  }

  function showLastTurn() {
    whenDrawn(() => [...document.querySelectorAll(".turn")].pop(), (turn) => turn.scrollIntoView({ block: "start" }));
  }

  function toggleList(button) {
    const shown = document.getElementById("conversations").classList.toggle("shown");
    button.setAttribute("aria-expanded", String(shown));
  }

  // The button behind a long question says what its next press does.
  function showWhole(button) {
    const whole = button.previousElementSibling.classList.toggle("whole");
    button.setAttribute("aria-expanded", String(whole));
    const said = button.querySelector("span");
    [said.textContent, button.dataset.other] = [button.dataset.other, said.textContent];
  }

  function openDialog(id) {
    whenDrawn(() => document.getElementById(id), (dialog) => {
      if (!dialog.open) dialog.showModal();
      dialog.querySelector("[autofocus]")?.focus();
    });
  }

  async function copy(text) {
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

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    await copy(button.dataset.copy);
    const said = button.getAttribute("aria-label");
    button.classList.add("done");
    button.setAttribute("aria-label", button.dataset.copied);
    setTimeout(() => {
      button.classList.remove("done");
      button.setAttribute("aria-label", said);
    }, 1600);
  });

  document.addEventListener("keydown", (event) => {
    const box = question();
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName || "");
    if (event.key === "/" && !typing && box && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      box.focus();
    }
    if (!typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      const target = document.querySelector(`[data-key="${CSS.escape(event.key)}"]:not([disabled])`);
      if (target && !document.querySelector("dialog[open]")) {
        event.preventDefault();
        target.click();
      }
    }
  });

  // --- formulas: KaTeX is fetched from this server when the first one is seen
  let katexState = "none";
  const drawn = new Map();

  function loadKatex() {
    if (katexState !== "none") return;
    katexState = "loading";
    const base = "/assets/katex/";
    document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href: base + "katex.min.css" }));
    const script = Object.assign(document.createElement("script"), { src: base + "katex.min.js" });
    script.onload = () => {
      katexState = "ready";
      drawFormulas();
    };
    document.head.append(script);
  }

  function drawFormulas() {
    const waiting = document.querySelectorAll(".formula:not([data-drawn])");
    if (!waiting.length) return;
    if (katexState !== "ready") return loadKatex();
    for (const element of waiting) {
      const display = element.classList.contains("display");
      const key = (display ? "D" : "I") + element.textContent;
      if (!drawn.has(key)) {
        // Untrusted text: no links, no included files, bounded expansion; a broken formula stays as it is written.
        drawn.set(key, katex.renderToString(element.textContent, {
          displayMode: display, throwOnError: false, trust: false, maxSize: 20, maxExpand: 200, strict: "ignore",
        }));
      }
      element.dataset.drawn = "yes";
      element.innerHTML = drawn.get(key);
    }
  }

  // The header that asks for errors in the page's language.
  function language() {
    return { "X-Coalesce-Language": document.documentElement.lang.slice(0, 2) };
  }

  // An error of the server as whole sentences.
  function sentences(error) {
    const stop = (text) => (/[\u3400-\u9fff]/.test(text) ? "。" : ".");
    const sentence = (text) =>
      (/^(?!coalesce )[a-z]+ /.test(text) ? text[0].toUpperCase() + text.slice(1) : text) +
      (/[.?!…。]$/.test(text) ? "" : stop(text));
    return [error.message, error.hint].filter(Boolean).map(sentence).join(" ").replaceAll("。 ", "。");
  }

  // --- uploads go to the same call as any program's
  const LISTS = /(^|\/)(_toc|_quarto|_bookdown|mkdocs|toc)\.yml$/;

  function upload(input, texts) {
    sort([...input.files].map((file) => [file, file.webkitRelativePath || file.name]), texts);
    input.value = "";
  }

  // The text files of a folder are one book; every other book that lies in it is one of its own.
  function sort(files, texts) {
    const list = document.getElementById("uploads");
    const ends = (path, endings) => endings.some((ending) => path.toLowerCase().endsWith(ending));
    const folders = new Map();
    for (const [file, path] of files) {
      const top = path.includes("/") ? path.split("/")[0] : "";
      if (!top) sendBook(file.name, [[file, path]], list, texts);
      else if (/(^|\/)\./.test(path)) continue;
      else if (ends(path, texts.chapters) || LISTS.test(path)) folders.set(top, [...(folders.get(top) || []), [file, path]]);
      else if (ends(path, texts.books)) sendBook(file.name, [[file, file.name]], list, texts);
    }
    for (const [name, parts] of folders) {
      if (parts.some(([, path]) => ends(path, texts.chapters))) sendBook(name, parts, list, texts);
    }
  }

  async function drop(items, texts) {
    const entries = [...items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
    const files = [];
    const walk = async (entry) => {
      if (entry.isFile) {
        const file = await new Promise((done, failed) => entry.file(done, failed));
        return void files.push([file, entry.fullPath.replace(/^\//, "")]);
      }
      const reader = entry.createReader();
      for (;;) {  // it gives a hundred at a time
        const some = await new Promise((done, failed) => reader.readEntries(done, failed));
        if (!some.length) return undefined;
        for (const one of some) await walk(one);
      }
    };
    for (const entry of entries) await walk(entry);
    sort(files, texts);
  }

  function sendBook(title, parts, list, texts) {
    const row = Object.assign(document.createElement("div"), { className: "upload", role: "status" });
    const name = Object.assign(document.createElement("span"), { className: "upload-name", textContent: title });
    const state = Object.assign(document.createElement("span"), { className: "upload-state", textContent: texts.sending });
    const bar = Object.assign(document.createElement("progress"), { className: "bar", max: 1, value: 0 });
    bar.setAttribute("aria-label", title);
    const cancel = Object.assign(document.createElement("button"), {
      type: "button", className: "button quiet", textContent: texts.cancel,
    });
    row.append(name, state, bar, cancel);
    list.append(row);
    const request = new XMLHttpRequest();
    const body = new FormData();
    for (const [file, path] of parts) body.append("file", file, path);
    const failed = (message) => {
      state.textContent = message;
      row.classList.add("failed");
      bar.remove();
      cancel.textContent = texts.dismiss;
      cancel.onclick = () => row.remove();
    };
    cancel.onclick = () => request.abort();
    request.upload.onprogress = (event) => {
      if (event.lengthComputable) bar.value = event.loaded / event.total;
    };
    request.onload = () => {
      if (request.status === 202) return row.remove();
      if (request.status === 200) {
        state.textContent = texts.there;
        bar.remove();
        cancel.textContent = texts.dismiss;
        cancel.onclick = () => row.remove();
        return undefined;
      }
      let said = texts.failed;
      try {
        const error = JSON.parse(request.responseText).error;
        said = sentences(error);
      } catch { /* not one of the server's own errors */ }
      return failed(said);
    };
    request.onerror = () => failed(texts.failed);
    request.onabort = () => row.remove();
    request.open("POST", "/v1/documents");
    for (const [name, value] of Object.entries(language())) request.setRequestHeader(name, value);
    request.send(body);
  }

  // --- a question file goes to the same call as any program's; the page comes again with it chosen
  async function addQuestions(input) {
    const file = input.files[0];
    const problem = document.getElementById("question-file-problem");
    if (!file || !problem) return;
    input.value = "";
    const body = new FormData();
    body.append("file", file);
    try {
      const reply = await fetch("/v1/questions/files", { method: "POST", body, headers: language() });
      const said = await reply.json();
      if (reply.ok) return void location.assign(`/study?file=${encodeURIComponent(said.name)}`);
      problem.textContent = sentences(said.error);
    } catch {
      problem.textContent = problem.dataset.failed;
    }
    problem.hidden = false;
  }

  // What is drawn anew takes the focus with it: the reader's place is kept.
  function focusOn(selector) {
    whenDrawn(() => document.querySelector(selector), (element) => element.focus({ preventScroll: true }));
  }

  // --- what is typed into a `data-draft` box is there again when the page comes again, as after a restart of the server
  const DRAFT = "coalesce draft ";

  function keepDraft(box) {
    try {
      if (box.value) sessionStorage.setItem(DRAFT + box.dataset.draft, box.value);
      else sessionStorage.removeItem(DRAFT + box.dataset.draft);
    } catch { /* longer than the browser keeps, or it may keep nothing */ }
  }

  function restoreDrafts() {
    let kept = [];
    try {
      kept = Object.entries(sessionStorage).filter(([key]) => key.startsWith(DRAFT));
    } catch { /* it may keep nothing */ }
    if (!kept.length) return;
    const texts = Object.fromEntries(kept);
    whenDrawn(() => document.querySelector("[data-draft]"), () => {
      for (const box of document.querySelectorAll("[data-draft]")) {
        box.value ||= texts[DRAFT + box.dataset.draft] || "";
        if (box.value) box.closest("details").open = true;
      }
    });
  }

  function dropDrafts() {
    for (const box of document.querySelectorAll("[data-draft]")) {
      box.value = "";
      keepDraft(box);
    }
  }

  document.addEventListener("input", (event) => {
    if (event.target.dataset?.draft) keepDraft(event.target);
  });

  document.addEventListener("DOMContentLoaded", () => {
    restoreDrafts();
    new MutationObserver(drawFormulas).observe(document.body, { childList: true, subtree: true });
    drawFormulas();
    for (const type of ["dragover", "drop"]) {
      document.addEventListener(type, (event) => {
        const zone = event.target.closest?.(".drop");
        if (!zone) return;
        event.preventDefault();
        zone.classList.toggle("over", type === "dragover");
        if (type === "drop") drop(event.dataTransfer.items, JSON.parse(zone.dataset.texts));
      });
    }
    document.addEventListener("dragleave", (event) => event.target.closest?.(".drop")?.classList.remove("over"));
  });

  return { prefer, send, sendOnEnter, restoreQuestion, editQuestion, remember, returnFocus, showSource, showMark, reveal, showLastTurn, toggleList, showWhole, openDialog, upload, addQuestions, focusOn, dropDrafts };
})();
