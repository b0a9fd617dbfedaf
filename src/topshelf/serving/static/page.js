// The page: what is asked when a form is sent or a button is clicked, and where the answer goes.

import { ask, forgetKey, hasKey, onTimes, useKey } from "./asking.js";
import { element, find, milliseconds } from "./elements.js";
import { showOwnTimes, watchServer } from "./latency.js";
import { help, itemsOnly, lists, nameOf, section, servedChip } from "./shown.js";

const basket = new Map(); // items of a new user: id as text to what is listed
let variants = [];
let latest = 0; // number of the latest question: an answer to an earlier one is not shown
let again = null; // asks the last list again, when options change
let opener = null; // the button that opened the similar items

const actions = { similar, add };

// Runs what asks; says that it waits, what went wrong, and for a missing key shows its field.
async function during(waiting, call) {
  const number = (latest += 1);
  say(waiting);
  fail("");
  find("results").setAttribute("aria-busy", "true");
  try {
    const began = performance.now();
    const show = await call();
    const spent = performance.now() - began;
    if (number !== latest) return;
    const told = show();
    say(told ? `${told} ${milliseconds(spent)} ms.` : "");
  } catch (error) {
    if (number !== latest) return;
    say("");
    if (error.status === 401) lock(error.message);
    else fail(error.message);
  } finally {
    if (number === latest) find("results").removeAttribute("aria-busy");
  }
}

const say = (text) => { find("status").textContent = text; };

function fail(text) {
  find("error").textContent = text;
  find("error").hidden = text === "";
}

function lock(message) {
  fail(hasKey() ? message : "");
  say("");
  latest += 1; // what was asked with the key is not shown
  forgetKey();
  basket.clear();
  showItems();
  find("locked").hidden = false;
  for (const id of ["open", "forget-key", "latency"]) find(id).hidden = true;
  find("results").replaceChildren();
  find("served").replaceChildren();
  find("key").focus();
}

function options() {
  const chosen = {};
  const k = find("k").valueAsNumber;
  if (Number.isInteger(k)) chosen.k = k;
  if (find("seen").value) chosen.filter_seen = find("seen").value === "true";
  if (find("filter").value.trim()) chosen.filter = find("filter").value.trim();
  const explain = find("explain").valueAsNumber;
  return { ...chosen, explain: Number.isInteger(explain) ? explain : 0 };
}

const variantOf = (id) => (find(id).value ? { variant: find(id).value } : {});

// The query for the chosen variant, and for the one to compare with: one request, so that both see the same moment.
function queries(query) {
  const other = variantOf("other");
  return [{ ...query, ...variantOf("variant") }, ...(other.variant ? [{ ...query, ...other }] : [])];
}

const titlesOf = (items) => new Map(items.map((one) => [String(one.item), nameOf(one)]));
const plural = (n) => (n === 1 ? "1 item" : `${n} items`);

// The list, and what is beside it where there is room.
function place(list, beside) {
  find("results").replaceChildren(list, element("div", { id: "side" }, beside));
  opener = null;
}

function showUser(user) {
  again = () => showUser(user);
  return during(`Asking for user ${user} …`, async () => {
    const asked = { queries: queries({ user }), ...options() };
    const [listed, owned] = await Promise.all([ask("recommend", asked), ask("history", { user, ...variantOf("variant") })]);
    const history = owned.answers[0];
    return () => {
      const title = `List of user ${user}`;
      place(lists(title, listed.answers, actions, { titles: titlesOf(history.items) }),
        itemsOnly(`History of user ${user}`, history, actions, "The run and the events have no items of this user."));
      return `${title}: ${plural(listed.answers[0].items.length)}. History: ${plural(history.items.length)}.`;
    };
  });
}

function showBasket() {
  again = showBasket;
  const items = [...basket.values()];
  return during("Asking …", async () => {
    const { answers } = await ask("recommend", { queries: queries({ history: items.map((one) => one.item) }), ...options() });
    return () => {
      place(lists("List of a new user", answers, actions, { titles: titlesOf(items) }), help());
      return `List of a new user: ${plural(answers[0].items.length)}.`;
    };
  });
}

function showPopular() {
  again = showPopular;
  return during("", async () => {
    const { answers } = await ask("recommend", { queries: queries({}), ...options() });
    return () => {
      place(lists("Popular items", answers.map((one) => ({ ...one, fallback: null })), actions), help());
      return `Popular items: ${plural(answers[0].items.length)}.`;
    };
  });
}

