// Elements of the page. All text is set as text: ids and titles may hold anything.

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "click") made.addEventListener("click", value);
    else if (value !== undefined && value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((one) => one !== null && one !== undefined));
  return made;
}

export const find = (id) => document.getElementById(id);

// columns: {title, isNumber, isHidden}; rows: lists of texts or elements, of which the one at `name` names its row.
// under: for each row what is shown below it, over all columns but the first, or null.
export function table(caption, columns, rows, { name = 0, under = [] } = {}) {
  const head = columns.map((one) =>
    element("th", { scope: "col", class: one.isNumber && "number" },
      one.isHidden ? element("span", { class: "hidden" }, one.title) : one.title));
  const body = rows.flatMap((cells, number) => {
    const row = element("tr", { class: under[number] && "above" }, ...cells.map((cell, at) =>
      element(at === name ? "th" : "td", { scope: at === name && "row", class: columns[at].isNumber && "number" }, cell)));
    if (!under[number]) return [row];
    return [row, element("tr", {}, element("td"), element("td", { colspan: columns.length - 1 }, under[number]))];
  });
  const made = element("table", {},
    element("caption", {}, caption), element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
  // What scrolls can be reached by the keyboard.
  return element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption }, made);
}

const SCORE = new Intl.NumberFormat("en", { minimumSignificantDigits: 4, maximumSignificantDigits: 4, useGrouping: false });
const COUNT = new Intl.NumberFormat("en");

export const score = (value) => (value === null ? "–" : SCORE.format(value));
export const count = (value) => COUNT.format(value);
export const milliseconds = (value) => (value < 10 ? value.toFixed(1) : COUNT.format(Math.round(value)));
