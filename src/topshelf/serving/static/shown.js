// What the server answered, as sections of the page.

import { count, element, score, table } from "./elements.js";

const FALLBACKS = {
  unknown_user: "The run does not know this user: these are the popular items.",
  no_history: "Nothing is known about this user: these are the popular items.",
  model_takes_no_history: "This model takes no histories of new users: these are the popular items.",
};

export const nameOf = (one) => one.title ?? String(one.item);

function itemCell(one) {
  return one.title === null ? String(one.item) : element("span", {}, one.title, element("small", {}, String(one.item)));
}

// actions: {similar(one, button), add(one)}
function buttons(one, actions) {
  const name = nameOf(one);
  return element("span", { class: "buttons" },
    element("button", { type: "button", class: "small", "aria-label": `Similar to ${name}`,
      click: (event) => actions.similar(one, event.currentTarget) }, "Similar"),
    element("button", { type: "button", class: "small", "aria-label": `Add ${name} to a new user`,
      click: () => actions.add(one) }, "Add"));
}

export function section(title, ...children) {
  const heading = element("h2", { tabindex: "-1" }, title);
  return element("section", { "aria-label": title }, heading, ...children);
}

// options: titles (of reasons by id), places (of the items in the list of variant beside), isScored
function listTable(caption, items, actions, options) {
  const columns = [{ title: "place", isNumber: true, isHidden: true }, { title: "item" }];
  if (options.places) columns.push({ title: `in ${options.beside}`, isNumber: true });
  if (options.isScored) columns.push({ title: options.scoreTitle ?? "score", isNumber: true });
  columns.push({ title: "actions", isHidden: true });
  const rows = items.map((one, at) => [
    String(at + 1),
    itemCell(one),
    ...(options.places ? [String(options.places.get(String(one.item)) ?? "–")] : []),
    ...(options.isScored ? [score(one.score)] : []),
    buttons(one, actions),
  ]);
  return table(caption, columns, rows, { name: 1, under: items.map((one) => reasons(one, options.titles)) });
}

function reasons(one, titles) {
  if (!one.because.length) return null;
  return element("div", { class: "reasons" }, "because of", element("ul", {},
    ...one.because.flatMap((item) => [" ", element("li", {}, titles?.get(String(item)) ?? String(item))])));
}

const placesOf = (items) => new Map(items.map((one, at) => [String(one.item), at + 1]));
const versionOf = (answer) => `variant ${answer.variant}, version ${answer.version}`;

// One or two answers; two are shown side by side.
export function lists(title, answers, actions, options = {}) {
  const places = answers.map((one) => placesOf(one.items));
  const parts = answers.map((answer, at) => {
    const other = answers.length > 1 ? { places: places[1 - at], beside: answers[1 - at].variant } : {};
    const isScored = answer.items.some((one) => one.score !== null);
    const caption = answers.length > 1 ? `${title}, variant ${answer.variant}` : title;
    return element("div", {},
      element("p", { class: "caption" }, versionOf(answer)),
      answer.fallback ? element("p", { class: "warning" }, FALLBACKS[answer.fallback] ?? answer.fallback) : null,
      answer.unknown_items ? element("p", { class: "note" }, `Items that the run does not know: ${count(answer.unknown_items)}`) : null,
      answer.items.length ? listTable(caption, answer.items, actions, { ...options, ...other, isScored })
        : element("p", { class: "note" }, options.nothing ?? "No items."));
  });
  if (answers.length === 1) return section(title, ...parts);
  const both = answers[0].items.filter((one) => places[1].has(String(one.item))).length;
  const longest = Math.max(...answers.map((one) => one.items.length));
  const made = section(title, element("p", {}, `In both lists: ${both} of ${longest} items.`),
    element("div", { class: "pair" }, ...parts));
  made.classList.add("full");
  return made;
}

export function itemsOnly(title, answer, actions, nothing) {
  const shown = answer.items.length ? listTable(title, answer.items, actions, { isScored: false })
    : element("p", { class: "note" }, nothing);
  const made = section(title, element("p", { class: "caption" }, `Items: ${count(answer.items.length)}`), shown);
  made.classList.add("long");
  return made;
}

export function help() {
  const lines = ["Because of: the user's own items that speak most for a listed item.",
    "Similar: the items whose vectors are nearest to an item's.",
    "Add: puts an item into the history of a new user, who can then be asked for a list."];
  return section("On this page", element("ul", { class: "help" }, ...lines.map((line) => element("li", {}, line))));
}

export function servedChip(one) {
  const sizes = one.task === "ranking" ? `${count(one.features.length)} features` : `${count(one.users)} users, ${count(one.items)} items`;
  const found = one.recall === null ? "" : `, index ${one.index} with recall ${one.recall.toFixed(3)}`;
  return element("li", {}, element("strong", {}, one.name), ` ${one.run}: ${one.model}, ${sizes}, ${one.share}% of users${found}`);
}