function search(text) {
  again = null;
  return during("Searching …", async () => {
    const { answers } = await ask("search", { text, ...variantOf("variant") });
    return () => {
      const title = `Items with “${text}”`;
      place(itemsOnly(title, answers[0], actions, "No title and no id has this text in it."), help());
      return `${title}: ${plural(answers[0].items.length)}.`;
    };
  });
}

function similar(one, button) {
  const chosen = [variantOf("variant"), ...(find("other").value ? [variantOf("other")] : [])];
  return during(`Asking for items similar to ${nameOf(one)} …`, async () => {
    const found = await Promise.all(chosen.map((variant) => ask("similar", { items: [one.item], ...variant })));
    const answers = found.map(({ answers: [answer] }) => ({ ...answer, items: answer.similar }));
    return () => {
      const title = `Similar to ${nameOf(one)}`;
      const made = lists(title, answers, actions, { scoreTitle: "cosine", nothing: "The run has no similar items." });
      made.id = "similar";
      made.append(element("button", { type: "button", class: "plain", click: closeSimilar }, "Close"));
      if (find("similar")) find("similar").replaceWith(made);
      else find("side").prepend(made);
      if (button.isConnected) opener = button;
      made.querySelector("h2").focus();
      return `${title}: ${plural(answers[0].items.length)}.`;
    };
  });
}

function closeSimilar() {
  find("similar").remove();
  (opener?.isConnected ? opener : find("results")).focus();
}

function add(one) {
  basket.set(String(one.item), one);
  showItems();
  say(`${nameOf(one)} is added. ${plural(basket.size)} of a new user.`);
}

function removeFrom(one) {
  basket.delete(String(one.item));
  showItems();
  say(`${nameOf(one)} is removed.`);
  (basket.size ? find("basket-title") : find("text")).focus();
}

function showItems() {
  find("basket").hidden = basket.size === 0;
  find("basket-items").replaceChildren(...[...basket.values()].map((one) =>
    element("li", {}, nameOf(one), element("button", { type: "button", class: "remove",
      "aria-label": `Remove ${nameOf(one)}`, click: () => removeFrom(one) }, "×"))));
}

function fillVariants() {
  const isSeveral = variants.length > 1;
  for (const id of ["variant", "other"]) {
    find(`${id}-field`).hidden = !isSeveral;
    find(id).replaceChildren(find(id).options[0],
      ...variants.map((one) => element("option", { value: one.name }, `${one.name} (${one.run})`)));
  }
  if (isSeveral) find("options").open = true;
  const columns = [...new Set(variants.flatMap((one) => one.columns))];
  find("filter-field").hidden = columns.length === 0;
  find("filter-label").textContent = `Filter (columns: ${columns.join(", ")})`;
  find("k").placeholder = String(variants[0].k);
}

async function start() {
  await during("Asking what is served …", async () => {
    ({ variants } = await ask("model"));
    return opened;
  });
  if (variants.length && variants[0].task !== "ranking" && !find("open").hidden) await showPopular();
}

function opened() {
  find("locked").hidden = true;
  find("latency").hidden = false;
  find("forget-key").hidden = !hasKey();
  find("served").replaceChildren(...variants.map(servedChip));
  if (variants[0].task === "ranking") {
    find("results").replaceChildren(section("Documents", element("p", {}, "The run that is served ranks documents (POST /rank). This page shows lists of items."),
      element("p", {}, `Features: ${variants[0].features.join(", ")}`)));
    return;
  }
  find("open").hidden = false;
  fillVariants();
  if (document.activeElement === document.body || document.activeElement === find("key")) find("user").focus();
}

function onSubmit(id, call) {
  find(id).addEventListener("submit", (event) => {
    event.preventDefault();
    call();
  });
}

onSubmit("key-form", () => {
  try {
    useKey(find("key").value.trim());
    find("key").value = "";
    start();
  } catch (error) {
    fail(error.message);
  }
});
onSubmit("user-form", () => showUser(find("user").value.trim()));
onSubmit("search-form", () => search(find("text").value.trim()));
onSubmit("basket-form", showBasket);
onSubmit("options-form", () => again?.());
for (const id of ["variant", "other", "seen"]) find(id).addEventListener("change", () => again?.());
find("basket-empty").addEventListener("click", () => {
  basket.clear();
  showItems();
  find("text").focus();
});
find("forget-key").addEventListener("click", () => lock(""));
onTimes(showOwnTimes);
watchServer();
start();
