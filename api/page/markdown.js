// Markdown and passages as elements. Nothing is ever read as HTML: markdown-it only parses, and what it found is drawn
// here, element by element, so that a text of a book, a model or a reader stays text.
import { h, html, useEffect, useMemo, useRef } from "./html.js";
import { t } from "./texts.js";
import MarkdownIt from "./vendor/markdown-it.js";

const TAGS = new Set("p h1 h2 h3 h4 h5 h6 ul ol li blockquote table thead tbody tr th td em strong s a hr br".split(" "));
const MARKER = /\[(\d{1,3})\](?!\()/y;
const BARE_NUMBER = /^\W*\d+\W*$/;
const IDENTIFIER = /__[a-z][a-z0-9_]*__(?!\w)/y;
const ENVIRONMENT = /^\\begin\{((?:align|aligned|equation|gather|multline|eqnarray|cases)\*?)\}/;

const parser = new MarkdownIt("commonmark", { html: false }).enable(["table", "strikethrough"]).disable(["image"]);
parser.validateLink = (url) => /^https?:\/\//.test(url);
parser.inline.ruler.before("escape", "formula", formulaInLine);
parser.inline.ruler.before("link", "citation", citation);
parser.inline.ruler.before("emphasis", "identifier", identifier);
parser.block.ruler.before("fence", "formula", formulaInBlock, { alt: ["paragraph"] });

function matchAt(pattern, state) {
  pattern.lastIndex = state.pos;
  return pattern.exec(state.src);
}

function formulaInLine(state, silent) {
  const rest = state.src.slice(state.pos);
  const found = /^\\\((.+?)\\\)|^\\\[(.+?)\\\]|^\$\$(.+?)\$\$/s.exec(rest)
    || (!/[\w$\\]/.test(state.src[state.pos - 1] || "") && /^\$((?!\s)(?:\\.|[^\\$])+?(?<!\s))\$(?![\d$])/s.exec(rest));
  if (!found) return false;
  if (!silent) {
    const token = state.push("formula", "", 0);
    token.content = (found[1] ?? found[2] ?? found[3]).trim();
    token.meta = { display: rest.startsWith("\\[") || rest.startsWith("$$") };
  }
  state.pos += found[0].length;
  return true;
}

function formulaInBlock(state, start, end, silent) {
  const line = (n) => state.src.slice(state.bMarks[n] + state.tShift[n], state.eMarks[n]).trim();
  const first = line(start);
  const environment = ENVIRONMENT.exec(first);
  const opening = environment ? "" : ["$$", "\\["].find((one) => first.startsWith(one));
  if (opening === undefined || state.sCount[start] - state.blkIndent >= 4) return false;
  const closing = environment ? `\\end{${environment[1]}}` : { $$: "$$", "\\[": "\\]" }[opening];
  let last = start;
  while (!(line(last).endsWith(closing) && (last > start || first.length >= opening.length + closing.length))) {
    last += 1;
    if (last >= end || (!line(last) && opening !== "$$")) return false;
  }
  if (silent) return true;
  const text = state.getLines(start, last + 1, state.blkIndent, false).trim();
  const token = state.push("formula", "", 0);
  token.content = (environment ? text : text.slice(2, -2)).trim();
  token.meta = { display: true };
  state.line = last + 1;
  return true;
}

/** `[2]` behind a sentence; `a[1]` is code. */
function citation(state, silent) {
  const found = matchAt(MARKER, state);
  if (!found || /[\w)]/.test(state.src[state.pos - 1] || " ")) return false;
  const marker = Number(found[1]);
  const { citations, passages, seen } = state.env;
  if (!passages || marker < 1 || marker > passages.length) return false;
  if (!silent) {
    const mine = citations.flatMap((one, index) => (one.marker === marker ? [index] : []));
    const place = seen.get(marker) || 0;
    seen.set(marker, place + 1);
    const cited = mine.length ? [mine[Math.min(place, mine.length - 1)]] : [];
    state.push("citation", "", 0).meta = { marker, cited };
  }
  state.pos += found[0].length;
  return true;
}

/** `__shared__` is a name in the books' languages, not a bold word. */
function identifier(state, silent) {
  const found = matchAt(IDENTIFIER, state);
  if (!found || /\w/.test(state.src[state.pos - 1] || " ")) return false;
  if (!silent) state.push("code_inline", "code", 0).content = found[0];
  state.pos += found[0].length;
  return true;
}

/** Of equal markers in a row the last one stays, with the citations of all; the space before the others goes too. */
function merged(tokens) {
  const kept = [];
  let last = null;
  let gone = false;
  for (const token of tokens.toReversed()) {
    if (gone && token.type === "text") token.content = token.content.trimEnd();
    gone = false;
    if (token.type === "citation") {
      if (last?.meta.marker === token.meta.marker) {
        last.meta.cited.unshift(...token.meta.cited);
        gone = true;
        continue;
      }
      last = token;
    }
    kept.push(token);
  }
  return kept.reverse();
}

/**
 * A text as elements, and `numbers`: what the reader sees for each marker, 1 for the passage that is cited first.
 * `onCite(marker, cited, element)` opens a passage; `cited` are indices of `citations`.
 */
export function draw(text, { citations = [], passages = null, onCite = null } = {}) {
  const env = { citations, passages, seen: new Map() };
  const tokens = parser.parse(text, env);
  const numbers = new Map([...env.seen.keys()].map((marker, index) => [marker, index + 1]));
  return { elements: drawn(tokens, { numbers, onCite }), numbers };
}

/** Markdown without markers: questions, notes of a book. */
export function Rich({ text, kind = "rich" }) {
  return useMemo(() => html`<div class=${kind}>${draw(text).elements}</div>`, [text, kind]);
}

function drawn(tokens, context) {
  const open = [{ token: null, children: [] }];
  for (const token of tokens) {
    if (token.nesting === 1) {
      open.push({ token, children: [] });
    } else if (token.nesting === -1) {
      const { token: opened, children } = open.pop();
      open.at(-1).children.push(...element(opened, children));
    } else {
      open.at(-1).children.push(leaf(token, context));
    }
  }
  return open[0].children;
}

function element(token, children) {
  if (token.hidden || !TAGS.has(token.tag)) return children;
  if (token.tag === "a") {
    if (BARE_NUMBER.test(words(children))) return children; // it would look like a citation
    return [h("a", { href: token.attrGet("href"), target: "_blank", rel: "noopener noreferrer" }, children)];
  }
  const side = /text-align:(\w+)/.exec(token.attrGet("style") || "");
  return [h(token.tag, { class: side ? side[1] : undefined, start: token.attrGet("start") ?? undefined }, children)];
}

const words = (node) => (Array.isArray(node) ? node.map(words).join("") : typeof node === "object" ? words(node?.props.children ?? "") : String(node));

function leaf(token, context) {
  switch (token.type) {
    case "inline": return drawn(merged(token.children), context);
    case "text": return token.content;
    case "softbreak": return "\n";
    case "hardbreak": return h("br");
    case "hr": return h("hr");
    case "code_inline": return h("code", null, token.content);
    case "formula": return html`<${Formula} tex=${token.content} display=${token.meta.display} />`;
    case "fence": case "code_block": return html`<${Listing} code=${token.content} language=${token.info.trim().split(/\s/)[0].toLowerCase()} />`;
    case "citation": {
      const { marker, cited } = token.meta;
      const shown = context.numbers.get(marker);
      return html`<button type="button" class="cite" aria-label=${t("ask.open_source", { n: shown })}
        onClick=${(event) => context.onCite?.(marker, cited, event.currentTarget)}>${shown}</button>`;
    }
    default: return token.content;
  }
}

// --- formulas: KaTeX is fetched when the first one is drawn
let katex = null;

function loadKatex() {
  katex ||= import("./vendor/katex/katex.min.js").then(() => {
    const href = new URL("./vendor/katex/katex.min.css", import.meta.url).href;
    document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href }));
    return window.katex;
  });
  return katex;
}

