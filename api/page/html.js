// Preact, with templates in place of JSX.
import { h, render } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";

export const html = htm.bind(h);
const RETRY_MS = 1000;

/**
 * `[found, problem, again]`: asks whenever `deps` change, at `again()`, and while no server answers; of answers that come
 * out of order only the newest counts. What was found stays until something else is.
 */
export function useFetched(ask, deps) {
  const [{ found, problem }, set] = useState({});
  const [times, setTimes] = useState(0);
  const again = () => setTimes((n) => n + 1);
  useEffect(() => {
    let newest = true;
    let timer;
    ask().then((now) => newest && set({ found: now }), (error) => {
      if (!newest) return;
      set((last) => ({ ...last, problem: error }));
      if (error.type === "unreachable") timer = setTimeout(again, RETRY_MS);
    });
    return () => {
      newest = false;
      clearTimeout(timer);
    };
  }, [...deps, times]);
  return [found, problem, again];
}

export { h, render, useEffect, useLayoutEffect, useMemo, useRef, useState };
