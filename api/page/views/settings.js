// What answers, and a switch to something else; what the server runs with.
import { Button, Field, Missing, Problem, Select, attempt } from "../controls.js";
import { html, useFetched, useState } from "../html.js";
import * as rest from "../rest.js";
import { count, either, t } from "../texts.js";
import { Rows, useJobs } from "./jobs.js";

const QUANTIZATIONS = ["", "none", "int8", "nf4"]; // "" is as the server's settings say

export function Settings({ site }) {
  if (site.session.learner) return html`<${Missing} />`;
  return html`<h1>${t("nav.settings")}</h1><${Answering} site=${site} /><${Facts} site=${site} />
    <div class="row"><a href="/docs" target="_self">${t("settings.api")}</a></div>`;
}

function Answering({ site }) {
  const [found, problem, find] = useFetched(rest.generator, []);
  const { rows, look } = useJobs({
    kinds: ["generator"],
    onEnd: (job) => {
      if (job.state === "done") site.refresh();
      find();
    },
  });
  const use = (choice) => attempt(async () => {
    await rest.switchGenerator(choice);
    await look();
  });
  return html`<section class="card" aria-labelledby="answering-title">
    <div class="book-head"><h2 id="answering-title">${t("settings.answering")}</h2>
      <${Button} kind="quiet" icon="search" onClick=${find}>${t("settings.look_again")}<//></div>
    <p role="status">${found ? t("settings.answers_now", { name: nameOf(found) }) : t("settings.looking")}</p>
    ${problem && html`<${Problem} error=${problem} />`}
    ${found?.problem && html`<p class="problem">${t("settings.choice_failed", { why: found.problem })}</p>`}
    ${found?.silent && html`<p class="problem">${t("settings.silent", { url: found.base_url })}</p>`}
    <${Rows} rows=${rows} />
    ${found && html`<${Choices} found=${found} use=${use} />`}
    <p class="soft">${t("settings.other_servers")}</p>
  </section>`;
}

const nameOf = ({ generator, model, adapter }) => [
  either(`generator.${generator}`, generator), generator !== "extractive" && `: ${model}`, adapter && ` + ${adapter}`,
].filter(Boolean).join("");
const size = (bytes) => (bytes < 1e9 ? `${Math.round(bytes / 1e6)} MB` : `${(bytes / 1e9).toFixed(1)} GB`);

/** The books' own sentences, the models of engines, those of this machine, and those that can be fetched. */
function Choices({ found, use }) {
  const { engines, models, adapters, available } = found;
  const remote = engines.flatMap((engine) => engine.models.map((model) => [engine, model]));
  return html`<ul class="choices-of-models">
    <${Choice} name=${t("generator.extractive")} detail=${t("settings.extractive_note")} here=${found.generator === "extractive"}
      onUse=${() => use({ generator: "extractive" })} />
    ${remote.map(([{ engine, base_url }, model]) => html`<${Choice} key=${base_url + model} name=${model} detail=${`${engine} · ${base_url}`}
      here=${found.generator === "remote" && found.base_url === base_url && found.model === model}
      onUse=${() => use({ generator: "remote", base_url, model })} />`)}
    ${models.map((model) => html`<${Local} key=${model.name} model=${model} found=${found} use=${use}
      adapters=${adapters.filter((one) => one.fits.includes(model.name)).map((one) => one.name)} />`)}
    ${available.filter((one) => one.writes_answers && !one.here).map((one) => html`<${Choice} key=${one.name} name=${one.name}
      label=${t("settings.get_and_use")} detail=${[one.licence, size(one.download_bytes)].join(" · ")}
      onUse=${() => use({ generator: "local", model: one.name })}><${Measured} ...${one} /><//>`)}
  </ul>
  ${!engines.length && html`<p class="soft">${t("settings.no_engine")}</p>`}`;
}

/** What a model that we measured is good for; of another what the server says of it. */
const Measured = ({ name, about }) => html`<span class="soft">${either(`settings.about.${name}`, about)}</span>`;

/** A model of this machine, with how it is loaded behind 'More'. */
function Local({ model, found, use, adapters }) {
  const answersAs = [model.name, model.path, model.name.split(/[\\/]/).at(-1)];
  const here = found.generator === "local" && answersAs.includes(found.model);
  const [adapter, setAdapter] = useState((here && found.adapter) || "");
  const [quantization, setQuantization] = useState((here && QUANTIZATIONS.includes(found.quantization) && found.quantization) || "");
  const choose = () => use({ generator: "local", model: model.name, adapter: adapter || null, quantization: quantization || null });
  return html`<${Choice} name=${model.name} detail=${[model.architecture, size(model.weights_bytes)].join(" · ")} here=${here} onUse=${choose}
    label=${here ? t("settings.apply") : undefined} again>
    <${Measured} name=${model.name} />
    <details class="file-form"><summary>${t("more")}</summary><div class="row">
      <${Field} label=${t("settings.quantization")}><${Select} value=${quantization} onChange=${setQuantization}
        options=${QUANTIZATIONS.map((name) => [name, t(`quantization.${name || "auto"}`)])} /><//>
      ${adapters.length > 0 && html`<${Field} label=${t("filters.adapter")}><${Select} value=${adapter} onChange=${setAdapter}
        options=${[["", t("settings.no_adapter")], ...adapters.map((name) => [name, name])]} /><//>`}
    </div></details><//>`;
}

/** `again`: also what answers now can be loaded, in another way. */
function Choice({ name, detail, here = false, again = false, label = t("settings.use"), onUse, children }) {
  return html`<li class=${here ? "model current" : "model"}>
    <div class="model-name"><span>${name}</span><span class="soft">${detail}</span>${children}</div>
    <div class="row">${here && html`<span class="badge right">${t("settings.in_use")}</span>`}
      ${(!here || again) && html`<${Button} label=${`${label}: ${name}`} onClick=${onUse}>${label}<//>`}</div></li>`;
}

/** What the server tells about itself. */
function Facts({ site: { documents, running, session } }) {
  const nodes = documents.reduce((all, one) => all + one.nodes, 0);
  const facts = [
    ["quantization", running.quantization],
    ["adapters", running.adapters?.join(", ")],
    ["arms", running.arms?.length > 1 && running.arms.map((arm) => t(`arm.${arm}`)).join(", ")],
    ["embedder", running.embedder],
    ["faiss", either(`faiss.${running.faiss_device}`, running.faiss_device)],
    ["books", [count("library.books_count", documents.length), count("library.nodes", nodes)].join(t("page.join"))],
    ["home", session.home],
    ["address", location.origin],
    ["keys", t(session.asks_for_keys ? "settings.with_key" : "settings.without_key")],
  ];
  return html`<section class="card"><h2>${t("settings.server")}</h2><dl class="facts-of-server">${facts.filter(([, value]) => value).map(([name, value]) => html`
    <dt>${t(`settings.${name}`)}</dt><dd>${value}</dd>`)}</dl></section>`;
}
