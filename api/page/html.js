// Preact, with templates in place of JSX.
import { h, Fragment, render } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";

export const html = htm.bind(h);
/**
 * `[found, problem]`: asks whenever `deps` change; of answers that come out of order only the newest counts. What was
 * found stays until something else is.
 */
export function useFetched(ask, deps, onFound = () => {}) {
  const [{ found, problem }, set] = useState({ found: null, problem: null });
  useEffect(() => {
    let newest = true;
    ask().then((now) => {
      if (!newest) return;
      onFound(now);
      set({ found: now, problem: null });
    }, (error) => newest && set((last) => ({ ...last, problem: error })));
    return () => {
      newest = false;
    };
  }, deps);
  return [found, problem];
}

export { h, Fragment, render, useEffect, useLayoutEffect, useMemo, useRef, useState };
