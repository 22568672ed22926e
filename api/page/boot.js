// Runs before anything is drawn: the reader's language and colours, kept in cookies.
"use strict";
const files = new URL(".", document.currentScript.src);
window.coalesce = {
  /** The texts of a language, and the program's messages in it; those of the first are on their way before the modules. */
  texts: (language) => Promise.all([`${language}.json`, ...(language === "en" ? [] : [`messages.${language}.json`])]
    .map((name) => fetch(new URL(name, files)).then((reply) => reply.json()))),
  /** What every view asks for first, by its address; on its way too. */
  begun: new Map(["/v1/session", "/v1/documents", "/readyz"].map((path) => [path, fetch(path)])),
  cookie(name) {
    const found = document.cookie.split("; ").find((one) => one.startsWith(`coalesce_${name}=`));
    return found ? decodeURIComponent(found.split("=")[1]) : "";
  },
  remember(name, value) {
    document.cookie = `coalesce_${name}=${encodeURIComponent(value)};path=/;max-age=31536000;samesite=lax`;
  },
};
const wanted = [coalesce.cookie("lang"), ...navigator.languages].map((one) => one.slice(0, 2).toLowerCase());
document.documentElement.lang = { en: "en-US", zh: "zh-CN" }[wanted.find((one) => one === "en" || one === "zh")] || "en-US";
for (const reply of coalesce.begun.values()) reply.catch(() => {}); // who waits for it hears of it
coalesce.first = coalesce.texts(document.documentElement.lang.slice(0, 2));
document.documentElement.dataset.theme = coalesce.cookie("theme") || "auto";
