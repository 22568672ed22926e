// Addresses of the page.

/** Where the page is on its server. */
export const BASE = "/";

/** Moves to another address of the page: `go("c/…")`; set by app.js. */
export const navigation = { go: () => {} };

/** A book, or a place in it: `part`, `chapter`, or `node` with its `quote` and `page`. */
export function bookPath(id, place = {}) {
  const given = Object.entries(place).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return `${BASE}book/${encodeURIComponent(id)}${given.length ? "?" : ""}${new URLSearchParams(given)}`;
}