/** Untrusted text: no links, no included files, bounded expansion; a broken formula stays as it is written. */
export function Formula({ tex, display = false }) {
  const place = useRef();
  useEffect(() => {
    const element = place.current;
    element.textContent = tex;
    delete element.dataset.drawn;
    loadKatex().then((found) => {
      if (place.current !== element || element.textContent !== tex) return;
      found.render(tex, element, { displayMode: display, throwOnError: false, trust: false, maxSize: 20, maxExpand: 200, strict: "ignore" });
      element.dataset.drawn = "yes";
    });
  }, [tex, display]);
  return html`<span ref=${place} class=${display ? "formula display" : "formula"}></span>`;
}

// --- listings
const WORDS = {
  k: "alignas auto break case catch class const constexpr continue default delete do else enum explicit extern for friend goto if inline namespace new operator private public register restrict return sizeof static struct switch template this throw try typedef typename union using virtual volatile while and as assert async await def del elif except finally from global import in is lambda not or pass raise with yield None True False nullptr true false __global__ __device__ __host__ __shared__ __constant__ __restrict__ __managed__ __launch_bounds__ __kernel kernel __local local",
  kt: "bool char double float half int long short signed unsigned void size_t uint uint8_t uint16_t uint32_t uint64_t int8_t int16_t int32_t int64_t dim3 float2 float3 float4 int2 int3 int4 uint3 str list dict tuple set bytes cudaError_t cudaStream_t cudaEvent_t",
};
const KIND = new Map(Object.entries(WORDS).flatMap(([kind, list]) => list.split(" ").map((word) => [word, kind])));
const HASH_COMMENTS = new Set(["python", "py", "bash", "sh", "shell", "console", "yaml", "toml", "cmake", "makefile", "ruby", "r"]);
const PLAIN = new Set(["text", "txt", "plain", "output", "none"]);
const LONGEST_COLOURED = 20_000;
const pieceOf = (comment) => new RegExp(`(?<c>${comment})|(?<s>"""[\\s\\S]*?"""|"(?:\\\\.|[^"\\\\\\n])*"|'(?:\\\\.|[^'\\\\\\n])*')|(?<n>\\b\\d[\\w.]*)|(?<w>[A-Za-z_]\\w*)`, "gm");
const PIECES = { hash: pieceOf("#[^\\n]*"), slash: pieceOf("//[^\\n]*|/\\*[\\s\\S]*?\\*/|^[ \\t]*#\\w+[^\\n]*") };

/** A listing with its words coloured. */
export function Listing({ code, language = "" }) {
  const coloured = useMemo(() => colour(code, language), [code, language]);
  return html`<div class="listing"><pre tabindex="0"><code>${coloured}</code></pre></div>`;
}

function colour(code, language) {
  if (code.length > LONGEST_COLOURED || PLAIN.has(language)) return code;
  const pieces = [];
  let end = 0;
  for (const found of code.matchAll(PIECES[HASH_COMMENTS.has(language) ? "hash" : "slash"])) {
    const { c, s, n, w } = found.groups;
    const called = w && code[found.index + w.length] === "(" ? "nf" : undefined;
    const kind = c ? (c.trimStart().startsWith("#") && !HASH_COMMENTS.has(language) ? "cp" : "c") : s ? "s" : n ? "mi" : KIND.get(w) || called;
    if (!kind) continue;
    pieces.push(code.slice(end, found.index), h("span", { class: kind }, found[0]));
    end = found.index + found[0].length;
  }
  return [...pieces, code.slice(end)];
}

// --- passages: word for word, listings set as code, stretches marked
const FENCE = /^ {0,3}```([^\n`]*)\n([\s\S]*?)(?:^ {0,3}```[ \t]*$\n?|(?![\s\S]))/gm;
const FENCE_LINE = /^ {0,3}```[ \t]*([^\n`]*)$\n?/gm;
const LOOKS_LIKE_CODE = /[;{})]\s*$|^\s*(?:def|for|if|return|import|#include|@)\b/m;
const SPECIAL = /`(?<code>[^`\n]+)`|(?<![\\$\w])\$(?<formula>[^\s$](?:[^$\n]*[^\s$])?)\$(?![\d$])|^#{1,6} +(?<strong>[^\n]+)$|(?<![\w*])\*(?<em>[^\s*](?:[^*\n]*[^\s*])?)\*(?![\w*])/gm;
const CODE = /`(?<code>[^`\n]+)`/g;

/**
 * A passage with `spans` marked, each `[start, end]` in code points as the server counts. `plain`: stars, hashes and
 * dollars are text, as in books that are not written in markup.
 */
export function Passage({ text, spans = [], plain = false }) {
  return useMemo(() => {
    const marks = inUnits(text, spans);
    const pieces = [];
    let position = listingEnd(text);
    if (position) {
      const end = text.lastIndexOf("```", position);
      pieces.push(html`<pre tabindex="0"><code>${marked(text, 0, end, marks)}</code></pre>`);
    }
    FENCE.lastIndex = position;
    for (let fence = FENCE.exec(text); fence; fence = FENCE.exec(text)) {
      if (!fence[0]) break;
      const start = fence.index + fence[0].indexOf("\n") + 1;
      pieces.push(prose(text, position, fence.index, marks, plain));
      if (fence[2].trim()) pieces.push(html`<pre tabindex="0"><code>${marked(text, start, start + fence[2].length, marks)}</code></pre>`);
      position = FENCE.lastIndex;
    }
    pieces.push(prose(text, position, text.length, marks, plain));
    return html`<div class="passage">${pieces}</div>`;
  }, [text, JSON.stringify(spans), plain]);
}

/** Offsets in code points as offsets in a JavaScript string. */
function inUnits(text, spans) {
  const starts = [];
  for (let at = 0; at < text.length; at += text.codePointAt(at) > 0xffff ? 2 : 1) starts.push(at);
  starts.push(text.length);
  const clip = (n) => starts[Math.min(n, starts.length - 1)];
  return spans.map(([start, end]) => [clip(start), clip(end)]).sort(([a], [b]) => a - b);
}

/**
 * Where a listing ends that began before the passage: a long one is cut, and the cut has no opening fence. An opening
 * fence names its language in most books, a closing one never does.
 */
function listingEnd(text) {
  const [first, second] = [...text.matchAll(FENCE_LINE)];
  if (!first || first[1]) return 0;
  const opensNext = !second || Boolean(second[1]);
  return opensNext && LOOKS_LIKE_CODE.test(text.slice(0, first.index)) ? first.index + first[0].length : 0;
}

function prose(text, begin, stop, marks, plain) {
  while (begin < stop && text[begin] === "\n") begin += 1;
  while (stop > begin && text[stop - 1] === "\n") stop -= 1;
  if (begin >= stop) return null;
  const pieces = [];
  let position = begin;
  const stretch = text.slice(0, stop);
  const special = plain ? CODE : SPECIAL;
  special.lastIndex = begin;
  for (let found = special.exec(stretch); found; found = special.exec(stretch)) {
    pieces.push(...marked(text, position, found.index, marks));
    const [kind, body] = Object.entries(found.groups).find(([, value]) => value !== undefined);
    const drawnBody = kind === "formula" ? html`<${Formula} tex=${body} />` : h(kind, null, body);
    position = found.index + found[0].length;
    const inside = marks.some(([start, end]) => found.index < end && position > start);
    pieces.push(inside ? h("mark", null, drawnBody) : drawnBody);
  }
  pieces.push(...marked(text, position, stop, marks));
  return html`<div class="prose">${pieces}</div>`;
}

function marked(text, begin, stop, marks) {
  const pieces = [];
  let position = begin;
  for (const [start, end] of marks) {
    const low = Math.max(position, start);
    const high = Math.min(stop, end);
    if (low < high) {
      pieces.push(text.slice(position, low), h("mark", null, text.slice(low, high)));
      position = high;
    }
  }
  return [...pieces, text.slice(position, stop)];
}
