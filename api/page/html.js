// Preact, with templates in place of JSX.
import { h, render } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";

export const html = htm.bind(h);
/**
 * `[found, problem, again]`: asks whenever `deps` change, and at `again()`; of answers that come out of order only the
 * newest counts. What was found stays until something else is.
 */
export function useFetched(ask, deps) {
  const [{ found, problem }, set] = useState({});
  const [times, setTimes] = useState(0);
  useEffect(() => {
    let newest = true;
    ask().then((now) => newest && set({ found: now }), (error) => newest && set((last) => ({ ...last, problem: error })));
    return () => {
      newest = false;
    };
  }, [...deps, times]);
  return [found, problem, () => setTimes((n) => n + 1)];
}

export { h, render, useEffect, useLayoutEffect, useMemo, useRef, useState };
