// Preact, with templates in place of JSX.
import { h, Fragment, render } from "preact";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";

export const html = htm.bind(h);
/** Asks whenever `deps` change; of answers that come out of order only the newest counts. */
export function useFetched(ask, onFound, deps, onFailed = () => {}) {
  useEffect(() => {
    let newest = true;
    ask().then((found) => newest && onFound(found), (error) => newest && onFailed(error));
    return () => {
      newest = false;
    };
  }, deps);
}

export { h, Fragment, render, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState };
