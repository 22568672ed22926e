// Preact, with templates in place of JSX.
import { h, Fragment, render } from "preact";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";

export const html = htm.bind(h);
export { h, Fragment, render, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState };
